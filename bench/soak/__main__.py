"""Hours of collection with a kill every few seconds, each time continued: is every row right, and does anything grow?

python -m bench.soak --minutes 120 --folder FOLDER
python -m bench.soak --report FOLDER
"""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from .fleets import VICTIMS
from .report import Report, draw
from .soak import Plan, Soak

USUAL = Plan(minutes=10.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 where something was wrong, or grows, or the soak did not come to its end."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=USUAL.minutes, help="with kills; the end takes some more")
    parser.add_argument("--seed", type=int, default=USUAL.seed, help="of the kills")
    parser.add_argument("--kill-every", type=float, default=USUAL.kill_every_s, help="seconds, on average")
    parser.add_argument("--look-every", type=float, default=USUAL.look_every_s, help="seconds between samples")
    parser.add_argument("--interval", type=float, default=USUAL.interval_s, help="seconds between checkpoints")
    parser.add_argument("--concurrency", type=int, default=USUAL.concurrency, help="rollouts in flight of each fleet")
    parser.add_argument("--fleets", nargs="+", choices=list(VICTIMS), default=list(VICTIMS), help="which of them run")
    parser.add_argument("--url", default="", help="below which the stores are; default: in the folder")
    parser.add_argument("--folder", type=Path, help="keep everything here; default: a temporary folder right here")
    parser.add_argument(
        "--report", type=Path, metavar="FOLDER", help="run nothing, and print what a folder shows so far"
    )
    parser.add_argument("--svg", type=Path, help="draw the picture there as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
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
