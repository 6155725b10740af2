"""One cohort: its phases, its members, who may be which of them, and what of it is written down. Pure.

collecting --fill--> evaluating --decide--> completed
    ^                    |
    +-------lose---------+            collecting or evaluating --fail--> failed
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from store import InvalidName, Life

from ..errors import Code, ParticipantError
from ..fences import Floor, position


class Phase(StrEnum):
    """Where a cohort stands."""

    COLLECTING = "collecting"
    EVALUATING = "evaluating"
    COMPLETED = "completed"
    FAILED = "failed"


class Event(StrEnum):
    """What moves it."""

    FILL = "fill"
    LOSE = "lose"
    DECIDE = "decide"
    FAIL = "fail"


TRANSITIONS: Mapping[tuple[Phase, Event], Phase] = {
    (Phase.COLLECTING, Event.FILL): Phase.EVALUATING,
    (Phase.COLLECTING, Event.LOSE): Phase.COLLECTING,
    (Phase.COLLECTING, Event.FAIL): Phase.FAILED,
    (Phase.EVALUATING, Event.LOSE): Phase.COLLECTING,
    (Phase.EVALUATING, Event.DECIDE): Phase.COMPLETED,
    (Phase.EVALUATING, Event.FAIL): Phase.FAILED,
}
OVER = frozenset({Phase.COMPLETED, Phase.FAILED})


def advance(phase: Phase, event: Event) -> Phase:
    """The next phase. Raises `invalid_phase`, naming both, where the table has no such pair."""
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise ParticipantError(Code.INVALID_PHASE, f"a cohort that is {phase} cannot {event}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortLimits:
    """How long, in seconds of active time, and how many."""

    collection_timeout_s: float = 1800.0
    """From the first member until the last one is there."""
    evaluation_timeout_s: float = 1800.0
    waiter_timeout_s: float = 1800.0
    """Of one verify, whatever its cohort does."""
    terminal_ttl_s: float = 21600.0
    """For which a cohort that is over is kept where no life of it is open in a run."""
    terminal_max: int = 4096
    """At most so many of those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortKey:
    """The name of a cohort."""

    text: str
    group: str = ""
    """Named by the row; empty for a cohort that is found by its task and prompt, and has one attempt only."""
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """One member that comes."""

    key: CohortKey
    index: int
    life: Life | None
    """None for a client that sends none."""
    digest: str
    """Of what is compared."""
    answer: Any = None
    boundary: int | None = None
    """Of its caller; None for a call without an id."""


@dataclass(slots=True)
class Member:
    """One that has come, with its newest life."""

    index: int
    life: Life | None
    digest: str
    answer: Any = None
    """Let go of once the cohort is over."""
    boundary: int | None = None
    reward: float | None = None
    pending: int = 0
    """The epoch in which a next life of it may still come; 0 for none."""
    done: bool = False
    """Its result is durable elsewhere: it never comes again."""

    @property
    def rollout(self) -> str:
        """Empty without a life."""
        return self.life.rollout_id if self.life else ""

    def passed(self, floor: Floor) -> bool:
        """Whether nobody can ask for its reward any more."""
        below = self.life is not None and position(self.life) < floor
        return self.done or (below and (not self.pending or self.pending < floor.epoch))


@dataclass(slots=True, eq=False)
class Cohort:
    """Those who are decided together."""

    key: CohortKey
    size: int
    since: float
    """When its phase began."""
    phase: Phase = Phase.COLLECTING
    members: dict[int, Member] = field(default_factory=dict)
    failure: tuple[Code, str] | None = None
    kept: dict[Any, Any] = field(default_factory=dict)
    """Parts of an evaluation that are made; whoever evaluates says what."""

    def __repr__(self) -> str:
        return f"<Cohort {self.key.text:.120} {self.phase}, {len(self.members)} of {self.size}>"

    @property
    def over(self) -> bool:
        """Whether it is decided, one way or the other."""
        return self.phase in OVER

    @property
    def answers(self) -> tuple[str, ...]:
        """The digests of all, in order: what an evaluation is of."""
        return tuple(self.members[index].digest for index in sorted(self.members))

    @property
    def missing(self) -> list[int]:
        """The indices that have no member."""
        return [index for index in range(self.size) if index not in self.members]

    def move(self, event: Event, now: float) -> None:
        """To the next phase."""
        self.phase, self.since = advance(self.phase, event), now

    def check(self, asked: Joining) -> None:
        """Refuse who cannot be this member. Raises `invalid_request`, `stale_life`, `stale_call` or `cohort_failed`."""
        member = self.members.get(asked.index)
        rollout = asked.life.rollout_id if asked.life else ""
        if rollout and any(m.rollout == rollout and m.index != asked.index for m in self.members.values()):
            raise ParticipantError(Code.INVALID_REQUEST, f"{rollout} has another index in {self.key.text} already")
        if member is None:
            return
        if member.rollout != rollout:
            problem = f"index {asked.index} of {self.key.text} is that of {member.rollout or 'a client without a life'}"
            raise ParticipantError(Code.INVALID_REQUEST, problem)
        newer = False
        if asked.life is not None and member.life is not None:
            if position(asked.life) < position(member.life):
                raise ParticipantError(Code.STALE_LIFE, f"{asked.life} is superseded by {member.life}")
            newer = position(asked.life) > position(member.life)
        if member.digest != asked.digest and (self.phase is Phase.COMPLETED or not newer):
            when = "was decided" if self.over else "has been joined"
            problem = f"{self.key.text} {when} with another answer of index {asked.index}"
            # A rollout that was generated again can have a reward with all others only.
            raise ParticipantError(Code.COHORT_FAILED if newer else Code.STALE_CALL, problem)

    def error(self) -> ParticipantError:
        """Why it failed; one of its own for everybody who is told."""
        code, message = self.failure or (Code.COHORT_FAILED, "")
        return ParticipantError(code, message)


def dump(cohort: Cohort) -> dict[str, Any]:
    """As JSON: what it came to, without the answers."""
    key = cohort.key
    members = [
        {"index": m.index, "life": str(m.life) if m.life else None, "digest": m.digest, "reward": m.reward}
        for m in cohort.members.values()
    ]
    failure = [cohort.failure[0].value, cohort.failure[1]] if cohort.failure else None
    named = {"key": key.text, "group": key.group, "attempt": key.attempt, "size": cohort.size}
    return {**named, "failure": failure, "members": members}


def load(item: Any, now: float) -> Cohort:
    """From `dump`. Raises `corrupt_checkpoint`."""
    try:
        key = CohortKey(text=str(item["key"]), group=str(item["group"]), attempt=int(item["attempt"]))
        members = [_load_member(each) for each in item["members"]]
        failure = item["failure"] and (Code(item["failure"][0]), str(item["failure"][1]))
        phase = Phase.FAILED if failure else Phase.COMPLETED
        cohort = Cohort(key, int(item["size"]), now, phase, {m.index: m for m in members}, failure or None)
        if phase is Phase.COMPLETED and (cohort.missing or any(m.reward is None for m in members)):
            raise ValueError("a decided cohort lacks a member or a reward")
        return cohort
    except (KeyError, TypeError, ValueError, InvalidName) as error:
        problem = f"a cohort in the server's own state is malformed: {error!r:.200}"
        raise ParticipantError(Code.CORRUPT_CHECKPOINT, problem) from error


def _load_member(item: Mapping[str, Any]) -> Member:
    reward = item["reward"]
    life = None if item["life"] is None else Life.parse(item["life"])
    return Member(int(item["index"]), life, str(item["digest"]), reward=None if reward is None else float(reward))
