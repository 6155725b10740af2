"""The workers of one server among each other: for what is kept by another key than the rollout of a call.

Sessions stay at the worker of their rollout, so that fences, retire and restore find them there. What belongs to
several rollouts, such as a cohort, has a key of its own and stays at that key's worker; whoever serves one of its
rollouts asks there. A server that has such keys names them with `participants.routing.NamesItsKey`.
"""

from typing import Protocol, runtime_checkable

from .data import Reply, Request


class Siblings(Protocol):
    """All workers of one server, the own one included."""

    async def ask(self, key: str, request: Request) -> Reply:
        """Make a call at the worker that owns a key. Raises its ParticipantError, or `unreachable`."""


@runtime_checkable
class HasSiblings(Protocol):
    """A participant that asks them; None where it is the only worker."""

    siblings: Siblings | None
