"""What the kit found: for each rule how it ended, and where it is broken the shortest sequence that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


class Violation(Exception):
    """A rule is broken."""

    def __init__(self, said: str, steps: Sequence[str] = ()) -> None:
        """`said` is what came instead of what; `steps` are the calls that lead there."""
        self.said = said
        self.steps = tuple(steps)
        super().__init__(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """How one rule ended."""

    rule: str
    sentence: str
    outcome: Literal["kept", "broken", "not tried"]
    said: str = ""
    """What came instead of what; or why the rule was not tried."""
    steps: tuple[str, ...] = ()
    """The shortest sequence of calls that was found to show it."""
    tried: int = 0
    """Groups of cases."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """What is broken, for people."""
        lines = [f"{self.rule}: {self.sentence}"]
        lines += [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([*lines, f"  {self.said}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceReport:
    """How all of them ended."""

    server: str
    checkpoint_mode: str
    checkpoint_verify: str
    cases: int
    rules: tuple[RuleOutcome, ...]
    warnings: tuple[str, ...] = ()
    export_bytes: int = 0
    """The largest export of one session that was seen."""
    export_s: float = 0.0
    """The longest that one took."""

    @property
    def broken(self) -> list[RuleOutcome]:
        """The rules that are broken."""
        return [rule for rule in self.rules if rule.outcome == "broken"]

    @property
    def text(self) -> str:
        """All that is broken, for people."""
        return "\n".join(rule.text for rule in self.broken)


@dataclass(slots=True)
class Measures:
    """What the trials of one server have seen on their way."""

    rewards: set[str] = field(default_factory=set)
    verified: int = 0
    export_bytes: int = 0
    export_s: float = 0.0
    notes: dict[str, None] = field(default_factory=dict)
    """Of the rule that is tried now."""

    def note(self, text: str) -> None:
        """Say something of the rule that is tried now, once."""
        self.notes[text] = None

    def exported(self, size: int, seconds: float) -> None:
        """One export."""
        self.export_bytes = max(self.export_bytes, size)
        self.export_s = max(self.export_s, seconds)
