"""Kept replies: what makes a call happen once, whatever happens to sockets.

A callee keeps each reply until the caller's next boundary, which the caller names on its next call or on close. A
repeat of a call gets the kept reply, or joins the call while it is in flight. A call below the boundary last named is
`stale_call`. Replies are kept a life at a time, move into the life that continues it, and are exported with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio

from .data import CallId, Reply, Request
from .errors import Code, ParticipantError


@dataclass(slots=True)
class Kept:
    """One call: in flight until `done` is set, then with its reply, or gone where it failed."""

    digest: str
    reply: Reply | None = None
    done: anyio.Event = field(default_factory=anyio.Event)


class Replies:
    """The kept replies of one life at one callee."""

    def __init__(self) -> None:
        """Nothing is kept."""
        self._callers: dict[tuple[str, str], tuple[int, dict[int, Kept]]] = {}

    def __len__(self) -> int:
        return sum(len(kept) for _, kept in self._callers.values())

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
            kept = {}
            self._drop_inside(call)
        self._callers[call.caller, call.parent] = (call.boundary, kept)
        return kept.get(call.k)

    def _drop_inside(self, call: CallId) -> None:
        """Its caller has moved on: what others called inside its earlier calls is not needed any more."""
        for key in [key for key in self._callers if key[1]]:
            outer = CallId.parse(key[1])
            if (outer.caller, outer.parent) == (call.caller, call.parent) and outer.boundary < call.boundary:
                del self._callers[key]

    def begin(self, call: CallId, digest: str) -> Kept:
        """Note that a call is in flight."""
        self.find(call)
        kept = Kept(digest)
        self._callers[call.caller, call.parent][1][call.k] = kept
        return kept

    def finish(self, call: CallId, kept: Kept, reply: Reply | None) -> None:
        """The call has ended; without a reply it is forgotten, so that a repeat runs again."""
        kept.reply = reply
        if reply is None:
            _, items = self._callers.get((call.caller, call.parent), (0, {}))
            if items.get(call.k) is kept:
                del items[call.k]
        kept.done.set()

    def export(self) -> list[dict[str, Any]]:
        """JSON of the finished ones."""
        return [
            {"call": str(call), "digest": kept.digest, "status": kept.reply.status, "body": kept.reply.body,
             "headers": dict(kept.reply.headers)}
            for call, kept in self
            if kept.reply is not None
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
