"""One admitted generation on its way: what it continues, what has come of it, and so what a cut of it is.

A flight reads its backend's stream as it comes. Its prefix at any moment is what it continues, if anything, and
everything that has come since: a cut copies that, and touches neither the stream nor the backend.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import anyio

from .cuts import Prefix, Reading, Reason, sse
from .cuts.joining import combined
from .cuts.reading import ChoiceReader, objects
from .cuts.response_reading import ResponseReader
from .data import CallId, Request
from .errors import ParticipantError
from .generations import CHAT, RESPONSES
from .upstream import Chunks

CUT = "cut"
END_GRACE_S = 1.0
"""How long the end of a connection is waited for once the stream has said that it is over."""
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class Listening:
    """One stream of a backend, read as it comes. What is wrong with it is in the reading, and raises nothing."""

    def __init__(self, route: str) -> None:
        """`route` is the one that was asked."""
        self._parser = sse.Parser()
        self._reader: ResponseReader | ChoiceReader = (
            ResponseReader() if route == RESPONSES else ChoiceReader(chat=route == CHAT)
        )
        self._has_ends = route == RESPONSES
        self._failure: ParticipantError | None = None
        self.has_ids = False
        """Whether the id of a generated token has come."""
        self.over = False
        """Whether the stream has said that it is over, though its connection may still be open."""

    async def hear(self, chunks: Chunks) -> bytes | None:
        """The next bytes; None at the end. Raises `model_failed` where the stream breaks off."""
        if not self.over:  # The usual case has no scope: one for each token costs as much as reading it.
            return await self._heard(chunks)
        with anyio.move_on_after(END_GRACE_S):
            return await self._heard(chunks)
        return None

    async def _heard(self, chunks: Chunks) -> bytes | None:
        try:
            chunk = await anext(chunks)
        except StopAsyncIteration:
            return None
        self.feed(chunk)
        return chunk

    def feed(self, chunk: bytes) -> None:
        """More bytes."""
        if self.over or self._failure:
            return
        try:
            payloads = self._parser.feed(chunk)
        except ParticipantError as error:
            self._failure = error
            return
        if sse.DONE in payloads:
            self.over = True
            payloads = payloads[: payloads.index(sse.DONE)]
        events, self._failure = objects(payloads)
        self._reader.feed(events)
        if not self.has_ids:
            self.has_ids = self._reader.has_ids
        if self._has_ends and any(event.get("type") in _ENDS for event in events):
            self.over = True

    def reading(self) -> Reading:
        """What has come so far."""
        return self._reader.reading(self._failure)

    def prefix(self) -> Prefix:
        """Of that the prefix alone."""
        return self._reader.prefix()


class Flight:
    """One admitted call that is not finished."""

    __slots__ = ("_begun", "_stream", "done", "flights", "inside_wait", "request", "staged", "uncuttable")

    def __init__(
        self, request: Request, *, inside_wait: bool = False, begun: Prefix | None = None, uncuttable: str = ""
    ) -> None:
        """`begun` is what it continues; `uncuttable` the reason why it would be generated anew after a crash."""
        self.request = request
        self.inside_wait = inside_wait
        self.uncuttable = uncuttable
        self.done = False
        """Whether it came to its end, and is kept and captured as a whole."""
        self.staged: Prefix | None = None
        """What a commit has staged at the worker of it, without its ids."""
        self.flights: Flights | None = None
        """Among which it is."""
        self._begun = begun
        self._stream: Listening | None = None

    @property
    def is_cut(self) -> bool:
        """Whether it would be continued after a crash."""
        return not self.uncuttable and (self._begun is not None or (self._stream is not None and self._stream.has_ids))

    @property
    def disposition(self) -> str:
        """`CUT`, or the reason why it would be generated anew."""
        return CUT if self.is_cut else self.uncuttable or Reason.NOTHING_GENERATED

    def listen(self, route: str) -> Listening:
        """A stream begins: from the start, or of the rest after what there is."""
        self._begun = self.prefix()
        self._stream = Listening(route)
        return self._stream

    def reading(self) -> Reading | None:
        """What has come of the stream that it listens to."""
        return self._stream.reading() if self._stream else None

    def begin(self, prefix: Prefix) -> None:
        """What there is, in another form."""
        self._begun, self._stream = prefix, None

    def start_over(self) -> None:
        """What there is counts for nothing."""
        self._begun = self._stream = None
        if self.flights is not None:
            self.flights.lost(self)

    def prefix(self) -> Prefix | None:
        """The exact beginning that is here; None where nothing is."""
        if self._stream is None:
            return self._begun
        here = self._stream.prefix()
        return here if self._begun is None else combined(self._begun, here)


class Flights:
    """All that are in flight at one server."""

    def __init__(self) -> None:
        """None."""
        self._all: set[Flight] = set()
        self._not_cut: set[Flight] = set()
        """Among them every one that would be generated anew when it was last looked at."""

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, flight: Flight) -> None:
        """It begins."""
        flight.flights = self
        self._all.add(flight)
        self._not_cut.add(flight)

    def discard(self, flight: Flight) -> None:
        """It is over."""
        self._all.discard(flight)
        self._not_cut.discard(flight)

    def lost(self, flight: Flight) -> None:
        """What one had counts for nothing."""
        if flight in self._all:
            self._not_cut.add(flight)

    def dispositions(self) -> Counter[str]:
        """How many have which; looks at each cut only once, so that a status of very many takes no time."""
        self._not_cut = {flight for flight in self._not_cut if not flight.is_cut}
        cut = len(self._all) - len(self._not_cut)
        return Counter([flight.disposition for flight in self._not_cut]) + Counter({CUT: cut})


@dataclass(frozen=True, slots=True)
class Cut:
    """The beginning of a generation that is not finished, for whoever asks for it again."""

    call: str
    """The id of the call as text; empty for one without."""
    digest: str
    """Of the request."""
    prefix: Prefix

    def is_before(self, call: CallId) -> bool:
        """Whether the caller of this cut has moved past it."""
        if not self.call:
            return False
        mine = CallId.parse(self.call)
        return (mine.caller, mine.parent) == (call.caller, call.parent) and mine.boundary < call.boundary

    def answers(self, request: Request) -> bool:
        """Whether it is the beginning of the answer to a request."""
        return self.call == (str(request.call) if request.call else "") and self.digest == request.digest
