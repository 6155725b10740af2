"""Which worker of a server owns a piece of work: the same answer at every client, every worker and every restore.

A server is one or more worker processes. Each rollout, and each session of a client that sends no life, is owned by
one of them, by a hash of its name alone. So nothing has to be looked up or told, and a restart with as many workers
finds everything where it was.
"""

import zlib
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from uuid import uuid4

from .data import Request
from .sessions import session_id_of

AGENT_SESSION_HEADER = "x-agent-session-id"
"""Names the session of an activation that has no life."""


@runtime_checkable
class NamesItsKey(Protocol):
    """A server that says itself what its calls are routed by."""

    def routing_key(self, request: Request) -> str | None:
        """The name whose owner must serve the call; None for any worker."""


def worker_of(key: str, workers: int) -> int:
    """The number of the worker, from 0, that owns what has this name."""
    return zlib.crc32(key.encode()) % workers if workers > 1 else 0


def routing_key(request: Request, role: str) -> str | None:
    """What decides who serves a call at a server of this role; None where any worker may.

    That is the life's rollout, else the session that is named. Raises `invalid_request` where two are named.
    """
    if request.life is not None:
        return request.life.rollout_id
    match role.partition(".")[0]:
        case "resources":
            return session_id_of(request) or None
        case "agent":
            return _agent_session(request)
    return None


def _agent_session(request: Request) -> str | None:
    in_body = request.body.get("agent_session_id") if isinstance(request.body, dict) else None
    named = request.headers.get(AGENT_SESSION_HEADER) or in_body
    return named if isinstance(named, str) and named else None


@dataclass(frozen=True, slots=True)
class Place:
    """Which worker of how many a process is."""

    number: int = 0
    workers: int = 1

    def owner(self, key: str) -> int:
        """The number of the worker to which what has this name belongs."""
        return worker_of(key, self.workers)

    def owns(self, key: str) -> bool:
        """Whether what has this name belongs here."""
        return self.owner(key) == self.number

    def mint(self) -> str:
        """A new random id that belongs here, for work whose client has named none."""
        while not self.owns(minted := uuid4().hex):
            pass
        return minted
