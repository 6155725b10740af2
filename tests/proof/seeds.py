"""The part of the proof that simulates: seed after seed, each judged; a failing one is made smaller and told."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count as count_from

from participants import Code

from .checker import check
from .controllers import rollouts_of
from .findings import Violation
from .part import Report, Task
from .scenario import Scenario, draw
from .shrinking import shrink
from .simulation import Outcome, simulate

ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "unauthorized": ("simulated processes have no tokens", "test_control_http.py"),
    "invalid_request": ("nobody here asks for what is malformed", "test_control_http.py"),
    "unsupported_version": ("there is one version of everything", "test_control_http.py"),
    "checkpoint_conflict": ("no controller asks for two scopes in a round", "test_book.py"),
    "restart_in_scope": ("controllers leave restarts out of the scope", "test_plane.py"),
    "scope_mismatch": ("controllers name all that they have dispatched", "test_plane_restore.py"),
    "step_failed": ("answers a route that is not used", "test_environment.py"),
    "deadline_exceeded": (
        "ends an episode in its environment, and is counted as `failure: timeout`",
        "test_episode.py",
    ),
    "judge_failed": ("there is no judge", "verifiers/test_judging.py"),
    "cohort_failed": ("there are no cohorts", "verifiers/test_cohorts.py"),
    "executor_failed": ("no program is run", "sandbox/test_running.py"),
    "agent_failed": ("no program is run", "test_harness_agent.py"),
    "internal": ("is a defect, and a violation here", "test_control_http.py"),
}
"""Codes that no seed can meet: why not, and where they are tested, below tests/participants."""


def simulated(report: Report) -> str:
    """The words of the simulation in the sentence."""
    c = report.counts
    return (
        f"{c['seeds']:,} seeds of the whole system: {c['kills']:,} kill points with {c['crashed processes']:,} crashed "
        f"processes among {c['faults']:,} faults, {c['reorderings']:,} reordered steps, {c['checkpoints']:,} "
        f"checkpoints, {c['restores']:,} restores, {c['claims']:,} claims and {c['rows']:,} rows"
    )


def judged(scenario: Scenario) -> tuple[Outcome, list[Violation]]:
    """One scenario, simulated and checked."""
    outcome = simulate(scenario)
    return outcome, check(outcome, rollouts_of(scenario))


def seeds(first: int, number: int) -> Iterator[Task]:
    """One task a seed; of 0 without an end."""
    numbers: Iterable[int] = range(first, first + number) if number else count_from(first)
    yield from (partial(tried, seed) for seed in numbers)


def tried(seed: int, until: float) -> Report:
    """One seed, judged; a failing one is made smaller."""
    report, scenario = Report(), draw(seed)
    outcome, found = judged(scenario)
    count(report.counts, outcome)
    report.reached.update(outcome.history.reached)
    if found:
        report.violations.append(told(scenario, found))
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
    yield from (f"code: {code}" for code in Code if code not in ELSEWHERE)
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
                                                         "OutcomeUnknown", "ServersGone", "RestoreFailed", "NoSpace",
                                                         "AccessDenied", "IOFailed"))  # fmt: skip
    yield from (f"failure: {why}" for why in ("timeout", "model_failed"))  # One of a lost session is restored instead.


EXPECTED = tuple(expected())


def told(scenario: Scenario, found: list[Violation]) -> str:
    """A failing seed, made as small as it gets, with the command that replays it."""
    small, left = shrink(scenario, found[0].invariant)
    lines = [f"seed {scenario.seed}: {left[0] if left else found[0]}"]
    lines += [f"    {violation}" for violation in (left or found)[1:4]]
    lines.append(f"    replay: python -m tests.proof --seed {scenario.seed}")
    lines.append(f"    smallest: {len(small.amounts)} rollouts, {len(small.faults)} faults")
    lines += [f"        {fault}" for fault in small.faults]
    return "\n".join(lines)
