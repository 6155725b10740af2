"""The resources server: sessions with tools and state, and the verifier that scores what became of them.

An author subclasses `ResourcesServer`, says what the code can do (`checkpoint_mode`, `checkpoint_verify`), and writes
`seed`, tools marked with `@tool`, and `verify`; `docs/authors.md` has an example. Rules that hold here:

    one call at a time changes a session, under its lock; what a failed or cancelled hook left half done is undone
    calls are steps of mode `wait`, so when a checkpoint is prepared every session is between two calls
    a verify of mode `replay` may run across a checkpoint: the session's export is frozen before it starts, and commits
    write that; a verify that changes its session declares `wait`
    closing frees a session, verifying never does; an id that was closed is never seeded again, known or not
    a call for a session that this process does not have is an error, never an empty session
    a repeated seed of a named session returns it, and one with another row or task is refused; a cookie alone names
    none to a seed, which then opens a new session: rollouts of one row would share it, and a retry costs an unused one
    a restore imports every session before anything is active

A life whose sessions cannot be exported is a restart. A crash loses this process's memory, and nothing else.
"""

import math
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from .cases import Conformance
from .custody import SESSION_TTL_S, SessionHolder
from .data import MODE_HEADER, REVISION_HEADER, VERIFY_HEADER, Peer, Reply, Request, life_path
from .errors import Code, ParticipantError
from .exact import exact_copy
from .gate import Gate, StepMode
from .holder import Held
from .sessions import (
    DEFAULT_SESSION,
    SESSION_COOKIE,
    SESSION_HEADER,
    ResourcesSession,
    Seeding,
    Sessions,
    body_of,
    check_close,
    json_copy,
    named_id_of,
    seeding_of,
    session_id_of,
)
from .tools import Outer, Tool, ToolError, tools_of

SEED, CLOSE, VERIFY = "/seed_session", "/close_session", "/verify"
MAX_CLOSED_WITHOUT_LIFE = 4096
NAMES_NO_SESSION = f"the call names no session: seed first, and send its cookie or {SESSION_HEADER}"
_outer: ContextVar[Outer | None] = ContextVar("midflight_outer_call", default=None)


