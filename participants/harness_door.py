"""The door between black-box programs and the participants: one HTTP listener of an agent, a secret URL an activation.

    /<secret>/v1/chat/completions, /v1/completions, /v1/responses, /v1/models       the policy model, streams included
    /<secret>/tools/<name>                                                          the tools of the rollout's session

What comes in by a secret is done under the life of its activation alone, and by nobody once that is over: then the
secret is no key any more, calls in flight are given up, and whoever still asks gets `stale_life`. So no program speaks
for another one, and what an earlier attempt has left behind reaches nothing of the next.

Calls park while admission is closed. Those that are in flight together share a boundary; a call that begins when there
is none begins the next one, so that callees keep the replies of few. A participant that is lost ends the program: its
loss is the failure of the episode, whatever the program would make of it.
"""

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace

import anyio

from .activation import Session, StepContext
from .data import Peer, Reply, Request
from .data_http import close_source, data_app
from .errors import Code, ParticipantError
from .gate import Gate
from .holder import Held
from .model import MODELS, ROUTES
from .serving.sockets import bind, server_of, url_of
from .work import added

TOOLS = "/tools/"
HOST = "127.0.0.1"
END_S = 5.0
"""How long the calls of a program that is gone may take to be given up."""
_OF_A_LOSS = frozenset({Code.STALE_LIFE, Code.LOST_SESSION, Code.UNREACHABLE})


class Visit:
    """One activation at the door."""

    def __init__(self, role: str, gate: Gate, peers: tuple[Peer, Mapping[str, Peer]], held: Held[Session]) -> None:
        """`peers` are the model and the resources servers by role."""
        self.secret = secrets.token_hex(16)
        self.ending = anyio.CancelScope()
        """Around the program."""
        self.failure: ParticipantError | None = None
        """Of a participant: the program is ended for it."""
        self._about = role, gate, peers, held
        self._held = held
        self._over = False
        self._scopes: set[anyio.CancelScope] = set()
        self._in_flight = 0
        self._k = 0
        self._idle = anyio.Event()
        self._idle.set()

    async def serve(self, route: str, request: Request) -> Reply:
        """One call of the program. Raises ParticipantError, which the program is told."""
        if request.life is not None:
            raise ParticipantError(Code.INVALID_REQUEST, "the URL says whose call it is: name no life")
        k = self._begin()
        try:
            with self.listening():
                reply = await self._call(route, request, k)
        except ParticipantError as error:
            self._ended(error, tool=route.startswith(TOOLS))
            raise
        except BaseException:
            self._ended()
            raise
        if reply.stream is None:
            self._ended()
            return reply
        return replace(reply, stream=_Passing(self, reply.stream))

    async def _call(self, route: str, request: Request, k: int) -> Reply:
        role, gate, peers, held = self._about
        async with AsyncExitStack() as steps:
            context = StepContext(role, gate, peers, held, steps, None, k=k)
            if route.startswith(TOOLS):
                return await context.tool(route.removeprefix(TOOLS), request.body or {})
            if route not in ROUTES and route != MODELS:
                raise ParticipantError(Code.INVALID_REQUEST, f"there is no {route:.80} here")
            reply = await context.model(route, request.body or {})
            if route != MODELS:
                self._count(context)
            return reply

    def _count(self, context: StepContext) -> None:
        activation = self._held.state.activation
        if activation is not None:
            calls, tokens = added((activation.calls, activation.tokens), context.work)
            self._held.state.activation = replace(activation, calls=calls, tokens=tokens)

    def _begin(self) -> int:
        """Number a call: its k, at the boundary of the calls in flight, or at the next one where there is none."""
        activation = self._held.state.activation
        if self._over or activation is None:
            raise _nobody()
        if self._in_flight == 0:
            self._held.state.activation = replace(activation, boundary=activation.boundary + 1)
            self._k, self._idle = 0, anyio.Event()
        self._in_flight += 1
        self._k += 1
        return self._k - 1

    def _ended(self, error: ParticipantError | None = None, *, tool: bool = False) -> None:
        """A call has ended. What a tool refuses other than the request itself is no matter of the program's either."""
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()
        if error is None or self._over:
            return
        if error.code in _OF_A_LOSS or (tool and error.code is not Code.INVALID_REQUEST):
            self.failure = self.failure or error
            self.ending.cancel()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Wait for a participant, no longer than the activation lasts. Raises `stale_life` then."""
        if self._over:
            raise _nobody()
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        try:
            with scope:
                yield
        finally:
            self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise _nobody()

    async def end(self) -> None:
        """Give up what is in flight."""
        self._over = True
        for scope in self._scopes:
            scope.cancel()
        with anyio.move_on_after(END_S, shield=True):
            await self._idle.wait()


class _Passing:
    """The stream of a call, which is in flight until it is closed."""

    def __init__(self, visit: Visit, stream: AsyncIterator[bytes]) -> None:
        self._visit = visit
        self._stream = stream
        self._closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        with self._visit.listening():
            return await anext(self._stream)

    async def aclose(self) -> None:
        """End it, wherever it stands."""
        if self._closed:
            return
        self._closed = True
        try:
            await close_source(self._stream)
        finally:
            self._visit._ended()


class Door:
    """The listener, and who may come in; serves as a handler of `data_app`."""

    epoch = 0
    ends_with_client = True

    def __init__(self, role: str) -> None:
        """`role` is the agent's."""
        self.role = role
        self._visits: dict[str, Visit] = {}
        self._url = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listen at a free port of this host alone."""
        listener = bind(HOST, 0)
        server = server_of(data_app(self), shutdown_s=1.0)
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [listener])
            self._url = url_of(listener)
            try:
                yield
            finally:
                self._url = ""
                server.should_exit = True
        listener.close()

    @asynccontextmanager
    async def visit(self, visit: Visit) -> AsyncIterator[str]:
        """Let the program of an activation in, at this URL, until the block ends."""
        if not self._url:
            raise ParticipantError(Code.INTERNAL, f"{self.role} is used outside its run(), where it listens")
        self._visits[visit.secret] = visit
        try:
            yield f"{self._url}/{visit.secret}"
        finally:
            del self._visits[visit.secret]
            await visit.end()

    async def handle(self, request: Request) -> Reply:
        """Serve one call of whoever."""
        secret, _, rest = request.route.removeprefix("/").partition("/")
        visit = self._visits.get(secret)
        if visit is None:
            raise _nobody()
        if request.body is not None and not isinstance(request.body, dict):
            raise ParticipantError(Code.INVALID_REQUEST, "the body is no JSON object")
        return await visit.serve(f"/{rest}", request)


def _nobody() -> ParticipantError:
    return ParticipantError(Code.STALE_LIFE, "nobody is let in by this URL, or not any more")
