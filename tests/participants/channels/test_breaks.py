"""A connection that breaks, a server that is not there, and one that knows no channels."""

from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from participants import data_app
from participants.channels import CHANNEL_PATH, WORKERS_PATH, Channels, channel_route, workers_route
from participants.data import CallId, Reply, Request
from participants.data_http import Served
from participants.errors import Code, ParticipantError
from participants.routing import worker_of
from participants.servers import CounterServer
from store import Life
from tests.support.channels import Recorder, Worker, app_of, served, settled, until_held
from tests.support.cutting import Cutter, Way, cutting

pytestmark = [pytest.mark.real, pytest.mark.anyio]

ROLE = "resources.main"
AT_ONCE = 24
STRIDE = 13
"""Bytes between two points at which the connection is broken."""


class Counting(CounterServer):
    """Counts how often each call's tool was really run."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = Counter[str]()

    async def call_tool(self, session: Any, name: str, arguments: Any) -> Any:
        self.runs[session.session_id] += 1
        await anyio.lowlevel.checkpoint()
        return await super().call_tool(session, name, arguments)


def calls_of(name: str) -> list[Request]:
    """Seed, count and look, of one rollout."""
    life = Life(name, 1, 0, 0)
    routes = {
        "/seed_session": {"initial_count": 0, "resources_session_id": name},
        "/increment_counter": {"count": 5},
        "/get_counter_value": {},
    }
    headers = {"x-resources-session-id": name}
    return [
        Request(route=route, body=body, life=life, call=CallId("agent.main", 0, k), headers=headers)
        for k, (route, body) in enumerate(routes.items())
    ]


async def through(cutter: Cutter, name: str) -> tuple[Any, int]:
    """All calls of one rollout, with connections of their own: what the last one answered, and what has passed then."""
    async with Channels() as channels:
        peer = channels.peer(cutter.url, ROLE)
        for request in calls_of(name):
            reply = await peer.call(request)
        return reply.body, cutter.passed[cutter.way]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["up", "down"])
async def test_wherever_the_connection_breaks_every_call_is_carried_out_once(way: Way) -> None:
    """Cut off after every few bytes either way, from asking for the workers to the last reply."""
    server = Counting()
    worker = Worker()
    app = data_app(server)
    app.router.routes[:0] = [channel_route(server)]  # Without a list of workers: the proxy's address is the server's.
    broken = list[str]()
    limit = anyio.CapacityLimiter(AT_ONCE)
    with worker.socket:
        async with worker.serving(app), cutting(worker.url, way) as whole:
            body, passed = await through(whole, "r0000")
            assert body == {"count": 5}

            async def one(after: int) -> None:
                async with limit, cutting(worker.url, way, after) as cutter:
                    name = f"r{after:04}"
                    body, _ = await through(cutter, name)
                    if (body, server.runs[name], cutter.cuts) != ({"count": 5}, 2, 1):
                        broken.append(
                            f"after {after} bytes {way}: {body}, {server.runs[name]} runs, {cutter.cuts} cuts"
                        )

            async with anyio.create_task_group() as group:
                for after in range(1, passed, STRIDE):
                    group.start_soon(one, after)
    assert broken == []


class Slow(Counting):
    """Counts what comes in, and holds its tools until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.came = Counter[str]()
        self.let_go = anyio.Event()

    async def handle(self, request: Request) -> Reply:
        self.came[request.route] += 1
        return await super().handle(request)

    async def call_tool(self, session: Any, name: str, arguments: Any) -> Any:
        self.runs["begun"] += 1
        await self.let_go.wait()
        return await super().call_tool(session, name, arguments)


async def test_a_call_that_is_sent_again_joins_the_one_that_goes_on() -> None:
    """Its connection broke while the tool ran: the tool runs on, once, and its reply goes to the repeat."""
    server, replies = Slow(), list[Reply]()
    seed, increment, _ = calls_of("r0")
    async with served(server) as (_, urls), cutting(urls[0]) as cutter, Channels() as channels:
        peer = channels.worker(cutter.url, ROLE)
        await peer.call(seed)

        async def call() -> None:
            replies.append(await peer.call(increment))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await settled(lambda: server.came[increment.route], 0.2)
            await cutter.cut()
            await settled(lambda: server.came[increment.route], 1.0)
            came, begun = server.came[increment.route], server.runs["begun"]
            server.let_go.set()
    assert (came, begun, server.runs["begun"]) == (2, 1, 1)
    assert [reply.body for reply in replies] == [{"success": True}]


async def test_a_call_without_an_id_is_not_sent_again() -> None:
    """It may have been carried out: its caller is told, and the work goes on to its end."""
    recorder = Recorder()
    async with served(recorder) as (_, urls), cutting(urls[0]) as cutter:
        async with Channels() as channels, anyio.create_task_group() as group:
            peer = channels.worker(cutter.url, ROLE)

            async def fails() -> None:
                with pytest.raises(ParticipantError, match="cannot be reached") as caught, anyio.fail_after(20):
                    await peer.call(Request(route="/hold", body={}))
                assert (caught.value.code, caught.value.status) == (Code.UNREACHABLE, 502)

            group.start_soon(fails)
            await recorder.held.wait()
            await cutter.cut()
        assert (recorder.runs["/hold"], recorder.cancelled) == (1, 0)
        recorder.release.set()


@pytest.mark.parametrize("ends", [True, False])
async def test_what_a_break_ends_is_what_ends_with_its_client(ends: bool) -> None:
    """As over HTTP: a model call is cancelled, anything else goes on."""
    recorder = Recorder(ends_with_client=ends)
    async with served(recorder) as (_, urls), cutting(urls[0]) as cutter, Channels() as channels:
        async with anyio.create_task_group() as group:
            group.start_soon(channels.worker(cutter.url, ROLE).call, Request(route="/hold", body={}))
            await recorder.held.wait()
            group.cancel_scope.cancel()
            await cutter.cut()
        await settled(lambda: recorder.holding, 0.2)
        assert recorder.holding == (0 if ends else 1)
        recorder.release.set()


