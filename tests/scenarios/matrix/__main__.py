"""The command of the kill matrix."""

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

import anyio
import orjson

from tests.support.backend import RunningBackend, start_backend
from tests.support.seaweed import KillableSeaweed

from .cell import Result, run_cell
from .checks import Again
from .phases import PHASES, Phase
from .table import table
from .victims import VICTIMS, Victim

FAILED_TOLD = 2000


def chosen(only: str) -> list[tuple[Victim, Phase]]:
    """The cells whose victim and phase have these parts in their names."""
    victim_part, _, phase_part = only.partition(",")
    return [(v, p) for v in VICTIMS if victim_part in v.name for p in PHASES if phase_part in p.name]


def run_all(cells: list[tuple[Victim, Phase]], folder: Path, *, as_json: bool) -> list[Result]:
    """One after the other. What a cell gets stuck in is a problem of its own, and the others run."""
    home = folder / "backend"
    home.mkdir()
    backend = start_backend(home, "--token-store", str(home / "tokens"))
    seaweed = _seaweed(folder) if any(victim.s3 for victim, _ in cells) else None
    results = []
    try:
        for number, (victim, phase) in enumerate(cells):
            result, backend = _run(victim, phase, folder / f"cell-{number}", backend, seaweed)
            results.append(result)
            said = orjson.dumps(result.to_json()).decode() if as_json else f"{result.victim}, {result.phase}: {result}"
            (sys.stdout if as_json else sys.stderr).write(said + "\n")
    finally:
        backend.stop()
        if seaweed is not None:
            seaweed.kill()
    return results


def _seaweed(folder: Path) -> KillableSeaweed:
    home = folder / "seaweed"
    home.mkdir()
    seaweed = KillableSeaweed(home)
    seaweed.begin()
    seaweed.await_ready()
    return seaweed


def _run(
    victim: Victim, phase: Phase, folder: Path, backend: RunningBackend, seaweed: KillableSeaweed | None
) -> tuple[Result, RunningBackend]:
    folder.mkdir()
    try:
        return anyio.run(run_cell, victim, phase, folder, backend, seaweed)
    except Exception as error:
        sys.stderr.write(traceback.format_exc()[-FAILED_TOLD:])
        said = f"{type(error).__name__}: {error}"[:FAILED_TOLD]
        return Result(victim.name, phase.name, "stuck", 0, 0, 0, Again(0, 0, 0, 0), 0, 0.0, (said,)), _alive(backend)


def _alive(backend: RunningBackend) -> RunningBackend:
    """It, or one in its place where a cell that got stuck has left it dead."""
    backend.kill()
    home = backend.log.parent
    return start_backend(home, "--token-store", str(home / "tokens"), port=backend.port)


def main() -> int:
    """Run the cells that are asked for; 1 where one of them has a problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.matrix", description=(__doc__ or ""))
    parser.add_argument("--json", action="store_true", help="a line for each cell in place of the table")
    parser.add_argument("--only", default="", metavar="VICTIM,PHASE", help="parts of the names of the cells to run")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="midflight-matrix-") as folder:
        results = run_all(chosen(parsed.only), Path(folder), as_json=parsed.json)
    if not parsed.json:
        sys.stdout.write(table(results) + "\n")
    return int(any(result.problems for result in results))


if __name__ == "__main__":
    sys.exit(main())