class ResourcesServer(SessionHolder):
    """Base of all resources servers; kind `resources`."""

    measured: frozenset[str] = frozenset()
    """Fields of what verify gives, at any depth, that are measurements: the same verify gives others another time."""

    def __init__(self, name: str = "main", *, gate: Gate | None = None, session_ttl_s: float = SESSION_TTL_S) -> None:
        """`session_ttl_s` counts time without a call; what is parked or lost in a crash does not count."""
        super().__init__(name, gate=gate, session_ttl_s=session_ttl_s)
        self.tools: Mapping[str, Tool] = tools_of(type(self))
        self.mcp_path = ""
        """Where its tools are served over MCP as well; empty where they are not."""

    # What an author writes

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Mapping[str, Any] | None:
        """Fill `session.state` from the task's fields; what is returned becomes fields of the reply."""
        return None

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> Mapping[str, Any]:
        """Score the row with its `response`: `{"reward": <number>, ...}`. Raise where it cannot be scored."""
        raise ParticipantError(Code.INVALID_REQUEST, f"{self.role} does not verify")

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        """Run one tool; a server whose tools are not methods overrides it. Raise ToolError for what a model may see."""
        found = self.tools.get(name)
        if found is None:
            raise ToolError(f"there is no tool named {name!r}", 404)
        return await found.method(self, session, **found.check(arguments))

    @classmethod
    def conformance(cls) -> Conformance:
        """How the conformance kit tries this class; without cases it can try nothing."""
        return Conformance(cases=())

    async def call(self, peer: Peer, route: str, body: Any) -> Reply:
        """Call another participant, such as a judge, from inside a tool or verify."""
        outer = _outer.get()
        return await peer.call(outer.request(self.role, route, body) if outer else Request(route=route, body=body))

    def tool_schemas(self) -> list[dict[str, Any]]:
        """The tools as items of `tools` in a Responses request; override it together with `call_tool`."""
        return [each.schema for each in self.tools.values()]

    async def ask_owner(self, key: str, route: str, body: Any) -> Reply:
        """Call the worker of this server that owns a key, this one included, from inside a tool or verify."""
        outer = _outer.get()
        request = outer.request(self.role, route, body) if outer else Request(route=route, body=body)
        return await (self.siblings.ask(key, request) if self.siblings else self.handle(request))

    # Data calls

    async def handle(self, request: Request) -> Reply:
        """Serve one data call."""
        await self._close_freed(0)  # Others' sessions: this call does not wait for them.
        if request.life is None:
            return await self._handle_without_life(request)
        held = await self.enter(request.life, creates=request.route in (SEED, CLOSE))
        return await self.once(held, request, lambda: self._one_step(held, request))

    async def _one_step(self, held: Held[Sessions], request: Request) -> Reply:
        sessions, call = held.state, request.call
        session_id = session_id_of(request) or sessions.only or DEFAULT_SESSION
        mode = self._mode_of(request)
        sessions.restart_only |= _is_of_restart(request)
        what, inside = request.route.strip("/"), bool(call and call.parent)
        with self.working(held):
            async with self.gate.step(held.life, what, mode, reason=f"{what} is running", inside_wait=inside):
                reply = await self._serve(sessions, session_id, request)
                return self._counted(held, session_id, request, mode, reply)

    def _mode_of(self, request: Request) -> StepMode:
        """Of the step that serves a call; nobody waits for one of what is started over anyway."""
        if self.checkpoint_mode == "restart" or _is_of_restart(request):
            return "replay"
        return self.checkpoint_verify if request.route == VERIFY else "wait"

    def _counted(self, held: Held[Sessions], session_id: str, request: Request, mode: str, reply: Reply) -> Reply:
        """Count a completed call as its caller does; the counts of a session end with it."""
        if request.route == CLOSE:
            held.waited = {key: count for key, count in held.waited.items() if key[1] != session_id}
        elif request.call is not None and mode == "wait":
            held.count_wait(request.call.caller, session_id)
        if request.call is None:
            return reply
        count = held.waited.get((request.call.caller, session_id), 0)
        return Reply(reply.status, reply.body, {**reply.headers, REVISION_HEADER: str(count)})

    async def _handle_without_life(self, request: Request) -> Reply:
        sessions, session_id = self._without_life, session_id_of(request)
        self._expire_without_life()
        if request.route == SEED:
            session_id = named_id_of(request) or self.place.mint()
            reply = await self._serve(sessions, session_id, request)
            cookie = f"{SESSION_COOKIE}={session_id}; Path=/; HttpOnly; SameSite=Lax"
            return Reply(reply.status, reply.body, {**reply.headers, "set-cookie": cookie})
        if not session_id:
            if self.checkpoint_mode != "stateless":
                raise ParticipantError(Code.INVALID_REQUEST, NAMES_NO_SESSION)
            session_id = self.place.mint()
            sessions = Sessions({session_id: ResourcesSession(session_id, None, seeded=True, used_at=self._now())})
        return await self._serve(sessions, session_id, request)

    def _expire_without_life(self) -> None:
        """The first of the open sessions is the one that was used longest ago."""
        sessions = self._without_life
        while sessions.open and self._expired(first := next(iter(sessions.open.values()))):
            self._free(sessions, first.session_id)
        while len(sessions.closed) > MAX_CLOSED_WITHOUT_LIFE:
            del sessions.closed[next(iter(sessions.closed))]

    async def _serve(self, sessions: Sessions, session_id: str, request: Request) -> Reply:
        token = _outer.set(Outer(request, self._mode_of(request)))
        try:
            match request.route:
                case "/seed_session":
                    return await self._seed(sessions, session_id, request)
                case "/close_session":
                    return await self._close(sessions, session_id, request)
                case "/verify":
                    return await self._verify(self._find(sessions, session_id), request)
            return await self._tool(self._find(sessions, session_id), request)
        except ToolError as error:
            raise ParticipantError(Code.INVALID_REQUEST, error.message) from error
        finally:
            _outer.reset(token)

    async def _seed(self, sessions: Sessions, session_id: str, request: Request) -> Reply:
        asked = seeding_of(request)
        sessions.check_not_closed(session_id)
        new = ResourcesSession(session_id, request.life, used_at=self._now())
        session = sessions.open.setdefault(session_id, new)
        async with session.lock:
            sessions.check_not_closed(session_id)
            if not session.seeded:
                await self._first_seed(session, asked)
            self._usable(session)
            session.check_same(asked)
        named: dict[str, Any] = {"resources_session_id": session_id} if "resources_session_id" in request.body else {}
        if named and self.mcp_path:
            named["resources_tools"] = self._mcp_access(session_id, request)
        headers = {MODE_HEADER: self.checkpoint_mode, VERIFY_HEADER: self.checkpoint_verify}
        return Reply(200, {**named, **session.seed_reply}, headers)

    def _mcp_access(self, session_id: str, request: Request) -> dict[str, Any]:
        """How a client of MCP calls the session's tools."""
        path = self.mcp_path if request.life is None else life_path(request.life) + self.mcp_path
        headers = {SESSION_HEADER: session_id}
        return {"server_name": self.role, "url_path": path, "transport": "streamable_http", "headers": headers}

    async def _first_seed(self, session: ResourcesSession, asked: Seeding) -> None:
        session.state, session.lost = {}, ""
        with self._undoing(session, "seed"):
            given = await self.seed(session, asked.row)
            session.seed_reply = exact_copy({} if given is None else dict(given), "what seed gave")
        session.seeded, session.used_at = True, self._now()
        session.episode, session.digest = asked.episode, asked.digest

    async def _close(self, sessions: Sessions, session_id: str, request: Request) -> Reply:
        check_close(request)
        session = sessions.open.get(session_id)
        if session is not None:
            async with session.lock:
                self._free(sessions, session_id)
        sessions.closed[session_id] = None
        await self._close_freed()
        return Reply(200, {"resources_session_id": session_id})

    async def _tool(self, session: ResourcesSession, request: Request) -> Reply:
        name = request.route.strip("/")
        try:
            async with self._changing(session, name):
                return Reply(200, exact_copy(await self.call_tool(session, name, request.body), f"what {name} gave"))
        except ToolError as error:
            return Reply(error.status, {"error": error.message})

    async def _verify(self, session: ResourcesSession, request: Request) -> Reply:
        row = {key: value for key, value in body_of(request).items() if key != "resources_session_id"}
        if not isinstance(row.get("response"), dict):
            raise ParticipantError(Code.INVALID_REQUEST, "the row to verify has no response object")
        if self.checkpoint_verify == "replay":
            result = await self._verify_beside(session, row)
        else:
            async with self._changing(session, "verify"):
                result = _result(await self.verify(session, row))
        return Reply(200, {**row, "mask_sample": False, "failure_kind": None, "failure_reason": None, **result})

    async def _verify_beside(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint may be taken meanwhile, and writes the session as it is now."""
        async with session.lock:
            self._usable(session)
            if session.frozen is None and self.checkpoint_mode != "restart" and not session.unexportable:
                session.frozen = await self._dump(session)
        revision = session.revision
        try:
            with self._translating("verify"):
                return _result(await self.verify(session, row))
        finally:
            if self._json and session.frozen and session.revision == revision:
                session.state = json_copy(session.frozen["state"])

    # How a session changes

    def _find(self, sessions: Sessions, session_id: str) -> ResourcesSession:
        session = sessions.find(session_id)
        sessions.open[session_id] = sessions.open.pop(session_id)
        return session


def _is_of_restart(request: Request) -> bool:
    """Whether its caller says that nothing of this rollout can be captured."""
    return request.headers.get(MODE_HEADER) == "restart"


def _result(result: Any) -> dict[str, Any]:
    """What a verify gave, copied; without a finite reward it is a defect, never a reward of 0."""
    if not isinstance(result, Mapping) or "reward" not in result:
        raise TypeError(f"verify must return a dict with `reward`, and not {result!r:.100}")
    reward = result["reward"]
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise TypeError(f"verify gave the reward {reward!r:.100}, which is no finite number")
    given: dict[str, Any] = exact_copy({**result, "reward": float(reward)}, "what verify gave")
    return given
