"""The data plane over HTTP, and both kinds of peer."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
import pytest

from participants.data import CallId, Reply, Request
from participants.data_http import data_app
from participants.errors import Code, ParticipantError
from participants.peer import HttpPeer, LocalPeer
from participants.servers import CounterServer
from participants.wire import Adopt
from store import Life
from tests.support.owners import controlled

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE = Life("r0", 1, 0, 3)
CALL = CallId("agent.main", 2, 0)


@dataclass
class Echo:
    """Answers with what is set, and keeps what it was asked."""

    reply: Reply = field(default_factory=lambda: Reply(200, {"ok": True}))
    error: Exception | None = None
    role: str = "resources.main"
    epoch: int = 0
    asked: list[Request] = field(default_factory=list)

    async def handle(self, request: Request) -> Reply:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        return self.reply


def client(handler: Any) -> httpx.AsyncClient:
    """A client whose requests reach the app without a socket."""
    transport = httpx.ASGITransport(app=data_app(handler))
    return httpx.AsyncClient(transport=transport, base_url="http://here")


async def test_a_request_is_the_same_in_process_and_over_http() -> None:
    """Life, call id, body, route and other headers arrive, and nothing of the transport's own."""
    request = Request(route="/add", body={"word": "ü"}, life=LIFE, call=CALL, headers={"x-resources-session-id": "s"})
    near, far = Echo(), Echo()
    async with client(far) as http:
        replies = [await LocalPeer(near).call(request), await HttpPeer("http://here/", far.role, http).call(request)]
    assert near.asked == far.asked == [request]
    assert [reply.body for reply in replies] == [{"ok": True}] * 2


