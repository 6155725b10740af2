"""The part of the proof that simulates: seed after seed, each judged; a failing one is made smaller and told."""

import time
from collections import Counter
from collections.abc import Iterator

from participants import Code

from .checker import check
from .controllers import rollouts_of
from .findings import Violation
from .part import Budget, Report
from .scenario import Scenario, draw
from .shrinking import shrink
from .simulation import Outcome, simulate

NOT_OF_THIS = frozenset({"unauthorized", "unsupported_version", "judge_failed", "cohort_failed", "executor_failed",
                         "agent_failed", "internal"})  # fmt: skip
"""Codes of other tests: of HTTP and formats, of verifiers and programs that are not simulated here, of defects."""


def judged(scenario: Scenario) -> tuple[Outcome, list[Violation]]:
    """One scenario, simulated and checked."""
    outcome = simulate(scenario)
    return outcome, check(outcome, rollouts_of(scenario))


def run_seeds(budget: Budget) -> Report:
    """As many seeds as there is time for."""
    report, ends = Report(), time.perf_counter() + budget.seconds
    seed = budget.first
    while time.perf_counter() < ends and not (budget.seeds and seed - budget.first >= budget.seeds):
        scenario = draw(seed)
        outcome, found = judged(scenario)
        count(report.counts, outcome)
        report.reached.update(outcome.history.reached)
        if found:
            report.violations.append(told(scenario, found))
        seed += 1
    report.not_reached = [name for name in expected() if not any(name in each for each in report.reached)]
    return report


def count(counts: Counter[str], outcome: Outcome) -> None:
    """What one simulation adds to the sentence."""
    history = outcome.history
    kinds = Counter(event.what for event in history.events)
    kills = sum(event["kind"] in ("kill", "kill_all", "kill_controller") for event in history.of("fault"))
    told_names = Counter(event["name"] for event in history.of("told"))
    counts.update(
        {
            "seeds": 1,
            "kills": kills,
            "crashed processes": kinds["crashed"],
            "faults": kinds["fault"],
            "reorderings": outcome.steps,
            "checkpoints": told_names["checkpoint"],
            "restores": len({event["round"] for event in history.of("settled")}),
            "claims": kinds["claimed"],
            "data calls": kinds["asked"],
            "control calls": kinds["control"],
            "rows": told_names["row"],
            "virtual seconds": int(outcome.virtual_s),
        }
    )


def expected() -> Iterator[str]:
    """What a long run has to reach at least once: each kind of fault, each code, each error of coordination."""
    yield from (f"code: {code}" for code in Code if code not in NOT_OF_THIS)
    for kind in ("kill", "kill_all", "kill_controller", "rival", "hang", "hang_controller", "partition"):
        yield f"fault: {kind}"
    yield from ("network_lost", "network_broken", "network_twice", "network_late", "store_slow", "store_stale")
    yield from ("store: unsent", "store: reply_lost", "store: full", "store: denied", "store: broken", "store: cut")
    yield from ("put torn with its sender", "lost with its sender")
    yield from ("told: blocked", "told: checkpoint_failed", "told: prune_failed", "told: adopted", "told: went_on",
                "told: output_failed", "told: server_lost", "told: failure")  # fmt: skip
    yield from (f"raised: {name}" for name in ("PrepareFailed", "CommitFailed", "RenewFailed", "RestoreFailed",
                                               "ControlFailed", "Blocked"))  # fmt: skip
    yield from (f"controller ended: {name}" for name in ("Fenced", "ControllerAlive", "StoreUnavailable",
                                                         "OutcomeUnknown", "ServersGone"))  # fmt: skip


def told(scenario: Scenario, found: list[Violation]) -> str:
    """A failing seed, made as small as it gets, with the command that replays it."""
    small, left = shrink(scenario, found[0].invariant)
    lines = [f"seed {scenario.seed}: {left[0] if left else found[0]}"]
    lines += [f"    {violation}" for violation in (left or found)[1:4]]
    lines.append(f"    replay: python -m tests.proof --seed {scenario.seed}")
    lines.append(f"    smallest: {len(small.amounts)} rollouts, {len(small.faults)} faults")
    lines += [f"        {fault}" for fault in small.faults]
    return "\n".join(lines)
