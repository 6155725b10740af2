"""What `midflight conformance` has to say, and how it is printed for people."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType

from .exits import Exit
from .words import amount, cell, count, sentence, table_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRule:
    """How one rule ended."""

    rule: str
    sentence: str
    outcome: str
    """`kept`, `broken` or `not tried`."""
    said: str
    """What came instead of what; or why the rule was not tried."""
    steps: tuple[str, ...]
    """The shortest sequence of calls that shows it."""
    tried: int
    """Cases, or cohorts of them."""
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformed:
    """`conformance`."""

    server: str
    checkpoint_mode: str
    checkpoint_verify: str
    cases: int
    rules: tuple[TriedRule, ...]
    warnings: tuple[str, ...]
    export_bytes: int
    """The largest export of one session that was seen."""
    export_s: float
    """The longest that one took."""

    @property
    def exit(self) -> Exit:
        """One broken rule is enough."""
        return Exit.DAMAGE if any(rule.outcome == "broken" for rule in self.rules) else Exit.FINE


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRule:
    """One rule in a list."""

    rule: str
    sentence: str
    need: str
    """What a class must have or declare for it to apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleList:
    """`conformance --list`."""

    rules: tuple[ListedRule, ...]

    exit = Exit.FINE


def _rule_list(listed: RuleList) -> Iterable[RenderableType]:
    table = table_of("RULE", "NEEDS", "WHAT IT SAYS")
    for rule in listed.rules:
        table.add_row(*map(cell, [rule.rule, rule.need or "-", rule.sentence]))
    yield table


def _conformed(conformed: Conformed) -> Iterable[RenderableType]:
    table = table_of("RULE", "", "CASES", "TIME", right=("CASES", "TIME"))
    for rule in conformed.rules:
        cells = [rule.rule, rule.outcome, str(rule.tried or "-"), f"{rule.seconds:.1f} s" if rule.tried else "-"]
        table.add_row(*map(cell, cells), style="red" if rule.outcome == "broken" else "")
    yield table
    for rule in conformed.rules:
        if rule.outcome == "not tried":
            yield sentence(f"not tried: {rule.rule}: {rule.said}")
        for note in rule.notes:
            yield sentence(f"note: {rule.rule}: {note}")
    for rule in conformed.rules:
        if rule.outcome == "broken":
            yield from _broken(rule)
    for warning in conformed.warnings:
        yield sentence(f"warning: {warning}", "yellow")
    yield sentence(_summary(conformed))


def _broken(rule: TriedRule) -> Iterable[RenderableType]:
    yield sentence(f"broken: {rule.rule}: {rule.sentence}", "red")
    for number, step in enumerate(rule.steps, 1):
        yield sentence(f"  {number}. {step}")
    yield sentence(f"  {rule.said}")


def _summary(conformed: Conformed) -> str:
    number = sum(rule.outcome == "broken" for rule in conformed.rules)
    tried = sum(rule.outcome != "not tried" for rule in conformed.rules)
    kept = f"{number} of {count(tried, 'rule')} broken" if number else f"all of {count(tried, 'rule')} kept"
    modes = f"checkpoint_mode {conformed.checkpoint_mode}, checkpoint_verify {conformed.checkpoint_verify}"
    export = f"; an export has up to {amount(conformed.export_bytes)} and took {1000 * conformed.export_s:.1f} ms"
    return f"{conformed.server}: {kept}; {modes}{export if conformed.export_bytes else ''}"


CONFORMANCE_RENDERERS: dict[type, Callable[[Any], Iterable[RenderableType]]] = {
    Conformed: _conformed,
    RuleList: _rule_list,
}