async def test_the_path_prefix_names_the_life() -> None:
    """For clients that cannot set headers; with an equal header it is fine, with another one it is refused."""
    echo = Echo(epoch=1)
    async with client(echo) as http:
        path = "/rollouts/r0/1.0.3/v1/responses"
        assert (await http.post(path, json={})).status_code == 200
        assert (await http.post(path, json={}, headers={"x-midflight-life": str(LIFE)})).status_code == 200
        reply = await http.post(path, json={}, headers={"x-midflight-life": "r0/1.0#4"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request")
    assert [(each.life, each.route) for each in echo.asked] == [(LIFE, "/v1/responses")] * 2


async def test_the_app_of_a_server_under_a_control_plane_knows_by_itself_that_it_takes_part_in_a_run() -> None:
    """Nobody has to tell it: from its adopt on, a client without a life is refused, also for what it began before."""
    server = CounterServer()
    row = {"initial_count": 3}
    async with controlled(server, None).run() as plane, client(server) as http:
        assert (await http.post("/seed_session", json=row)).status_code == 200
        await plane.adopt(Adopt(run="r", epoch=1))
        for route, body in (("/seed_session", row), ("/get_counter_value", {})):
            reply = await http.post(route, json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request")
        named = {"x-midflight-life": str(LIFE)}
        assert (await http.post("/seed_session", json=row, headers=named)).status_code == 200


async def test_a_life_of_an_epoch_that_nobody_adopted_here_is_refused() -> None:
    """Else a server that missed an adopt would take part in two runs at once; it changes nothing."""
    server = CounterServer()
    async with controlled(server, None).run() as plane, client(server) as http:
        await plane.adopt(Adopt(run="r", epoch=1))
        named = {"x-midflight-life": "r0/2.0#0"}
        reply = await http.post("/seed_session", json={"initial_count": 3}, headers=named)
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request")
        assert "adopt comes first" in reply.json()["error"]["message"]
        assert list(server.live()) == []
        await plane.adopt(Adopt(run="r", epoch=2))
        assert (await http.post("/seed_session", json={"initial_count": 3}, headers=named)).status_code == 200


@pytest.mark.parametrize("epoch", [0, 1])
async def test_a_request_without_a_life_is_served_only_without_an_epoch(epoch: int) -> None:
    """Once the server takes part in checkpoints nobody could tell whose work it is."""
    echo = Echo(epoch=epoch)
    async with client(echo) as http:
        reply = await http.post("/add", json={})
    assert (reply.status_code, len(echo.asked)) == ((422, 0) if epoch else (200, 1))
    assert ("a controller has adopted it, and the call has no x-midflight-life" in reply.text) == bool(epoch)


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        ({"x-midflight-life": "no life"}, b"{}"),
        ({"x-midflight-life": "r0/1.0#3", "x-midflight-call": "no call"}, b"{}"),
        ({"x-midflight-call": "agent.main:0.0"}, b"{}"),
        ({}, b"{"),
    ],
)
async def test_what_is_malformed_is_refused(headers: dict[str, str], content: bytes) -> None:
    """A bad life, a bad call id, a call id without a life and a body that is no JSON reach nobody."""
    echo = Echo()
    async with client(echo) as http:
        reply = await http.post("/add", content=content, headers=headers)
    assert (reply.status_code, echo.asked) == (422, [])
    assert reply.headers["x-midflight-error"] == "invalid_request"


async def test_a_reply_with_a_header_that_would_begin_another_is_a_defect_and_its_stream_is_closed() -> None:
    """Nothing of it goes out."""
    closed: list[bool] = []

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield b"data: 1\n\n"
        finally:
            closed.append(True)

    source = chunks()
    assert await anext(source)
    async with client(Echo(Reply(200, None, {"x-a": "b\r\nx-evil: 1"}, source))) as http:
        reply = await http.post("/add", json={})
    assert (reply.status_code, reply.headers["x-midflight-error"], closed) == (500, "internal", [True])
    assert "resources.main answered with control characters in the header 'x-a'" in reply.text
    assert "x-evil" not in reply.headers


async def test_errors_are_raised_again_by_the_peer() -> None:
    """Code, message and details survive; admission closed says when to come back; a defect is `internal`."""
    echo = Echo(error=ParticipantError(Code.ADMISSION_CLOSED, "busy", {"retry_after_s": 1}))
    async with client(echo) as http:
        assert (await http.post("/add", json={})).headers["retry-after"] == "1"
        peer = HttpPeer("http://here", echo.role, http)
        with pytest.raises(ParticipantError) as caught:
            await peer.call(Request(route="/add", body={}))
        assert (caught.value.code, caught.value.message) == (Code.ADMISSION_CLOSED, "busy")
        assert caught.value.details == {"retry_after_s": 1}
        echo.error = ZeroDivisionError("oops")
        with pytest.raises(ParticipantError, match="oops") as caught:
            await peer.call(Request(route="/add", body={}))
        assert caught.value.code is Code.INTERNAL


async def test_a_reply_that_looks_like_an_error_is_a_reply() -> None:
    """A backend's or tool's own error body is handed on with its status, whatever it says."""
    body = {"error": {"code": "internal", "message": "of the backend"}}
    async with client(Echo(Reply(400, body))) as http:
        reply = await HttpPeer("http://here", "model.main", http).call(Request(route="/add", body={}))
    assert (reply.status, reply.body) == (400, body)


async def test_text_goes_out_as_text() -> None:
    """A tool's text arrives as the same text."""
    async with client(Echo(Reply(200, "42"))) as http:
        reply = await HttpPeer("http://here", "resources.main", http).call(Request(route="/add", body={}))
    assert reply.body == "42"


class Breaking(httpx.AsyncBaseTransport):
    """Loses the first replies: the other side has carried the call out, and nobody hears of it."""

    def __init__(self, inner: httpx.AsyncBaseTransport, losses: int) -> None:
        self.inner = inner
        self.losses = losses

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self.inner.handle_async_request(request)
        if self.losses:
            self.losses -= 1
            raise httpx.ReadError("connection reset")
        return response


async def test_a_lost_reply_is_served_again() -> None:
    """The call is repeated under its id and was carried out once; without an id it is not repeated."""
    server = CounterServer()
    transport = Breaking(httpx.ASGITransport(app=data_app(server)), losses=0)
    async with httpx.AsyncClient(transport=transport) as http:
        peer = HttpPeer("http://here", server.role, http)
        await peer.call(
            Request(route="/seed_session", body={"initial_count": 0}, life=LIFE, call=CallId("environment.main", 0, 0))
        )
        transport.losses = 1
        await peer.call(Request(route="/increment_counter", body={"count": 5}, life=LIFE, call=CALL))
        reply = await peer.call(Request(route="/get_counter_value", body={}, life=LIFE))
        assert reply.body == {"count": 5}
        transport.losses = 1
        with pytest.raises(ParticipantError, match="cannot be reached"):
            await peer.call(Request(route="/get_counter_value", body={}, life=LIFE))


async def test_a_stream_passes_chunk_by_chunk_and_is_closed_with_its_client() -> None:
    """The first event is out before the second exists; when the client goes, the source is closed."""
    more, closed, first = anyio.Event(), anyio.Event(), anyio.Event()

    async def events() -> AsyncIterator[bytes]:
        try:
            yield b"data: 1\n\n"
            await more.wait()
            yield b"data: 2\n\n"
        finally:
            closed.set()

    app = data_app(Echo(Reply(200, None, stream=events())))
    sent: list[Any] = []
    gone = anyio.Event()
    incoming = iter([{"type": "http.request", "body": b'{"stream": true}'}])

    async def receive() -> Any:
        if message := next(incoming, None):
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body"):
            first.set()

    scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": [], "query_string": b"",
             "asgi": {"spec_version": "2.0"}}  # fmt: skip
    async with anyio.create_task_group() as group:
        group.start_soon(app, scope, receive, send)
        await first.wait()
        assert sent[1]["body"] == b"data: 1\n\n"
        assert dict(sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
        gone.set()
        await closed.wait()
    assert not more.is_set()


async def test_a_peer_hands_a_stream_on() -> None:
    """What the other side sends as events arrives as a stream, in order."""

    async def events() -> AsyncIterator[bytes]:
        for n in (b"1", b"2"):
            yield b"data: " + n + b"\n\n"

    async with client(Echo(Reply(200, None, stream=events()))) as http:
        reply = await HttpPeer("http://here", "model.main", http).call(
            Request(route="/v1/responses", body={"stream": True})
        )
        assert reply.stream is not None
        assert b"".join([chunk async for chunk in reply.stream]) == b"data: 1\n\ndata: 2\n\n"


async def test_a_plain_gym_client_is_served_by_its_cookies() -> None:
    """An HTTP client that knows nothing of lives seeds, calls and verifies; health answers too."""
    async with client(CounterServer()) as http:
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        seeded = await http.post("/seed_session", json={"initial_count": 3, "expected_count": 4})
        assert seeded.headers["x-midflight-checkpoint-verify"] == "replay"
        await http.post("/increment_counter", json={"count": 1})
        verified = await http.post("/verify", json={"expected_count": 4, "response": {"output": []}})
    assert verified.json()["reward"] == 1.0
