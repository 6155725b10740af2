"""`python -m tests.proof [--minutes M] [--seeds N] [--first S] [--part NAME] [--json]`, and `--seed S` to replay one.

Prints one sentence with what was tried and found. Exits with 1 on any violation, and where ENOUGH seeds did not reach
all that they are meant to.
"""

import argparse
import gc
import os
import sys
from collections.abc import Mapping

import orjson

from .part import SEEDED, Report
from .parts import PARTS
from .pool import Wish, run_parts
from .scenario import draw
from .seeds import judged, told

HASH_SEED = "PYTHONHASHSEED"
ENOUGH = 2000
"""So many seeds have to reach everything."""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long it may take in all")
    parser.add_argument("--seeds", type=int, default=0, help="so many of the simulation, however long they take")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--part", action="append", choices=[part.name for part in PARTS], help="only this; repeatable")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="so many processes")
    parser.add_argument("--seed", type=int, help="replay this one, and show its history")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the sentence")
    given = parser.parse_args()
    if given.seed is not None:
        return _replay(given.seed)
    parts = [part for part in PARTS if not given.part or part.name in given.part]
    wish = Wish(seconds=given.minutes * 60, seeds=given.seeds, first=given.first)
    reports = run_parts(parts, wish, given.workers)
    missing = {part.name: part.not_reached(reports[part.name]) for part in parts}
    violations = [text for report in reports.values() for text in report.violations]
    if given.json:
        document = {name: _document(report, missing[name]) for name, report in reports.items()}
        _print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        for text in violations:
            _print(text)
        for name, names in missing.items():
            if names:
                _print(f"{name} did not reach: {', '.join(names)}")
        tried = "; ".join(part.sentence(reports[part.name]) for part in parts)
        ending = "" if len(violations) == 1 else "s"
        _print(f"{tried}: {len(violations) or 'no'} violation{ending} of twelve invariants.")
    return 1 if violations or missed(reports, missing) else 0


def missed(reports: Mapping[str, Report], missing: Mapping[str, list[str]]) -> bool:
    """Whether the simulation was long enough to reach everything, and did not."""
    return SEEDED in reports and reports[SEEDED].counts["seeds"] >= ENOUGH and bool(missing[SEEDED])


def _document(report: Report, missing: list[str]) -> dict[str, object]:
    return {
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
