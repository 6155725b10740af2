"""A verifier whose rewards are decided for a whole cohort: who collects it, who waits, who decides, what is kept.

Sessions are stateless and stay at the worker of their rollout. The state of a cohort stays at the worker that owns its
key: verify asks there, by the inner route `JOIN`, and is answered once the cohort is over. Rules that hold here:

    a join is a member's and nobody else's: it acts for the life that makes it. No life is entered for it, so a rollout
    has one record, at the worker of its session; a life that is over, or older than the member's, is refused
    the task of one waiting join decides; where it is cancelled, another one takes over, and what is made is kept
    who gives up takes only its waiting away. Who is told of a failure, or whose life ends, leaves what is undecided
    joins are taken and decisions are made only while admission is open: a commit writes one point in time

    crash point                                what happens after a restore
    undecided                                  members verify again, and so rebuild the cohort
    decided, and not every member knows it     those who verify again are told the same; nobody waits for the others

A prepare never waits for a verify, which is of mode `replay`; a waiting join holds nothing that it waits for.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import BaseModel, ConfigDict, Field

from store import Life

from ..data import CallId, Reply, Request
from ..errors import Code, ParticipantError
from ..fences import Floor
from ..routing import routing_key
from ..sessions import ResourcesSession, body_of, parse
from ..telemetry.operations import refusing
from .cohort import Cohort, CohortKey, CohortLimits, Joining, Member, Phase
from .cohorts import Cohorts
from .judging import JudgingServer

JOIN = "/cohorts/join"
_GONE = frozenset({Code.STALE_LIFE, Code.STALE_CALL})
"""What a call for a member says whose life is over."""


class Join(BaseModel):
    """The body of a join."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str = Field(min_length=1, max_length=1000)
    group: str = Field(max_length=500)
    attempt: int = Field(ge=0)
    index: int = Field(ge=0)
    answer: dict[str, Any]


class MemberGone(Exception):
    """A decision cannot be made, because the life of a member is over."""

    def __init__(self, indices: Collection[int]) -> None:
        """Their indices."""
        self.indices = frozenset(indices)
        super().__init__(f"members {sorted(self.indices)} are gone")


@dataclass(slots=True)
class _Room:
    """Those who wait for one cohort."""

    news: anyio.Event = field(default_factory=anyio.Event)
    waiting: int = 0
    deciding: bool = False