@pytest.mark.parametrize("call", [None, CallId("agent.main", 0, 0)])
async def test_where_nobody_answers_the_peer_is_unreachable(call: CallId | None) -> None:
    """With an id after all tries; many callers at once knock as often as one."""
    worker, codes = Worker(), list[Code]()
    worker.socket.close()
    async with Channels() as channels:
        peer = channels.peer(worker.url, ROLE)

        async def fails(n: int) -> None:
            with pytest.raises(ParticipantError, match=worker.url) as caught:
                await peer.call(Request(route="/x", body={}, life=Life(f"r{n}", 1, 0, 0), call=call))
            codes.append(caught.value.code)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for n in range(500):
                    group.start_soon(fails, n)
    assert codes == [Code.UNREACHABLE] * 500


def numbered(n: int, route: str = "/x") -> Request:
    """A call with an id, of a rollout of its own."""
    return Request(route=route, body=n, life=Life(f"r{n}", 1, 0, 0), call=CallId("agent.main", 0, 0))


async def test_a_server_that_is_started_anew_gets_what_was_pending() -> None:
    """At its address, whatever it was doing when it went; its workers are asked for again and may be others."""
    first, second = Worker(), Worker()
    before, after, beside = Recorder("before"), Recorder("after"), Recorder("beside")
    after.release.set()
    beside.release.set()
    replies = dict[int, str]()
    with first.socket, second.socket:
        async with Channels() as channels, anyio.create_task_group() as group:
            peer = channels.peer(first.url, ROLE)

            async def hold(n: int) -> None:
                replies[n] = (await peer.call(numbered(n, "/hold"))).body["worker"]

            async with first.serving(app_of(before, [first.url]), stop_s=1):
                for n in range(100):
                    group.start_soon(hold, n)
                await until_held(before, 100)
            urls = [first.url, second.url]
            async with first.serving(app_of(after, urls)), second.serving(app_of(beside, urls)):
                await settled(lambda: len(replies))
    names = ("after", "beside")
    assert replies == {n: names[worker_of(f"r{n}", 2)] for n in range(100)}


async def test_a_server_that_is_not_ready_yet_is_asked_again() -> None:
    """A status of 5xx is no answer, neither where the workers are asked for nor where the channel begins."""
    recorder, refusals = Recorder(), Counter[str]()

    def not_yet(app: Starlette) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope["path"]
            if refusals[path]:
                await app(scope, receive, send)
                return
            refusals[path] += 1
            kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
            await send({"type": f"{kind}.start", "status": 503, "headers": []})
            await send({"type": f"{kind}.body", "body": b"not yet"})

        return serve

    worker = Worker()
    with worker.socket:
        async with worker.serving(not_yet(app_of(recorder, [worker.url]))), Channels() as channels:
            peer = channels.peer(worker.url, ROLE)
            with pytest.raises(ParticipantError, match="503"):
                await peer.call(Request(route="/x", body={}))
            assert set(refusals) == {WORKERS_PATH}  # It is not taken for one that knows no workers.
            assert (await peer.call(numbered(0))).ok
    assert set(refusals) == {WORKERS_PATH, CHANNEL_PATH}


async def test_a_server_without_channels_is_called_over_http() -> None:
    """An older one, or a foreign one: at its URL; with workers it names, at the owner."""
    plain, workers = Worker(), [Worker(), Worker()]
    recorders = [Recorder("0"), Recorder("1")]
    server = CounterServer()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(plain.serving(data_app(server)))
        urls = [worker.url for worker in workers]
        for recorder, worker in zip(recorders, workers, strict=True):
            await stack.enter_async_context(worker.serving(with_workers(recorder, urls)))
        channels = await stack.enter_async_context(Channels())
        *_, looked = [await channels.peer(plain.url, ROLE).call(request) for request in calls_of("r0")]
        assert looked.body == {"count": 5}
        for n in range(10):
            reply = await channels.peer(urls[0], ROLE).call(numbered(n))
            assert reply.body["worker"] == str(worker_of(f"r{n}", 2))
    for worker in [plain, *workers]:
        worker.socket.close()


def with_workers(handler: Served, urls: list[str]) -> Starlette:
    """An app that names its workers and has no channel."""
    app = data_app(handler)
    app.router.routes.insert(0, workers_route(handler.role, urls))
    return app


async def test_another_server_at_the_address_is_not_called() -> None:
    """Where it says that it is another role, nothing of the call reaches it."""
    recorder = Recorder(role="resources.other")
    async with served(recorder) as (channels, urls):
        with pytest.raises(ParticipantError, match=r"resources\.other is served there") as caught:
            await channels.peer(urls[0], ROLE).call(numbered(0))
    assert (caught.value.code, recorder.asked) == (Code.UNREACHABLE, [])


async def test_closing_the_channels_ends_what_is_pending() -> None:
    """Callers that are still there are told, at once, and what comes later is refused."""
    recorder = Recorder(ends_with_client=True)
    async with served(recorder) as (_, urls), anyio.create_task_group() as group:
        channels = Channels()
        async with channels:
            peer = channels.peer(urls[0], ROLE)

            async def fails(request: Request) -> None:
                with pytest.raises(ParticipantError, match="closed") as caught:
                    await peer.call(request)
                assert caught.value.code is Code.UNREACHABLE

            group.start_soon(fails, numbered(0, "/hold"))
            await recorder.held.wait()
        await fails(numbered(1))
