"""What an agent holds of one life, and what one step of it may do.

An `Activation` is one answer on its way: immutable, as of its last boundary. The calls of a step have ids that follow
from the boundary, so the same step, taken again after a crash, makes the same calls and gets what was kept of them.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio

from store import Life

from .data import MODE_HEADER, CallId, Peer, Reply, Request, on_the_wire
from .episode import Episode
from .errors import Code, ParticipantError
from .gate import Gate, StepMode
from .holder import Held
from .tools import RESERVED
from .work import Count, of_reply

RETRY_CLOSED_S = 0.05


@dataclass(frozen=True, slots=True)
class Next:
    """A boundary: go on from this state."""

    state: Any


@dataclass(frozen=True, slots=True)
class Final:
    """The end of an activation, with its Responses object."""

    response: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Activation:
    """One activation of a session, as of its last boundary. Immutable: each boundary makes a new one."""

    state: Any
    boundary: int = 0
    """Counted over the whole session, and so never twice the same."""
    active_s: float = 0.0
    """Time spent so far, without what was parked or lost in a crash."""
    call: str = ""
    """The id of the call that began it; empty where that had none."""
    request: str = ""
    """Digest of its body."""
    calls: int = 0
    """Model calls behind its boundary."""
    tokens: int = 0
    """Which they generated."""
    done: bool = False
    """It has come to its end; the same call again takes its last step again, which makes nothing anew."""


@dataclass(slots=True)
class Session:
    """What an agent holds of one life."""

    session_id: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    """From the opening call: tool accesses, the resources session, limits."""
    activation: Activation | None = None
    episode: Episode | None = None
    """Of its own `/run`."""
    began: float | None = None
    """When the step in flight of its activation began, in active time."""
    running: bool = False
    finished: anyio.Event = field(default_factory=anyio.Event)
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """One activation at a time."""
    scope: anyio.CancelScope | None = None
    """Of the activation that runs, so that closing the session ends it."""

    @property
    def next_boundary(self) -> int:
        """The first boundary that no activation of the session has used."""
        return self.activation.boundary + 1 if self.activation else 0


class OutOfTime(ParticipantError):
    """A model call was cut off because the activation has used up its limit of active time."""

    def __init__(self) -> None:
        super().__init__(Code.DEADLINE_EXCEEDED, "the limit of active time is used up", {"limit": "active_time"})


class StepContext:
    """What a step may do: one call, of the model or of a tool."""

    def __init__(
        self,
        owner: str,
        gate: Gate,
        peers: tuple[Peer, Mapping[str, Peer]],
        held: Held[Session],
        steps: AsyncExitStack,
        time_left_s: float | None,
        *,
        k: int = 0,
    ) -> None:
        """Made by the agent for each step; `peers` are the model and the resources servers by role.

        `k` numbers those that an agent takes at one boundary.
        """
        self._owner = owner
        self._gate = gate
        self._model, self._resources = peers
        self._held = held
        self._steps = steps
        self._made = ""
        self._k = k
        self._waited: tuple[str, str] | None = None
        self.work: Count = 0, 0
        """Model calls of the step that were answered, and their tokens."""
        self.time_left_s = time_left_s
        """Active time left of the limit at the beginning of the step; None without a limit."""

    @property
    def config(self) -> Mapping[str, Any]:
        """What the session was opened with."""
        return self._held.state.config

    @property
    def life(self) -> Life:
        """Whose step it is."""
        return self._held.life

    async def model(self, route: str, body: Mapping[str, Any]) -> Reply:
        """Call the model, `/v1/responses` or `/v1/chat/completions`; a replay step. Raises OutOfTime."""
        call = self._next_call(route)
        await self._steps.enter_async_context(self._gate.step(self.life, "model call", "replay"))
        began, left = self._gate.active_time(), self.time_left_s
        try:
            async with self._gate.time_limit(left, "a model call"):
                reply = await self._send(self._model, route, dict(body), call, {}, park=True)
        except ParticipantError as error:
            used_up = left is not None and self._gate.active_time() - began >= left
            if error.code is Code.DEADLINE_EXCEEDED and used_up:
                raise OutOfTime from error
            raise
        if reply.ok:
            self.work = of_reply(reply.body)
        return reply

    async def tool(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        """Call a tool of the session's resources server; a wait step that lasts until the boundary is made.

        Nobody waits for it where the server is restart-only.
        """
        call = self._next_call(f"tool {name}")
        access = self.config.get("resources", {})
        peer = self._resources.get(str(access.get("role")))
        if peer is None:
            raise ParticipantError(Code.INVALID_REQUEST, f"the session has no tools: {access}")
        if not name or name in RESERVED or "/" in name:
            raise ParticipantError(Code.INVALID_REQUEST, f"{name!r:.80} is no name of a tool")
        mode: StepMode = "replay" if access.get("restart_only") else "wait"
        step = self._gate.step(self.life, f"tool:{name}", mode, reason=f"tool call {name} at {peer.role}")
        await self._steps.enter_async_context(step)
        session = str(access.get("session_id", ""))
        headers = {"x-resources-session-id": session} if session else {}
        headers |= {MODE_HEADER: "restart"} if mode == "replay" else {}
        cookies = {"cookie": str(access["cookie"])} if "cookie" in access else {}
        reply = await self._send(peer, f"/{name}", dict(arguments), call, {**headers, **cookies})
        self._waited = peer.role, session
        return reply

    def complete(self) -> None:
        """The step has come to its boundary: what it waited for counts."""
        if self._waited is not None and on_the_wire(self.life):
            self._held.count_wait(*self._waited)

    def _next_call(self, what: str) -> CallId:
        if self._made:
            problem = f"a step of {self._owner} called {self._made} and then {what}, and may make one call"
            raise ParticipantError(Code.INTERNAL, f"{problem}: return Next in between")
        self._made = what
        activation = self._held.state.activation
        return CallId(self._owner, activation.boundary if activation else 0, self._k)

    async def _send(
        self,
        peer: Peer,
        route: str,
        body: dict[str, Any],
        call: CallId,
        headers: Mapping[str, str],
        *,
        park: bool = False,
    ) -> Reply:
        self._held.touched.add(peer.role)
        life = on_the_wire(self.life)
        request = Request(route=route, body=body, life=life, call=call if life else None, headers=headers)
        while True:
            try:
                return await peer.call(request)
            except ParticipantError as error:
                if error.code is not Code.ADMISSION_CLOSED:
                    raise
            if park:
                await self._gate.wait_open()
            await anyio.sleep(RETRY_CLOSED_S)  # Not a failure: the same call again, until it is let in.
