"""Hours of collection with a kill every few seconds, each time continued: is every row right, and does anything grow?

python -m bench.soak --minutes 120 --folder FOLDER
python -m bench.soak --report FOLDER
"""

import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from .. import command_line
from ..command_line import above_zero, count, names
from .fleets import VICTIMS
from .journal import NAME
from .report import Report, draw
from .soak import Plan, Soak

USUAL = Plan(minutes=10.0)


def reported(text: str) -> Path:
    """The folder of a soak. Raises ArgumentTypeError."""
    command_line.to_read(str(Path(text) / NAME))
    return Path(text)


def unfit(folder: Path) -> str:
    """Why a soak cannot be run in this folder, or nothing; it need not be there yet."""
    if folder.exists() and not folder.is_dir():
        return f"{folder} is no folder"
    if (folder / NAME).exists():
        return f"{folder} has a soak already: give another folder, or --report {folder}"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 where something was wrong, or grows, or the soak did not come to its end.

    A soak that was too short for any series to be judged ends with 0 where its rows are right, and says so.
    """
    parser = command_line.Command("bench.soak", __doc__)
    parser.add_argument("--minutes", type=above_zero, default=USUAL.minutes, help="with kills; the end takes some more")
    parser.add_argument("--seed", type=int, default=USUAL.seed, help="of the times and victims of the kills")
    parser.add_argument(
        "--kill-every", type=above_zero, default=USUAL.kill_every_s, help="seconds between kills, on average"
    )
    parser.add_argument("--look-every", type=above_zero, default=USUAL.look_every_s, help="seconds between samples")
    parser.add_argument("--interval", type=above_zero, default=USUAL.interval_s, help="seconds between checkpoints")
    parser.add_argument("--concurrency", type=count, default=USUAL.concurrency, help="rollouts in flight of each fleet")
    parser.add_list("--fleets", names(VICTIMS), list(VICTIMS), "which of them run")
    parser.add_argument("--url", default="", help="URL below which the stores are; default: in the folder")
    parser.add_argument(
        "--folder",
        type=Path,
        help="keep everything here, where no soak was before; default: a temporary folder right here",
    )
    parser.add_argument(
        "--report",
        type=reported,
        metavar="FOLDER",
        help="run nothing, and print what this folder of a soak shows so far",
    )
    parser.add_argument("--svg", type=command_line.to_write, help="draw the picture there as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    if parsed.folder is not None and parsed.report is None and (wrong := unfit(parsed.folder)):
        parser.error(wrong)
    if parsed.svg is not None:
        command_line.can_draw(parser, "--svg")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # Nothing that it started lives on.
    with ExitStack() as stack:
        folder = parsed.report or parsed.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd())))
        if parsed.report is None:
            folder.mkdir(parents=True, exist_ok=True)
            plan = Plan(
                minutes=parsed.minutes, seed=parsed.seed, url=parsed.url, fleets=tuple(parsed.fleets),
                kill_every_s=parsed.kill_every, look_every_s=parsed.look_every, interval_s=parsed.interval,
                concurrency=parsed.concurrency,
            )  # fmt: skip
            Soak(plan, folder).run()
        report = Report(folder)
        if parsed.svg is not None:
            draw(report, parsed.svg)
        print(report.text())
        if parsed.json:
            print(json.dumps(report.summary()))
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
