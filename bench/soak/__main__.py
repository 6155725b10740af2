"""The command line of the soak."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .soak import Plan, Soak


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak")
    parser.add_argument("--minutes", type=float, default=10.0, help="with kills; the end takes some more")
    parser.add_argument("--seed", type=int, default=1, help="of the kills")
    parser.add_argument("--url", default="", help="below which the stores are; default: the folder of the soak")
    parser.add_argument("--folder", type=Path, required=True, help="where everything is")
    parsed = parser.parse_args(arguments)
    parsed.folder.mkdir(parents=True, exist_ok=True)
    soak = Soak(Plan(minutes=parsed.minutes, seed=parsed.seed, url=parsed.url), parsed.folder)
    soak.run()
    print(f"{soak.journal.violations} violations")
    return int(soak.journal.violations > 0)


if __name__ == "__main__":
    sys.exit(main())
