"""The command of the kill matrix."""

import argparse
import sys
import tempfile
from pathlib import Path

import orjson

from .phases import PHASES, Phase
from .runner import Runner
from .table import read, table, with_table
from .victims import VICTIMS, Victim


def chosen(only: str) -> list[tuple[Victim, Phase]]:
    """The cells whose victim and phase have these parts in their names."""
    victim_part, _, phase_part = only.partition(",")
    return [(v, p) for v in VICTIMS if victim_part in v.name for p in PHASES if phase_part in p.name]


def main() -> int:
    """Run the cells that are asked for; 1 where one of them has a problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.matrix", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a line for each cell in place of the table")
    parser.add_argument("--only", default="", metavar="VICTIM,PHASE", help="parts of the names of the cells to run")
    parser.add_argument("--page", type=Path, help="put the cells that were run into the table of this page")
    parsed = parser.parse_args()
    cells, wrong = {}, 0
    with tempfile.TemporaryDirectory(prefix="midflight-matrix-") as folder, Runner(Path(folder)) as runner:
        for victim, phase in chosen(parsed.only):
            result = runner.run(victim, phase)
            wrong += bool(result.problems)
            cells[victim.name, phase.name] = str(result)
            sys.stderr.write(f"{victim.name}, {phase.name} ({result.seconds:g} s): {result}\n")
            if parsed.json:
                sys.stdout.write(orjson.dumps(result.to_json()).decode() + "\n")
                sys.stdout.flush()
    if not parsed.json:
        sys.stdout.write(table(cells) + "\n")
    if parsed.page:
        page = parsed.page.read_text(encoding="utf-8")
        parsed.page.write_text(with_table(page, table(read(page) | cells)), encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
