"""`python -m tests.proof [--minutes M] [--seeds N] [--first S] [--json]`, and `--seed S` to replay one.

Prints one sentence with what was tried and found. Exits with 1 on any violation.
"""

import argparse
import gc
import os
import sys

import orjson

from .part import Budget, Part, Report
from .scenario import draw
from .seeds import judged, run_seeds, told

HASH_SEED = "PYTHONHASHSEED"


def simulated(report: Report) -> str:
    """The sentence of the simulation."""
    c = report.counts
    return (
        f"{c['seeds']:,} seeds of the whole system: {c['kills']:,} kill points with {c['crashed processes']:,} crashed "
        f"processes among {c['faults']:,} faults, {c['reorderings']:,} reordered steps, {c['checkpoints']:,} "
        f"checkpoints, {c['restores']:,} restores, {c['claims']:,} claims and {c['rows']:,} rows"
    )


PARTS = [Part("simulation", run_seeds, 1.0, simulated)]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long it may take in all")
    parser.add_argument("--seeds", type=int, default=0, help="at most so many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one, and show its history")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the sentence")
    given = parser.parse_args()
    if given.seed is not None:
        return _replay(given.seed)
    minutes = given.minutes if not given.seeds else max(given.minutes, 24 * 60)
    reports = {}
    for part in PARTS:
        reports[part.name] = part.run(Budget(minutes * 60 * part.share, given.seeds, given.first))
    violations = [text for report in reports.values() for text in report.violations]
    if given.json:
        document = {name: _document(report) for name, report in reports.items()}
        _print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        for text in violations:
            _print(text)
        for name, report in reports.items():
            if report.not_reached:
                _print(f"{name} did not reach: {', '.join(report.not_reached)}")
        tried = "; ".join(part.sentence(reports[part.name]) for part in PARTS)
        _print(
            f"{tried}: {len(violations) or 'no'} violation{'' if len(violations) == 1 else 's'} of twelve invariants."
        )
    return 1 if violations else 0


def _document(report: Report) -> dict[str, object]:
    return {
        "counts": dict(report.counts),
        "reached": dict(sorted(report.reached.items())),
        "not_reached": report.not_reached,
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
