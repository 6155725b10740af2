"""The data plane's envelope: who calls (the life), which call it is, what is asked, what is answered.

The same request goes to a participant in this process or over HTTP (`participants.peer`). Headers on the wire:
`x-midflight-life` has the life, `x-midflight-call` the call id, `x-midflight-revision` on replies the number of waited
calls that the callee has completed for that caller and session.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self
from uuid import uuid4

import orjson

from store import Life

from .errors import Code, ParticipantError

LIFE_HEADER = "x-midflight-life"
CALL_HEADER = "x-midflight-call"
REVISION_HEADER = "x-midflight-revision"
MODE_HEADER = "x-midflight-checkpoint-mode"
VERIFY_HEADER = "x-midflight-checkpoint-verify"

_CALL = re.compile(r"([a-z0-9_.-]{1,100}):(0|[1-9][0-9]{0,17})\.(0|[1-9][0-9]{0,17})(?:@(.{1,400}))?")


@dataclass(frozen=True, slots=True, order=True)
class CallId:
    """One data call of one life: `<caller>:<boundary>.<k>`, and `@<parent>` where it was made inside another call."""

    caller: str
    """The calling role, such as `agent.main`."""
    boundary: int
    """The caller's boundary when it called."""
    k: int
    """Its number since that boundary, from 0."""
    parent: str = ""
    """The call id, as text, of the call that it was made inside of."""

    def __str__(self) -> str:
        return f"{self.caller}:{self.boundary}.{self.k}" + (f"@{self.parent}" if self.parent else "")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the written form. Raises `invalid_request`."""
        match = _CALL.fullmatch(text)
        if match is None:
            raise ParticipantError(Code.INVALID_REQUEST, f"{text!r:.80} is not a call id, <caller>:<boundary>.<k>")
        return cls(match[1], int(match[2]), int(match[3]), match[4] or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One data call."""

    route: str
    """The path, such as `/verify`."""
    body: Any
    """A JSON value."""
    life: Life | None = None
    call: CallId | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Other headers of interest, lower case."""

    @property
    def digest(self) -> str:
        """Of route and body; two tries of one call have the same."""
        return digest_of(self.route, self.body)


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one data call."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None
    """Server-sent events instead of a body, where the request asked for a stream."""

    @property
    def ok(self) -> bool:
        """Whether the call was carried out."""
        return 200 <= self.status < 300


class Peer(Protocol):
    """A participant as its callers see it, in this process or behind HTTP."""

    @property
    def role(self) -> str:
        """`<kind>.<name>`."""

    async def call(self, request: Request) -> Reply:
        """Make one call. A ParticipantError of the other side is raised again here."""


class Uncaptured(Life):
    """Stands for the life of work that no client gave one; it never goes on the wire."""


def uncaptured() -> Uncaptured:
    """A new one."""
    return Uncaptured(f"uncaptured.{uuid4().hex}.x", 0, 0, 0)


def on_the_wire(life: Life) -> Life | None:
    """The life that calls carry: none for work without one."""
    return None if isinstance(life, Uncaptured) else life


def life_path(life: Life) -> str:
    """The path prefix of clients that cannot set headers."""
    return f"/rollouts/{life.rollout_id}/{life.epoch}.{life.attempt}.{life.n}"


def digest_of(route: str, body: Any) -> str:
    """sha256 over route and body, keys sorted. Raises `invalid_request` for a body that cannot be written again."""
    try:
        written = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    except TypeError as error:  # Parsers go deeper than writers.
        raise ParticipantError(Code.INVALID_REQUEST, f"the body cannot be kept: {error}") from error
    return hashlib.sha256(route.encode() + b"\n" + written).hexdigest()


def error_reply(error: ParticipantError) -> Reply:
    """An error as a reply."""
    return Reply(error.status, error.to_body())
