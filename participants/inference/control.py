"""What a test tells the backend to do with calls: hold them, fail them, slow them down.

A hold takes calls that match it, those that run already included, and stops each when it has generated `after_tokens`;
a call that is past that stops where it is. It goes on taking calls, up to `times`, until it is released. Everything
that was generated before the stop is with the client. A failure answers matching calls with a status, or breaks their
stream.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import anyio
from pydantic import BaseModel, ConfigDict, Field

from .calls import CallRecord

MAX_TOKENS_PER_S = 1e9


class Strict(BaseModel):
    """A body of a control route; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Match(Strict):
    """Which calls; everything given must hold, and nothing given means all."""

    nth: int | None = None
    """The number of the call, from 1."""
    substring: str | None = None
    """Stands in the prompt's text, marks of the template included."""
    dialect: str | None = None
    headers: dict[str, str] = {}
    """Recorded headers with exactly these values."""

    def takes(self, record: CallRecord, prompt: str) -> bool:
        """Whether a call is meant."""
        return (
            self.nth in {None, record.number}
            and self.dialect in {None, record.dialect}
            and (self.substring is None or self.substring in prompt)
            and all(record.headers.get(name.lower()) == value for name, value in self.headers.items())
        )


class HoldOrder(Strict):
    """Hold calls."""

    match: Match = Match()
    after_tokens: Annotated[int, Field(ge=0)] = 0
    times: Annotated[int, Field(ge=1)] | None = None


class FailOrder(Strict):
    """Fail calls."""

    match: Match = Match()
    times: Annotated[int, Field(ge=1)] = 1
    status: Annotated[int, Field(ge=400, le=599)] = 500
    after_tokens: Annotated[int, Field(ge=0)] | None = None
    """If given, the reply breaks off after that many tokens instead; without a stream the connection just closes."""


class Pace(Strict):
    """How fast calls run; what is left out stays as it is when sent, and None means no limit."""

    tokens_per_s: Annotated[float, Field(gt=0, le=MAX_TOKENS_PER_S)] | None = None
    """For each call."""
    latency_s: Annotated[float, Field(ge=0)] = 0.0
    """Before the first token of each call."""
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    """Calls that generate at once; others wait."""


@dataclass(slots=True, eq=False)
class Hold:
    """A hold that stands."""

    number: int
    order: HoldOrder
    taken: int = 0


@dataclass(slots=True, eq=False)
class Failure:
    """A failure that is still to happen."""

    order: FailOrder
    left: int


@dataclass(slots=True, eq=False)
class LiveCall:
    """A call in progress, as far as control is concerned."""

    record: CallRecord
    prompt: str
    """Its prompt as text; empty while there is no control."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    holds: list[Hold] = field(default_factory=list)
    gate: anyio.Event | None = None
    """Set to let it go on, while it is held."""
    failure: FailOrder | None = None


class Board:
    """All orders that stand, and the calls in progress."""

    def __init__(self, pace: Pace) -> None:
        self._initial = pace
        self.pace = pace
        self.live: dict[int, LiveCall] = {}
        self._holds: dict[int, Hold] = {}
        self._failures: list[Failure] = []
        self._numbers = 0
        self.places = Places(pace.max_concurrency)

    def enter(self, call: LiveCall) -> None:
        """A call arrived: see which orders take it."""
        self.live[call.record.number] = call
        for failure in self._failures:
            if failure.left and failure.order.match.takes(call.record, call.prompt):
                failure.left -= 1
                call.failure = failure.order
                break
        self._failures = [failure for failure in self._failures if failure.left]
        for hold in self._holds.values():
            _take(hold, call)

    def leave(self, call: LiveCall) -> None:
        """A call has ended."""
        self.live.pop(call.record.number, None)

    def hold(self, order: HoldOrder) -> int:
        """Let an order stand; its number."""
        self._numbers += 1
        hold = Hold(self._numbers, order)
        self._holds[hold.number] = hold
        for call in self.live.values():
            _take(hold, call)
        return hold.number

    def fail(self, order: FailOrder) -> None:
        """Let the next calls that match fail."""
        self._failures.append(Failure(order, order.times))

    def release(self, number: int | None) -> int:
        """End a hold, or all of them; how many calls go on."""
        ended = list(self._holds.values()) if number is None else [self._holds[number]]
        for hold in ended:
            del self._holds[hold.number]
        return self._loosen(self.live.values(), ended)

    def release_call(self, number: int) -> int:
        """Free one call from the holds that have it now; the holds stand."""
        call = self.live.get(number)
        return self._loosen([call], list(call.holds)) if call else 0

    def _loosen(self, calls: Iterable[LiveCall], ended: list[Hold]) -> int:
        freed = 0
        for call in calls:
            call.holds = [hold for hold in call.holds if hold not in ended]
            if call.gate and not stops(call):
                call.gate.set()
                freed += 1
        return freed

    def reset(self) -> None:
        """No order stands any more; calls in progress are aborted."""
        self.set_pace(self._initial)
        self._holds, self._failures = {}, []
        for call in list(self.live.values()):
            call.scope.cancel()

    def set_pace(self, pace: Pace) -> None:
        """Go on at another pace, at once."""
        self.pace = pace
        self.places.set_limit(pace.max_concurrency)


class Places:
    """The places of calls that generate at once; who waits gets one in order of arrival."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[anyio.Event] = deque()

    async def take(self) -> None:
        """Wait for a place."""
        turn = anyio.Event()
        self._waiting.append(turn)
        self._hand_out()
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self.give_back()
            else:
                self._waiting.remove(turn)
            raise

    def give_back(self) -> None:
        """Leave a place to the next."""
        self._taken -= 1
        self._hand_out()

    def set_limit(self, limit: int | None) -> None:
        """Have more places or fewer; nobody loses the one that he has."""
        self._limit = limit
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and (self._limit is None or self._taken < self._limit):
            self._taken += 1
            self._waiting.popleft().set()


def _take(hold: Hold, call: LiveCall) -> None:
    order = hold.order
    used_up = order.times is not None and hold.taken >= order.times
    if not used_up and order.match.takes(call.record, call.prompt):
        hold.taken += 1
        call.holds.append(hold)


def stops(call: LiveCall) -> bool:
    """Whether a call is to stop where it is now."""
    return any(hold.order.after_tokens <= call.record.generated for hold in call.holds)


def tokens_until_stop(call: LiveCall, most: int) -> int:
    """How many tokens a call may generate in one go, at most this many."""
    ahead = [hold.order.after_tokens for hold in call.holds]
    if call.failure and call.failure.after_tokens is not None:
        ahead.append(call.failure.after_tokens)
    return max(min([most, *(stop - call.record.generated for stop in ahead)]), 1)
