"""Tries the rules on a class: chooses cases, gives each trial a limit, and shrinks what breaks a rule."""

import math
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import anyio

from participants import Conformance, ParticipantError, ResourcesServer
from store import StoreError

from ..errors import CoordinationError
from .fresh import ChildDied
from .reports import ConformanceReport, Measures, RuleOutcome, Violation
from .rules import BY_NAME, RULES, Rule, why_not
from .shrinking import shrink
from .stand import first_of
from .subject import Group, Subject, groups_of
from .trials import Trial

RULE_S = 15.0
TRIAL_S = 600.0
ENOUGH_CASES = 10
"""Fewer, of more that there are, say nothing about the rewards of all."""
"""What hangs for so long is broken."""
RESTART_ONLY = (
    "no checkpoint_mode is declared: rollouts at this server start over after a crash, and no checkpoint holds them. "
    "Declare exported, or stateless, to have the rules about checkpoints tried"
)


class NoCases(ValueError):
    """There is nothing to try a class with."""


class UnknownRule(ValueError):
    """There is no rule of this name."""


def target_of(server: type[ResourcesServer]) -> str:
    """`module:Class` of a class that another process finds under this name; empty where none does."""
    module, name = server.__module__, server.__qualname__
    return (
        "" if module == "__main__" or getattr(sys.modules.get(module), name, None) is not server else f"{module}:{name}"
    )


async def check_conformance(
    server: type[ResourcesServer],
    conformance: Conformance | None = None,
    *,
    rules: Collection[str] = (),
    thorough: bool = False,
    seed: int = 0,
    rule_s: float = RULE_S,
) -> ConformanceReport:
    """Try the rules on a class, with what it says of itself in `conformance` unless told otherwise.

    `rules` names some of them; without it all are tried. Once a rule has used up `rule_s` it begins nothing further,
    unless the trial is to be `thorough`. Raises NoCases, UnknownRule, and ConfigError
    where the class cannot be made.
    """
    given = server.conformance() if conformance is None else conformance
    if not given.cases:
        raise NoCases(f"{server.__name__} has no cases: write its `conformance`, a classmethod that gives them")
    subject = Subject(server, given, target_of(server))
    if unknown := set(rules) - BY_NAME.keys():
        raise UnknownRule(f"there is no rule {min(unknown)!r}")
    subject.make()  # What it refuses is told at once.
    trial = Trial(subject, thorough=thorough, seed=seed, groups=groups_of(given.cases))
    try:
        outcomes = [
            await _try_rule(trial, rule, math.inf if thorough else rule_s)
            for rule in RULES
            if not rules or rule.name in rules
        ]
    finally:
        await trial.aclose()
    return _report(subject, trial.measures, outcomes)


async def _try_rule(trial: Trial, rule: Rule, limit_s: float) -> RuleOutcome:
    began = time.monotonic()
    trial.ends = began + limit_s
    trial.measures.notes.clear()
    told = RuleOutcome(rule=rule.name, sentence=rule.sentence, outcome="not tried")
    if reason := why_not(rule, trial.subject):
        return replace(told, said=reason)
    groups, found = trial.choose(rule.most), None
    for number, group in enumerate(groups, 1):
        if number > 1 and trial.spent:
            break
        told = replace(told, outcome="kept", tried=number)
        found = await attempt(trial, rule, group)
        if found is not None:
            shorter = replace(trial, shortening=True, ends=math.inf)
            found = await shrink(group, found, partial(attempt, shorter, rule))
            told = replace(told, outcome="broken", said=found.said, steps=found.steps, tried=number)
            break
    return replace(told, notes=tuple(trial.measures.notes), seconds=time.monotonic() - began)


async def attempt(trial: Trial, rule: Rule, group: Group) -> Violation | None:
    """What a group of cases breaks; anything that goes wrong on the way counts."""
    try:
        async with trial.subject.trial():
            with anyio.fail_after(TRIAL_S):
                await rule.check(trial, group)
    except Exception as error:
        return _as_violation(first_of(error))
    return None


def _as_violation(error: BaseException) -> Violation:
    if isinstance(error, Violation):
        return error
    if isinstance(error, TimeoutError):
        return Violation(f"it did not come to an end within {TRIAL_S:g} s")
    if isinstance(error, ParticipantError | CoordinationError | StoreError | ChildDied):
        return Violation(str(error))
    raise error


def _report(subject: Subject, measures: Measures, outcomes: Sequence[RuleOutcome]) -> ConformanceReport:
    warnings = [] if subject.checkpoints else [RESTART_ONLY]
    enough = measures.verified >= min(ENOUGH_CASES, len(subject.conformance.cases))
    if enough and measures.verified > 1 and len(measures.rewards) == 1:
        [reward] = measures.rewards
        warnings.append(f"every case that was played got the reward {reward}: add cases that end otherwise")
    return ConformanceReport(
        server=subject.target or subject.server.__qualname__,
        checkpoint_mode=subject.server.checkpoint_mode,
        checkpoint_verify=subject.server.checkpoint_verify,
        cases=len(subject.conformance.cases),
        rules=tuple(outcomes),
        warnings=tuple(warnings),
        export_bytes=measures.export_bytes,
        export_s=measures.export_s,
    )
