"""What really happened, from the two witnesses that survive every crash: the backend's calls and the counter's file."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store import Life
from tests.support.backend import Call

Steps = Mapping[Life, Sequence[Any]]


@dataclass(slots=True)
class Seen:
    """By life, in order: which model calls were made (their numbers in the rollout), which tools ran, who verified."""

    calls: dict[Life, list[int]] = field(default_factory=lambda: defaultdict(list))
    made: dict[Life, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """The same calls as the backend records them: with tokens generated, tokens continued, and how they ended."""
    tools: dict[Life, list[Any]] = field(default_factory=lambda: defaultdict(list))
    verified: list[Life] = field(default_factory=list)

    def exactly(self, *, calls: Steps, tools: Steps, verified: Iterable[Life]) -> None:
        """Nothing else than this happened; who did nothing is left out."""
        wanted = Seen(_told(calls), {}, _told(tools), list(verified))
        found = (dict(self.calls), dict(self.tools), _sorted(self.verified))
        assert found == (wanted.calls, wanted.tools, _sorted(wanted.verified)), f"\nseen\n{self}\nexpected\n{wanted}"

    def exact_calls(self, calls: Steps) -> None:
        """Exactly these model calls were made."""
        wanted = Seen(_told(calls))
        assert dict(self.calls) == wanted.calls, f"\nseen\n{self}\nexpected\n{wanted}"

    def continued(self, life: Life) -> list[int]:
        """How many tokens each model call of a life had from before."""
        return [call.continued for call in self.made.get(life, [])]

    def generated(self, life: Life) -> list[int]:
        """How many tokens each model call of a life generated."""
        return [call.generated for call in self.made.get(life, [])]

    def __str__(self) -> str:
        lines = [f"  {life} calls {self._numbers(life)}" for life in _sorted(self.calls)]
        lines += [f"  {life} tools {self.tools[life]}" for life in _sorted(self.tools)]
        return "\n".join([*lines, f"  verified {list(map(str, _sorted(self.verified)))}"])

    def _numbers(self, life: Life) -> str:
        made = self.made.get(life, [])
        told = [f"{call.state} {call.continued}+{call.generated}" for call in made]
        return f"{self.calls[life]}" + (f"  ({', '.join(told)})" if told else "")


def _told(steps: Steps) -> dict[Life, list[Any]]:
    return {life: list(those) for life, those in steps.items() if those}


def _sorted(lives: Iterable[Life]) -> list[Life]:
    return sorted(lives, key=lambda life: (life.rollout_id, life.epoch, life.attempt, life.n))


def seen_by(calls: Sequence[Call], counter_log: Path) -> Seen:
    """Read both witnesses. Model calls are numbered in each rollout by the first appearance of their prompts."""
    seen, prompts = Seen(), defaultdict[str, list[str]](list)
    for call in calls:
        if call.life is None:
            continue  # The probes of a model server.
        life = Life.parse(call.life)
        known = prompts[life.rollout_id]
        if call.prompt_sha256 not in known:
            known.append(call.prompt_sha256)
        seen.calls[life].append(known.index(call.prompt_sha256) + 1)
        seen.made[life].append(call)
    for line in counter_log.read_text().splitlines() if counter_log.exists() else ():
        event = json.loads(line)
        life = Life.parse(event["life"])
        if event["kind"] == "verify":
            seen.verified.append(life)
        elif event["kind"] == "tool":
            seen.tools[life].append(event["what"])
    return seen
