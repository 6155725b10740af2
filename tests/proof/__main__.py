"""`python -m tests.proof [--minutes M] [--seeds N] [--first S] [--part NAME] [--json]`, and `--seed S` to replay one.

Prints one sentence with what was tried and found. Exits with 1 on any violation, where a part has tried nothing, and
where 2,000 seeds or more did not reach all that they are meant to.
"""

import gc
import logging
import os
import sys
from collections.abc import Mapping, Sequence

import orjson

from bench.command_line import Command, above_zero, count, count_or_none

from .part import SEEDED, Part, Report
from .parts import PARTS
from .pool import Wish, run_parts
from .scenario import draw
from .seeds import judged, told

HASH_SEED = "PYTHONHASHSEED"
ENOUGH = 2000
"""So many seeds have to reach everything."""


ABOUT = (__doc__ or "").partition("\n\n")[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = Command("tests.proof", ABOUT)
    parser.add_argument("--minutes", type=above_zero, default=1.0, help="how long it may take in all")
    parser.add_argument(
        "--seeds",
        type=count,
        default=0,
        help="so many of the simulation, however long they take; default: as many as there is time for",
    )
    parser.add_argument("--first", type=count_or_none, default=0, help="the first seed")
    names = [part.name for part in PARTS]
    parser.add_argument(
        "--part",
        action="append",
        metavar="NAME",
        choices=names,
        help=f"only this one of: {', '.join(names)}; may be given several times; default: all",
    )
    parser.add_argument("--workers", type=count, default=os.cpu_count() or 1, help="so many processes at once")
    parser.add_argument("--seed", type=count_or_none, help="replay this one, and show its history")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the sentence")
    given = parser.parse_args(arguments)
    logging.getLogger("store").addHandler(logging.NullHandler())  # That objects are lost and read again is expected.
    if given.seed is not None:
        return _replay(given.seed)
    parts = [part for part in PARTS if not given.part or part.name in given.part]
    if given.seeds and SEEDED not in [part.name for part in parts]:
        parser.error(f"--seeds is for the part {SEEDED}, which --part leaves out")
    wish = Wish(seconds=given.minutes * 60, seeds=given.seeds, first=given.first)
    reports = run_parts(parts, wish, given.workers)
    missing = {part.name: part.not_reached(reports[part.name]) for part in parts}
    untried = [part.name for part in parts if not part.tried(reports[part.name])]
    violations = [text for report in reports.values() for text in report.violations]
    if given.json:
        document = {
            name: _document(report, missing[name], tried=name not in untried) for name, report in reports.items()
        }
        _print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        for text in violations:
            _print(text)
        for name, left in missing.items():
            if left:
                _print(f"{name} did not reach: {', '.join(left)}")
        _print(sentence(parts, reports))
    return 1 if violations or untried or missed(reports, missing) else 0


def sentence(parts: Sequence[Part], reports: Mapping[str, Report]) -> str:
    """What was tried and found; of a part that has tried nothing it says that, and no more."""
    tried = [part for part in parts if part.tried(reports[part.name])]
    untried = ", ".join(part.name for part in parts if part not in tried)
    nothing = f"nothing was tried of {untried}, for which there was not enough time"
    violations = sum(len(report.violations) for report in reports.values())
    found = f"{violations or 'no'} violation{'' if violations == 1 else 's'} of twelve invariants"
    if not tried:
        return f"{nothing}{f': {found}' if violations else ''}."
    words = "; ".join(part.sentence(reports[part.name]) for part in tried)
    return f"{words}: {found}{f'; {nothing}' if untried else ''}."


def missed(reports: Mapping[str, Report], missing: Mapping[str, list[str]]) -> bool:
    """Whether the simulation was long enough to reach everything, and did not."""
    return SEEDED in reports and reports[SEEDED].counts["seeds"] >= ENOUGH and bool(missing[SEEDED])


def _document(report: Report, missing: list[str], *, tried: bool) -> dict[str, object]:
    return {
        "tried": tried,
        "counts": dict(report.counts),
        "reached": dict(sorted(report.reached.items())),
        "not_reached": missing,
        "violations": report.violations,
    }


def _replay(seed: int) -> int:
    scenario = draw(seed)
    outcome, found = judged(scenario)
    for event in outcome.history.events:
        facts = " ".join(f"{name}={value}" for name, value in event.facts.items())
        _print(f"{event.n:6} {event.at:10.4f} {event.what:8} {facts}"[:400])
    _print(f"\n{scenario}")
    for fault in scenario.faults:
        _print(f"    {fault}")
    for violation in found:
        _print(str(violation))
    if found:
        _print(told(scenario, found))
    _print(f"history {outcome.history.digest}, {outcome.steps} steps, {outcome.virtual_s:.1f} virtual seconds")
    return 1 if found else 0


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    if os.environ.get(HASH_SEED) != "0":  # Sets of texts are gone through in the order of their hashes.
        os.execve(sys.executable, [sys.executable, "-m", "tests.proof", *sys.argv[1:]], {**os.environ, HASH_SEED: "0"})
    gc.freeze()  # What was imported is not looked at again after each seed.
    sys.exit(main())
