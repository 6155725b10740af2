"""The checker: all invariants over one outcome. It sees the history and the output, and nothing else."""

from collections.abc import Iterator

from orchestrator.collect.rows import Rollout

from . import checks_of_lives as lives
from . import checks_of_rounds as rounds
from .findings import Violation
from .simulation import Outcome
from .view import View


def check(outcome: Outcome, rollouts: list[Rollout]) -> list[Violation]:
    """What is wrong with a simulation, the first finding of each sort first."""
    found = list(_check(outcome, [rollout.rollout_id for rollout in rollouts]))
    return sorted(found, key=lambda violation: (violation.invariant, violation.n))


def _check(outcome: Outcome, rollouts: list[str]) -> Iterator[Violation]:
    view, scenario = View(outcome.history), outcome.scenario
    yield from (Violation(0, defect) for defect in outcome.broken)
    rows = lives.rows_of(outcome.output)
    if outcome.stuck:
        yield Violation(4, f"the run does not come to its end: {outcome.stuck}")
    else:
        yield from lives.every_rollout_is_in_the_output(view, rollouts, rows)
        yield from lives.nothing_is_left(view)
    yield from lives.only_the_newest_life(view)
    yield from rounds.published_restores(view)
    yield from rounds.epochs_are_obeyed(view)
    yield from rounds.all_stood_still(view, scenario)
    yield from lives.delivered_once(view)
    yield from lives.none_vanishes(view)
    yield from rounds.older_checkpoints_stand(view)
    yield from rounds.epochs_rise(view)
    yield from rounds.admission_reopens(view, scenario)
    yield from rounds.all_or_nothing(view, scenario)
    yield from rounds.heads_are_kept(view)
    yield from lives.lineages(view, rows)
    yield from rounds.deadlines_hold(view)
    yield from lives.nothing_is_repeated(view)
    yield from lives.counts_are_exact(rows)