class CohortServer(JudgingServer):
    """Base of verifiers of cohorts; a subclass says what is compared (`joining`) and decides (`decide`)."""

    checkpoint_mode = "stateless"
    checkpoint_verify = "replay"
    ends_with_client = True
    """A client that has gone waits for nothing, and a call that is sent again does the same again."""

    def __init__(self, name: str = "main", *, size: int, limits: CohortLimits, **options: Any) -> None:
        """Cohorts of `size` members."""
        super().__init__(name, **options)
        self.size = size
        self.cohorts = Cohorts(size, limits, self._tell)
        self._limits = limits
        self._rooms: dict[Cohort, _Room] = {}

    # What a subclass says

    @abstractmethod
    def joining(self, row: dict[str, Any]) -> Join:
        """The member that a row with its response is. Raises `invalid_request`."""

    @abstractmethod
    def load_answer(self, answer: dict[str, Any]) -> tuple[Any, str]:
        """What a join brings, read, and the digest of all of it that counts. Raises `invalid_request`."""

    @abstractmethod
    async def decide(self, cohort: Cohort, members: Sequence[Member]) -> list[float]:
        """The reward of each member, in order; `cohort.kept` is there for parts that are made.

        Raises MemberGone; `judge_failed` or `cohort_failed`, which end the cohort; any other ParticipantError, which is
        told to those who wait, and the cohort is collected anew.
        """

    # Calls

    def routing_key(self, request: Request) -> str | None:
        """A join belongs to the worker of its cohort; all else is as everywhere."""
        if request.route == JOIN and isinstance(request.body, dict) and isinstance(request.body.get("key"), str):
            return str(request.body["key"])
        return routing_key(request, self.role)

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """Join the cohort, and wait until it is over."""
        asked = self.joining(row)
        reply = await self.ask_owner(asked.key, JOIN, asked.model_dump())
        if not reply.ok:
            raise ParticipantError.from_body(reply.status, reply.body)
        group = asked.group or None
        return {**reply.body, "group_id": group, "group_attempt": asked.attempt, "rollout_index": asked.index}

    async def handle(self, request: Request) -> Reply:
        """Serve one data call, or a join of a sibling."""
        if request.route != JOIN:
            return await super().handle(request)
        if request.call is not None and request.call.caller != self.role:
            raise ParticipantError(Code.INVALID_REQUEST, f"{JOIN} is for {self.role} itself, and no tool of a model")
        asked = parse(Join, body_of(request))
        self.check_member(request.life)
        await self.gate.wait_open()
        self.check_member(request.life)
        return Reply(200, {"reward": await self._reward(self._joined(asked, request.life, request.call))})

    def check_member(self, life: Life | None) -> None:
        """Refuse a life that is known to be over, or not to have begun. Raises `stale_life` and such."""
        if life is None:
            return
        self.check_adopted(life)
        if 0 < self.epoch < life.epoch:
            problem = f"{life} is of epoch {life.epoch}, and {self.role} knows {self.epoch}: adopt comes first"
            raise ParticipantError(Code.INVALID_REQUEST, problem, {"epoch": self.epoch})
        with refusing(self.role):
            self.fences.check_not_ended(life)

    def _joined(self, asked: Join, life: Life | None, call: CallId | None) -> Joining:
        answer, digest = self.load_answer(asked.answer)
        if asked.index >= self.size:
            problem = f"index {asked.index} is none of a cohort of {self.size}: run as many repeats as it has members"
            raise ParticipantError(Code.INVALID_REQUEST, problem)
        key = CohortKey(text=asked.key, group=asked.group, attempt=asked.attempt)
        boundary = call.boundary if call else None
        return Joining(key=key, index=asked.index, life=life, digest=digest, answer=answer, boundary=boundary)

    # Waiting and deciding

    async def _reward(self, asked: Joining) -> float:
        cohort = self.cohorts.join(asked, self._now())
        ends = self._now() + self._limits.waiter_timeout_s
        with self._room_of(cohort) as room:
            while True:
                await self.gate.wait_open()
                now = self._now()
                self.cohorts.expire(cohort, now)
                if (reward := _reward_in(cohort, asked)) is not None:
                    return reward
                if now >= ends:
                    self.cohorts.remove(cohort, asked.index, now)
                    waited = f"{asked.key.text} was waited for {self._limits.waiter_timeout_s:g} s"
                    raise ParticipantError(Code.COHORT_FAILED, f"{waited}, and lacks the indices {cohort.missing}")
                left = min(ends, self.cohorts.ends_at(cohort)) - now
                if cohort.phase is Phase.EVALUATING and not room.deciding:
                    await self._decide(cohort, room, left)
                else:
                    await self._wait(room.news, left)

    @contextmanager
    def _room_of(self, cohort: Cohort) -> Iterator[_Room]:
        room = self._rooms.setdefault(cohort, _Room())
        room.waiting += 1
        try:
            yield room
        finally:
            room.waiting -= 1
            if not room.waiting:
                del self._rooms[cohort]

    def _tell(self, cohort: Cohort) -> None:
        room = self._rooms.get(cohort)
        if room is not None:
            room.news.set()
            room.news = anyio.Event()

    async def _wait(self, news: anyio.Event, left_s: float) -> None:
        try:
            async with self.gate.time_limit(left_s, "waiting"):
                await news.wait()
        except ParticipantError as error:
            if error.code is not Code.DEADLINE_EXCEEDED:
                raise

    async def _decide(self, cohort: Cohort, room: _Room, left_s: float) -> None:
        """In the task of one who waits; what comes of it is for all."""
        room.deciding = True
        of, members = cohort.answers, [cohort.members[index] for index in sorted(cohort.members)]
        try:
            outcome = await self._outcome(cohort, members, left_s)
            await self.gate.wait_open()
            if cohort.phase is Phase.EVALUATING and cohort.answers == of:
                self._apply(cohort, members, outcome)
        finally:
            room.deciding = False
            self._tell(cohort)

    async def _outcome(
        self, cohort: Cohort, members: Sequence[Member], left_s: float
    ) -> list[float] | ParticipantError | MemberGone | None:
        """What a decision comes to, as a value; None where the time is over."""
        problem: ParticipantError | MemberGone
        try:
            async with self.gate.time_limit(left_s, "the evaluation"):
                try:
                    return await self.decide(cohort, members)
                except (ParticipantError, MemberGone) as error:
                    problem = error
            return problem
        except ParticipantError:
            return None

    def _apply(
        self, cohort: Cohort, members: Sequence[Member], outcome: list[float] | ParticipantError | MemberGone | None
    ) -> None:
        now = self._now()
        match outcome:
            case list():
                self.cohorts.decide(cohort, cohort.answers, outcome, now)
            case MemberGone():
                for member in members:
                    if member.index in outcome.indices and member.life is not None:
                        self.cohorts.leave(member.life, now)
            case ParticipantError(code=Code.JUDGE_FAILED | Code.COHORT_FAILED):
                self.cohorts.fail(cohort, outcome.code, outcome.message, now)
            case ParticipantError():  # Of the run's own servers: whoever comes again finds the cohort anew.
                self.cohorts.scrap(cohort, outcome.code, outcome.message, now)

    # Ends of lives

    async def retire(self, lives: Sequence[Life], timeout_s: float) -> list[Life]:
        """As every holder does; nothing is decided with their answers any more."""
        for life in lives:
            self.cohorts.leave(life, self._now())
        return await super().retire(lives, timeout_s)

    def finish(self, life: Life) -> None:
        """As every holder does; what is undecided goes on without it."""
        super().finish(life)
        self.cohorts.done(life, self._now())

    def raise_floor(self, floor: Floor) -> None:
        """As every holder does."""
        super().raise_floor(floor)
        self.cohorts.raise_floor(floor, self._now())

    def adopted(self, epoch: int) -> None:
        """As every holder does."""
        super().adopted(epoch)
        self.cohorts.adopted(epoch)

    # Its own state

    def counts(self) -> dict[str, int]:
        """For the status."""
        undecided = self.cohorts.undecided
        return {**super().counts(), "cohorts": undecided, "cohorts_decided": len(self.cohorts) - undecided}

    def export_own(self, scope: Collection[Life]) -> Any:
        """What is decided and concerns the scope."""
        return {"cohorts": self.cohorts.export(scope)}

    def import_own(self, states: Sequence[Any], scope: Collection[Life], epoch: int) -> None:
        """Stage what is decided and belongs to this worker."""
        try:
            items = [item for state in states for item in state["cohorts"]]
        except (KeyError, TypeError) as error:
            problem = f"the own state of {self.role} is malformed: {error!r:.200}"
            raise ParticipantError(Code.CORRUPT_CHECKPOINT, problem) from error
        self.cohorts.stage(items, scope, epoch, self.place.owns, self._now())

    def activate(self) -> None:
        """As every holder does, with what is decided."""
        super().activate()
        self.cohorts.activate(self._now())

    def settle(self) -> None:
        """As every holder does."""
        super().settle()
        self.cohorts.settle()

    async def discard(self) -> None:
        """As every holder does."""
        await super().discard()
        self.cohorts.discard()


def _reward_in(cohort: Cohort, asked: Joining) -> float | None:
    """The member's reward; None while there is none. Raises why there will be none."""
    if cohort.phase is Phase.FAILED:
        raise cohort.error()
    member = cohort.members.get(asked.index)
    if member is None or member.life != asked.life or member.digest != asked.digest:
        raise ParticipantError(Code.STALE_LIFE, f"{asked.life} is no member of {asked.key.text} any more")
    return member.reward


def is_gone(error: ParticipantError) -> bool:
    """Whether an error of a call for a member says that its life is over."""
    return error.code in _GONE
