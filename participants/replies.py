"""Kept replies: what makes a call happen once, whatever happens to sockets.

A callee keeps each reply until the caller's next boundary, which the caller names on its next call or on close. A
repeat of a call gets the kept reply, or joins the call while it is in flight. A call below the boundary last named is
`stale_call`. Replies are kept a life at a time, move into the life that continues it, and are exported with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anyio

from .data import CallId, Reply, Request
from .errors import Code, ParticipantError


@dataclass(slots=True)
class Kept:
    """One call: in flight until `done` is set, then with its reply, or gone where it failed."""

    digest: str
    reply: Reply | None = None
    _over: bool = False
    _done: anyio.Event | None = None

    @property
    def done(self) -> anyio.Event:
        """Made for the first who waits: nearly always nobody does, and a restore loads very many."""
        if self._done is None:
            self._done = anyio.Event()
            if self._over:
                self._done.set()
        return self._done

    def end(self, reply: Reply | None) -> None:
        """The call has come to its end."""
        self.reply, self._over = reply, True
        if self._done is not None:
            self._done.set()


class Replies:
    """The kept replies of one life at one callee."""

    def __init__(self) -> None:
        """Nothing is kept."""
        self._callers: dict[tuple[str, str], tuple[int, dict[int, Kept]]] = {}
        self.count = 0
        """Calls in flight and finished; counted as they come and go, for a status of very many lives."""
        self.finished = 0
        """Of them those that have their reply."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[CallId, Kept]]:
        for (caller, parent), (boundary, kept) in self._callers.items():
            for k, item in kept.items():
                yield CallId(caller, boundary, k, parent), item

    def find(self, call: CallId) -> Kept | None:
        """What is kept of this call; drops what the caller has moved past. Raises `stale_call`."""
        boundary, kept = self._callers.get((call.caller, call.parent), (call.boundary, {}))
        if call.boundary < boundary:
            raise ParticipantError(Code.STALE_CALL, f"call {call} is below boundary {boundary}")
        if call.boundary > boundary:
            self._count_out(kept)
            kept = {}
            self._drop_inside(call)
        self._callers[call.caller, call.parent] = (call.boundary, kept)
        return kept.get(call.k)

    def _drop_inside(self, call: CallId) -> None:
        """Its caller has moved on: what others called inside its earlier calls is not needed any more."""
        for key in [key for key in self._callers if key[1]]:
            outer = CallId.parse(key[1])
            if (outer.caller, outer.parent) == (call.caller, call.parent) and outer.boundary < call.boundary:
                self._count_out(self._callers.pop(key)[1])

    def _count_out(self, gone: dict[int, Kept]) -> None:
        self.count -= len(gone)
        self.finished -= sum(item.reply is not None for item in gone.values())

    def begin(self, call: CallId, digest: str) -> Kept:
        """Note that a call is in flight."""
        self.find(call)
        kept = Kept(digest)
        items = self._callers[call.caller, call.parent][1]
        if call.k in items:
            self._count_out({call.k: items[call.k]})
        items[call.k] = kept
        self.count += 1
        return kept

    def finish(self, call: CallId, kept: Kept, reply: Reply | None) -> None:
        """The call has ended; without a reply it is forgotten, so that a repeat runs again."""
        _, items = self._callers.get((call.caller, call.parent), (0, {}))
        here = items.get(call.k) is kept
        if here and reply is None:
            self._count_out({call.k: items.pop(call.k)})
        elif here and kept.reply is None:
            self.finished += 1
        kept.end(reply)

    def export(self) -> list[dict[str, Any]]:
        """JSON of the finished ones."""
        return [
            {"call": f"{caller}:{boundary}.{k}@{parent}" if parent else f"{caller}:{boundary}.{k}",
             "digest": kept.digest, "status": reply.status, "body": reply.body, "headers": dict(reply.headers)}
            for (caller, parent), (boundary, items) in self._callers.items()
            for k, kept in items.items()
            if (reply := kept.reply) is not None
        ]  # fmt: skip

    @classmethod
    def load(cls, items: list[dict[str, Any]]) -> "Replies":
        """From the exported form. Raises KeyError, TypeError or ParticipantError where it is malformed."""
        replies = cls()
        for item in items:
            call = CallId.parse(item["call"])
            reply = Reply(item["status"], item["body"], item["headers"])
            replies.finish(call, replies.begin(call, item["digest"]), reply)
        return replies


def check_same(request: Request, kept: Kept) -> None:
    """Refuse a call id that comes again with another request."""
    if kept.digest != request.digest:
        raise ParticipantError(Code.STALE_CALL, f"call {request.call} was made before with another request")
