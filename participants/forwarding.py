"""What comes in at one worker of a server, and belongs to another one, is handed to its owner, once.

Clients of ours call the owner at once. Every other one comes in anywhere, at the socket that all workers share, and is
none the wiser: request, reply, errors and streams are those of the owner, with every header.

A call that was handed on and does not belong where it came to is refused: its workers disagree about how many they are.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

from .channels import Channels
from .data import Peer, Reply, Request
from .data_http import Served, ends_with_client
from .errors import Code, ParticipantError
from .routing import NamesItsKey, Place, routing_key
from .siblings import HasSiblings

FORWARDED_HEADER = "x-midflight-forwarded"
"""On a call that was handed on, with the number of the worker that did it; the owner's handler does not see it."""
_OF_THE_HOP = frozenset({"date", "server", "content-length", "content-type", "content-encoding", "transfer-encoding"})


@runtime_checkable
class HasPlace(Protocol):
    """A participant that mints ids, and so must know which worker it is."""

    place: Place


class Forwarding:
    """A handler in front of a worker's own one; it serves what belongs to this worker, and hands on the rest."""

    def __init__(self, handler: Served, number: int, urls: Sequence[str], channels: Channels) -> None:
        """This is worker `number` of those at `urls`, its own included; tells the handler so, if it mints ids."""
        self._handler = handler
        self._place = Place(number, len(urls))
        self._peers: list[Peer] = [channels.worker(url, handler.role) for url in urls]
        self.ends_with_client = ends_with_client(handler)
        self._key = handler.routing_key if isinstance(handler, NamesItsKey) else partial(routing_key, role=handler.role)
        if isinstance(handler, HasPlace):
            handler.place = self._place
        if isinstance(handler, HasSiblings):
            handler.siblings = self

    def __repr__(self) -> str:
        return f"<Forwarding {self.role}, worker {self._place.number} of {self._place.workers}>"

    @property
    def role(self) -> str:
        """`<kind>.<name>`."""
        return self._handler.role

    @property
    def epoch(self) -> int:
        """That the control plane of this worker knows; 0 for none."""
        return self._handler.epoch

    async def handle(self, request: Request) -> Reply:
        """Serve one data call, here or at its owner. Raises ParticipantError."""
        came_from = request.headers.get(FORWARDED_HEADER)
        if came_from is not None:
            headers = {name: value for name, value in request.headers.items() if name != FORWARDED_HEADER}
            request = replace(request, headers=headers)
        owner = self._owner(request)
        if owner == self._place.number:
            return await self._handler.handle(request)
        if came_from is not None:
            problem = f"worker {came_from:.20} of {self.role} handed on to {self._place.number} what belongs to {owner}"
            raise ParticipantError(Code.UNREACHABLE, f"{problem}: they disagree about how many workers there are")
        return await self._hand_on(request, owner)

    async def ask(self, key: str, request: Request) -> Reply:
        """For the handler itself: make a call at the worker that owns a key. Raises ParticipantError."""
        if self._place.owns(key):
            return await self._handler.handle(request)
        return await self._hand_on(request, self._place.owner(key))

    def _owner(self, request: Request) -> int:
        key = self._key(request)
        return self._place.number if key is None else self._place.owner(key)

    async def _hand_on(self, request: Request, owner: int) -> Reply:
        headers = {**request.headers, FORWARDED_HEADER: str(self._place.number)}
        reply = await self._peers[owner].call(replace(request, headers=headers))
        if reply.stream is None:
            return reply
        # A stream comes over HTTP, and brings what belongs to that hop alone.
        kept = {name: value for name, value in reply.headers.items() if name.lower() not in _OF_THE_HOP}
        return replace(reply, headers=kept)
