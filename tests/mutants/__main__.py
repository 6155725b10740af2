"""`python -m tests.mutants [--only NAME] [--json] [--list] [--write]`.

Plants bugs one by one into a copy of the tree, runs what ought to catch each, and prints a table. Exits with 1 where
one is caught by nothing. Before that, the copy without a bug has to pass all the same tests and seeds.
"""

import argparse
import os
import resource
import sys
from collections.abc import Sequence

import orjson

from .bugs import BUGS
from .check import Verdict, check
from .copied import ROOT
from .mutant import Mutant, problems
from .page import renew, table

HASH_SEED = "PYTHONHASHSEED"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="this bug alone; may be given several times")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--list", action="store_true", help="the names of the bugs and their files, and plant none")
    parser.add_argument("--write", action="store_true", help="put the table into docs/mutants.md; of all bugs alone")
    given = parser.parse_args(arguments)
    chosen = [mutant for mutant in BUGS if not given.only or mutant.name in given.only]
    if given.only and (unknown := set(given.only) - {mutant.name for mutant in chosen}):
        parser.error(f"there is no bug {min(unknown)!r}; see --list")
    if given.write and given.only:
        parser.error("--write needs all bugs")
    if given.list:
        _print("\n".join(f"{mutant.name}  ({mutant.file})" for mutant in chosen))
        return 0
    if rotten := list(problems(chosen, ROOT)):
        _print("\n".join(rotten))
        return 2
    return report(chosen, as_json=given.json, write=given.write)


def report(mutants: Sequence[Mutant], *, as_json: bool = False, write: bool = False) -> int:
    """Check these and say what became of each."""
    verdicts = []
    for verdict in check(mutants):
        verdicts.append(verdict)
        if not as_json:
            _print(verdict.line)
    survived = [verdict.mutant.name for verdict in verdicts if not verdict.caught]
    if as_json:
        document = {"bugs": [verdict.document for verdict in verdicts], "survived": survived}
        _print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        _print(f"\n{table(verdicts)}\n")
        _print(f"{len(verdicts) - len(survived)} of {len(verdicts)} bugs are caught, in "
               f"{used.ru_utime + used.ru_stime:.0f} CPU seconds.")  # fmt: skip
    if write and not survived:
        renew(verdicts)
    return 1 if survived else 0


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def restarted() -> list[Verdict]:
    """Never returns: sets of texts are gone through in the order of their hashes, which are to be the same ones."""
    environment = {**os.environ, HASH_SEED: "0"}
    os.execve(sys.executable, [sys.executable, "-m", "tests.mutants", *sys.argv[1:]], environment)


if __name__ == "__main__":
    if os.environ.get(HASH_SEED) != "0":
        restarted()
    sys.exit(main())
