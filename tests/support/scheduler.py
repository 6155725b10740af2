"""Actors whose every request is a scheduling point: the code as it is, run up to its next request and held there.

An actor is any coroutine that works through a `Backend`. Its next request follows from its replies so far, so it is
folded out into a tree, once, as far as anybody follows it: a node is what it asks, an edge is a reply. A run that
waits at a node is used for the first reply that is tried there; for another one the actor is run again from its
beginning with the same replies. It must ask one thing at a time and draw nothing from chance.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio.to_thread

from store import BackendError, ObjectInfo, Traits
from store.backends.memory import Verb


class Request(NamedTuple):
    """What an actor asks of the store."""

    verb: Verb
    key: str
    """The key or prefix; of a delete, all keys joined by spaces."""
    data: bytes = b""


class Reply(NamedTuple):
    """What the store answers."""

    value: Any = None
    error: type[BackendError] | None = None


Objects = Mapping[str, bytes]
Fixed = Callable[[Request], Reply | None]
"""Answers what is the same in every state, so that it is no scheduling point; None for the rest."""


_SETTLING = 4
"""Turns of the loop after which a cancellation that was under way has arrived."""


class SteppedBackend:
    """Gives one actor the replies that it has had, then stops the loop at its next request until that is answered."""

    def __init__(self, replies: Iterable[Reply], fixed: Fixed) -> None:
        self._replies = deque(replies)
        self._fixed = fixed
        self._waiting: asyncio.Future[Reply] | None = None
        self.pending: Request | None = None
        self.closed = False

    @property
    def url(self) -> str:
        return "memory://schedules"

    @property
    def traits(self) -> Traits:
        return Traits(scheme="memory")

    async def create(self, key: str, data: bytes) -> None:
        await self._ask(Request("create", key, data))

    async def put(self, key: str, data: bytes) -> None:
        await self._ask(Request("put", key, data))

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        data: bytes = await self._ask(Request("get", key))
        assert len(data) <= max_bytes
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        data: bytes = await self._ask(Request("get", key))
        return data[start : start + length]

    async def stat(self, key: str) -> ObjectInfo:
        info: ObjectInfo = await self._ask(Request("stat", key))
        return info

    async def list(self, prefix: str) -> list[ObjectInfo]:
        return list(await self._ask(Request("list", prefix)))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._ask(Request("delete", " ".join(keys)))

    def lock(self, key: str) -> AbstractAsyncContextManager[bool]:
        return _free()

    async def aclose(self) -> None:
        """Nothing to release."""

    def answer(self, reply: Reply) -> None:
        """Let the actor go on from its pending request."""
        assert self._waiting is not None
        self._waiting.set_result(reply)

    async def _ask(self, request: Request) -> Any:
        reply = self._fixed(request)
        if reply is None:
            reply = self._replies.popleft() if self._replies else await self._wait(request)
        if reply.error is not None:
            raise reply.error(request.verb, request.key)
        return reply.value

    async def _wait(self, request: Request) -> Reply:
        if self.closed:
            raise asyncio.CancelledError
        assert self.pending is None, "an actor asks one thing at a time"
        loop = asyncio.get_running_loop()
        self.pending, self._waiting = request, loop.create_future()
        loop.call_soon(self._stop_if_it_stays, loop, request, _SETTLING)
        try:
            return await self._waiting
        finally:
            self.pending = None

    def _stop_if_it_stays(self, loop: asyncio.AbstractEventLoop, request: Request, turns: int) -> None:
        """A request made in a task that is being cancelled goes away by itself; nobody need answer it."""
        if self.pending is not request:
            return
        if turns:
            loop.call_soon(self._stop_if_it_stays, loop, request, turns - 1)
        else:
            loop.stop()


@asynccontextmanager
async def _free() -> AsyncIterator[bool]:
    yield True


Script = Callable[[SteppedBackend, list[Any]], Coroutine[Any, Any, None]]
"""An actor: works through the backend and notes in the journal what it was told."""


class Run:
    """One life of a script, held at its next request. It owns its task and ends it in `close`."""

    def __init__(self, script: Script, fixed: Fixed, loop: asyncio.AbstractEventLoop, replies: Iterable[Reply]) -> None:
        self.backend = SteppedBackend(replies, fixed)
        self.journal: list[Any] = []
        self._loop = loop
        self._task = asyncio.Task(script(self.backend, self.journal), loop=loop)
        self._task.add_done_callback(lambda _: loop.stop())
        self._go_on()

    def answer(self, reply: Reply) -> None:
        """Run to the next request, or to the end."""
        self.backend.answer(reply)
        self._go_on()

    def close(self) -> None:
        """End it where it is."""
        if not self._task.done():
            self.backend.closed = True
            self._task.cancel()
            while not self._task.done():
                self._loop.run_forever()

    def _go_on(self) -> None:
        self._loop.run_forever()
        if self._task.done():
            self._task.result()


@dataclass(slots=True)
class Node:
    """An actor after some replies."""

    replies: tuple[Reply, ...]
    request: Request | None
    """What it asks next; None once it is through."""
    journal: tuple[Any, ...]
    run: Run | None
    """A run that waits here, until it is used."""
    children: dict[Reply, "Node"] = field(default_factory=dict)


class Actor:
    """A script, folded out as far as it was followed."""

    def __init__(self, name: str, script: Script, fixed: Fixed, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self._script = script
        self._fixed = fixed
        self._loop = loop
        self._nodes: list[Node] = []
        self.runs = 0
        """How often the script was run from its beginning."""
        self.root = self._hold((), self._start(()))

    @property
    def nodes(self) -> int:
        """How many different situations the script was seen in."""
        return len(self._nodes)

    def step(self, node: Node, reply: Reply) -> Node:
        """The node after one more reply."""
        child = node.children.get(reply)
        if child is None:
            run, node.run = node.run or self._start(node.replies), None
            run.answer(reply)
            child = node.children[reply] = self._hold((*node.replies, reply), run)
        return child

    def close(self) -> None:
        """End all runs that wait."""
        for node in self._nodes:
            if node.run is not None:
                node.run.close()

    def _start(self, replies: tuple[Reply, ...]) -> Run:
        self.runs += 1
        return Run(self._script, self._fixed, self._loop, replies)

    def _hold(self, replies: tuple[Reply, ...], run: Run) -> Node:
        node = Node(replies, run.backend.pending, tuple(run.journal), run)
        self._nodes.append(node)
        return node


@contextmanager
def stepping_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that is run step by step, closed with its threads at the end."""
    loop = asyncio.new_event_loop()
    root = asyncio.Task(_keep_threads(loop), loop=loop)
    with suppress(RuntimeError):  # it is stopped before the task ends, on purpose
        loop.run_until_complete(root)
    try:
        yield loop
    finally:
        root.cancel()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(root)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _keep_threads(loop: asyncio.AbstractEventLoop) -> None:
    """A task that does not end, for anyio to tie its worker threads to."""
    await anyio.to_thread.run_sync(int)
    loop.stop()
    await anyio.sleep_forever()
