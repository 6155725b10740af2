"""Kills each of those who take part in each phase of their work, in real servers, and says what became of it."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import orjson

from bench.command_line import Command, to_read

from .phases import PHASES, Phase
from .runner import Runner
from .table import read, table, with_table
from .victims import VICTIMS, Victim


def chosen(only: str) -> list[tuple[Victim, Phase]]:
    """The cells whose victim and phase have these parts in their names."""
    victim_part, _, phase_part = only.partition(",")
    return [(v, p) for v in VICTIMS if victim_part in v.name for p in PHASES if phase_part in p.name]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are asked for; 1 where one of them has a problem."""
    parser = Command("tests.scenarios.matrix", __doc__)
    parser.add_argument("--json", action="store_true", help="a line for each cell in place of the table")
    parser.add_argument(
        "--only",
        default="",
        metavar="VICTIM,PHASE",
        help="parts of the names of the cells to run, such as agent,commit; default: all",
    )
    parser.add_argument(
        "--page", type=to_read, help="put the cells that were run into the table of this page, which has one"
    )
    parsed = parser.parse_args(arguments)
    wanted = chosen(parsed.only)
    if not wanted:
        parser.error(
            f"--only {parsed.only} is no part of a victim and a phase; victims are "
            f"{', '.join(v.name for v in VICTIMS)}; phases are {', '.join(p.name for p in PHASES)}"
        )
    if parsed.page and not read(parsed.page.read_text(encoding="utf-8")):
        parser.error(f"--page {parsed.page} has no table of the matrix")
    cells, wrong = {}, 0
    with tempfile.TemporaryDirectory(prefix="midflight-matrix-") as folder, Runner(Path(folder)) as runner:
        for victim, phase in wanted:
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
