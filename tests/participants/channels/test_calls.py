"""Calls over a channel on a real socket: they are what they are over HTTP, and many are held at once."""

import asyncio
import os
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import httpx
import pytest

from participants.channels import CHANNEL_PATH
from participants.channels.outbox import MAX_WAITING_BYTES
from participants.channels.server import PROTOCOL_ERROR
from participants.data import CallId, Reply, Request
from participants.errors import Code, ParticipantError
from participants.peer import HttpPeer
from store import Life
from tests.support.channels import Recorder, served, settled, until_held

pytestmark = [pytest.mark.real, pytest.mark.anyio]

ROLE = "resources.main"
LIFE, CALL = Life("r0", 1, 0, 3), CallId("agent.main", 2, 0)
HELD = 5000


async def outcome(peer: Any, request: Request) -> Any:
    """What a call comes to, without what only HTTP says."""
    try:
        reply = await peer.call(request)
    except ParticipantError as error:
        return error.code, error.message, error.details
    return reply.status, reply.body


async def test_a_request_is_the_same_over_a_channel_and_over_http() -> None:
    """Life, call id, body, route and headers arrive, and nothing of the envelope or of the transport."""
    headers = {"X-Resources-Session-Id": "s", "cookie": "a=b; c=d", "authorization": "Bearer x", "x-word": "ü"}
    request = Request(route="/add", body={"word": "ü", "n": [1.5, None]}, life=LIFE, call=CALL, headers=headers)
    recorder = Recorder()
    async with served(recorder) as (channels, urls):
        reply = await channels.peer(urls[0], ROLE).call(request)
        headers.pop("x-word")  # Which HTTP cannot carry.
        async with httpx.AsyncClient() as http:
            await HttpPeer(urls[0], ROLE, http).call(Request(route="/add", body=1, life=LIFE, headers=headers))
    over_channel, over_http = recorder.asked
    assert (reply.status, reply.body["body"]) == (200, request.body)
    assert (over_channel.route, over_channel.body, over_channel.life) == ("/add", request.body, LIFE)
    assert over_channel.call == CALL
    assert over_channel.headers == {**over_http.headers, "x-word": "ü"}


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize(
    "request_",
    [
        Request(route="/x", body={}),
        Request(route="/x", body={}, call=CALL),
        Request(route="/x", body={}, life=LIFE, call=CALL),
        Request(route="/rollouts/r0/1.0.3/x", body={}),
        Request(route="/rollouts/r0/1.0.3/x", body={}, life=Life("r0", 1, 0, 4)),
        Request(route="/rollouts/r0/0.0.3/x", body={}),
        Request(route="/text", body={}, life=LIFE),
        Request(route="/full", body={}, life=LIFE),
        Request(route="/closed", body={}, life=LIFE),
        Request(route="/like", body={}, life=LIFE),
        Request(route="/split", body={}, life=LIFE),
        Request(route="/name", body={}, life=LIFE),
    ],
    ids=lambda value: None,
)
async def test_who_may_call_and_what_is_answered_is_the_same_as_over_http(request_: Request, epoch: int) -> None:
    """The same refusals of identity, the same errors, and an answer that only looks like an error stays one."""

    def closed(_: Request) -> Reply:
        raise ParticipantError(Code.ADMISSION_CLOSED, "a checkpoint", {"retry_after_s": 2})

    answers = {
        "/text": lambda _: Reply(200, "42"),
        "/full": lambda _: Reply(507, {"full": True}),
        "/closed": closed,
        "/like": lambda _: Reply(400, {"error": {"code": "internal", "message": "of a tool"}}),
        "/split": lambda _: Reply(200, 1, {"x-a": "b\r\nx-evil: 1"}),
        "/name": lambda _: Reply(200, 1, {"x-a\nx-evil": "1"}),
    }
    recorder = Recorder(epoch=epoch, answers=answers)
    async with served(recorder) as (channels, urls), httpx.AsyncClient() as http:
        over_channel = await outcome(channels.peer(urls[0], ROLE), request_)
        over_http = await outcome(HttpPeer(urls[0], ROLE, http), request_)
    assert over_channel == over_http
    assert len(set(map(repr, recorder.asked))) == (1 if recorder.asked else 0)


@pytest.mark.parametrize("headers", [{"x-a": "b\r\nx-evil: 1"}, {"x-a": "\0"}, {"x-a\nx-evil": "1"}])
async def test_a_header_that_would_begin_another_is_refused(headers: dict[str, str]) -> None:
    """It reaches no handler, which might send it on, and the calls beside it are served."""
    recorder = Recorder()
    async with served(recorder) as (channels, urls):
        peer = channels.peer(urls[0], ROLE)
        code, message, _ = await outcome(peer, Request(route="/add", body={}, headers=headers))
        assert (await peer.call(Request(route="/add", body={}, headers={"x-a": "tabs\tare fine"}))).ok
    assert (code, "control characters" in message) == (Code.INVALID_REQUEST, True)
    assert [request.headers for request in recorder.asked] == [{"x-a": "tabs\tare fine"}]


async def test_a_defect_of_a_handler_is_an_error_and_harms_no_other_call(caplog: pytest.LogCaptureFixture) -> None:
    """What it raises, what is not JSON and what asks for a stream: `internal` or refused, and the next call works."""

    def broken(_: Request) -> Reply:
        raise ZeroDivisionError("oops")

    async def chunks() -> Any:
        yield b"data: 1\n\n"

    recorder = Recorder(answers={
        "/raises": broken, "/object": lambda _: Reply(200, object()), "/streams": lambda _: Reply(200, 1, {}, chunks()),
    })  # fmt: skip
    async with served(recorder) as (channels, urls):
        peer = channels.peer(urls[0], ROLE)
        found = [await outcome(peer, Request(route=route, body={})) for route in ("/raises", "/object", "/streams")]
        assert (await peer.call(Request(route="/x", body={}))).ok
    assert [code for code, _, _ in found] == [Code.INTERNAL, Code.INTERNAL, Code.INVALID_REQUEST]
    assert "oops" in found[0][1]
    assert "not JSON" in found[1][1]


class Ending(Recorder):
    """Calls of `/late` and `/now` cancel the task that they run in: as they end, or before."""

    async def handle(self, request: Request) -> Reply:
        if request.route in ("/late", "/now"):
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        if request.route == "/now":
            await anyio.lowlevel.checkpoint()
        return await super().handle(request)


@pytest.mark.parametrize("ends", [True, False])
async def test_who_cancels_its_own_task_harms_no_other_call(ends: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It is `internal`, with a traceback in the log, over a channel and HTTP; a call held beside it is answered."""
    recorder, held = Ending(ends_with_client=ends), list[Reply]()
    async with served(recorder) as (channels, urls), httpx.AsyncClient() as http, anyio.create_task_group() as group:
        peer = channels.peer(urls[0], ROLE)

        async def hold() -> None:
            held.append(await peer.call(Request(route="/hold", body={})))

        group.start_soon(hold)
        await recorder.held.wait()
        for way in (peer, HttpPeer(urls[0], ROLE, http)):
            code, message, _ = await outcome(way, Request(route="/now", body={}))
            assert (code, message) == (Code.INTERNAL, f"/now at {ROLE} ended with CancelledError(), which is its own")
            assert (await outcome(way, Request(route="/late", body={})))[0] in (200, Code.INTERNAL)
        recorder.release.set()
    assert [reply.status for reply in held] == [200]
    assert "await anyio.lowlevel.checkpoint()" in caplog.text


async def test_thousands_of_calls_are_held_over_one_connection() -> None:
    """They cost a handful of descriptors, and each gets its own answer, in whatever order they are made."""
    recorder, replies = Recorder(), dict[int, Any]()
    async with served(recorder) as (channels, urls):
        peer = channels.peer(urls[0], ROLE)
        before = len(os.listdir("/proc/self/fd"))

        async def hold(n: int) -> None:
            call = Request(route="/hold", body=n, life=Life(f"r{n}", 1, 0, n), call=CALL)
            replies[n] = (await peer.call(call)).body["body"]

        async with anyio.create_task_group() as group:
            for n in range(HELD):
                group.start_soon(hold, n)
            await until_held(recorder, HELD)
            descriptors = len(os.listdir("/proc/self/fd")) - before
            recorder.release.set()
    assert descriptors <= 6
    assert replies == {n: n for n in range(HELD)}


async def test_answers_come_in_any_order() -> None:
    """A call that is held holds up none that is made after it."""
    recorder = Recorder()
    async with served(recorder) as (channels, urls), anyio.create_task_group() as group:
        peer = channels.peer(urls[0], ROLE)
        group.start_soon(peer.call, Request(route="/hold", body={}))
        await recorder.held.wait()
        for n in range(3):
            assert (await peer.call(Request(route="/x", body=n))).body["body"] == n
        recorder.release.set()


@pytest.mark.parametrize("ends", [True, False])
async def test_who_gives_up_ends_what_ends_with_its_client_and_nothing_else(ends: bool) -> None:
    """A model call is cancelled, a tool goes on to its end; other calls on the connection notice nothing."""
    recorder = Recorder(ends_with_client=ends)
    async with served(recorder) as (channels, urls):
        peer = channels.peer(urls[0], ROLE)
        async with anyio.create_task_group() as group:
            group.start_soon(peer.call, Request(route="/hold", body={}))
            await recorder.held.wait()
            group.cancel_scope.cancel()
        assert (await peer.call(Request(route="/x", body={}))).ok  # Behind the word that it was given up.
        assert (recorder.cancelled, recorder.holding) == ((1, 0) if ends else (0, 1))
        recorder.release.set()
    assert recorder.cancelled == (1 if ends else 0)


async def test_large_bodies_pass_both_ways() -> None:
    """Far beyond what a web server takes for a WebSocket message of its own accord."""
    body = {"text": "ü" * 20 * 2**20}
    async with served(Recorder()) as (channels, urls):
        reply = await channels.peer(urls[0], ROLE).call(Request(route="/x", body=body))
    assert reply.body["body"] == body


async def test_a_reply_that_is_too_large_is_an_error_of_that_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent that would break the connection."""
    monkeypatch.setattr("participants.channels.frames.MAX_FRAME_BYTES", 1000)
    recorder = Recorder(answers={"/long": lambda _: Reply(200, "y" * 1000)})
    async with served(recorder) as (channels, urls):
        peer = channels.peer(urls[0], ROLE)
        with pytest.raises(ParticipantError, match=r"the reply has \d+ bytes") as caught:
            await peer.call(Request(route="/long", body={}))
        assert (await peer.call(Request(route="/x", body={}))).ok
    assert caught.value.code is Code.INTERNAL


async def test_a_client_that_does_not_read_stops_the_server_from_reading() -> None:
    """Replies pile up to the limit, and further calls wait in the client; when it reads again, all are answered."""
    big = "y" * 2**20
    recorder = Recorder(answers={"/big": lambda _: Reply(200, big)})
    async with served(recorder) as (_, urls), aiohttp.ClientSession() as session:
        socket = await session.ws_connect(urls[0] + CHANNEL_PATH, max_msg_size=0)
        count = 200
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                for n in range(count):
                    await socket.send_bytes(b'{"i":%d,"route":"/big","body":"%s"}' % (n, b"x" * 2**19))

            group.start_soon(ask)
            begun = await settled(lambda: len(recorder.asked))
            assert begun < count / 2
            assert begun * 2**20 < 12 * MAX_WAITING_BYTES
            for _ in range(count):
                await socket.receive()
        await socket.close()
    assert len(recorder.asked) == count


async def test_a_web_page_is_turned_away() -> None:
    """What comes with an Origin is no client of ours."""
    async with served(Recorder()) as (_, urls), aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await session.ws_connect(urls[0] + CHANNEL_PATH, origin="http://somewhere")
    assert caught.value.status == 403


async def test_what_is_no_frame_closes_the_connection() -> None:
    """With 1002 and what is wrong; calls that it had sent before go on."""
    recorder = Recorder()
    async with served(recorder) as (_, urls), aiohttp.ClientSession() as session:
        socket = await session.ws_connect(urls[0] + CHANNEL_PATH)
        await socket.send_bytes(b'{"i":1,"route":"/hold","body":null}')
        await recorder.held.wait()
        await socket.send_bytes(b'{"i":"x"}')
        message = await socket.receive()
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, PROTOCOL_ERROR)
        assert (recorder.holding, recorder.cancelled) == (1, 0)
        recorder.release.set()


async def test_text_that_is_no_utf8_closes_the_connection_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """One line and no traceback, with 1002 as for whatever else is no frame; and text that is a call is one."""
    async with served(Recorder()) as (_, urls), aiohttp.ClientSession() as session:
        socket = await session.ws_connect(urls[0] + CHANNEL_PATH)
        await socket.send_str('{"i":1,"route":"/x","body":"\u00fc"}')
        assert "\u00fc" in (await socket.receive_bytes()).decode()
        await socket.send_frame(b'{"i":2,"route":"\xff"}', aiohttp.WSMsgType.TEXT)
        message = await socket.receive()
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, PROTOCOL_ERROR)
    assert [record.name for record in caplog.records if record.levelname != "INFO"] == ["midflight.channels"]
    assert all(record.exc_info is None for record in caplog.records)


async def test_a_message_in_pieces_is_put_together() -> None:
    """However many they are."""
    call = b'{"i":1,"route":"/x","body":"' + b"y" * 300 + b'"}'
    async with served(Recorder()) as (_, urls), aiohttp.ClientSession() as session:
        socket = await session.ws_connect(urls[0] + CHANNEL_PATH)
        connection: Any = socket._response.connection
        for place, byte in enumerate(call):
            opcode, last = (2 if place == 0 else 0), (0x80 if place == len(call) - 1 else 0)
            connection.transport.write(bytes([opcode | last, 0x81, 0, 0, 0, 0, byte]))
        assert b"y" * 300 in await socket.receive_bytes()
        await socket.close()


async def test_calls_beyond_those_that_may_be_open_wait_and_begin_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is given up while it waits never begins, and one whose number waits already is no frame."""
    monkeypatch.setattr("participants.channels.server.MAX_OPEN", 3)
    recorder = Recorder()
    async with served(recorder) as (_, urls), aiohttp.ClientSession() as session:
        socket = await session.ws_connect(urls[0] + CHANNEL_PATH)
        for n in range(10):
            await socket.send_bytes(b'{"i":%d,"route":"/hold","body":%d}' % (n, n))
        await socket.send_bytes(b'{"i":5,"cancel":true}')
        await until_held(recorder, 3)
        assert await settled(lambda: len(recorder.asked)) == 3
        recorder.release.set()
        replies = list[bytes]()
        while len(replies) < 9:
            replies += (await socket.receive_bytes()).split(b"\n")
        assert [request.body for request in recorder.asked] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        recorder.release = anyio.Event()
        for n in (20, 21, 22, 23, 23):
            await socket.send_bytes(b'{"i":%d,"route":"/hold","body":%d}' % (n, n))
        assert (await socket.receive()).data == PROTOCOL_ERROR
        assert await settled(lambda: len(recorder.asked)) == 12  # What waited goes with its connection.
        recorder.release.set()


async def test_a_client_with_too_many_calls_is_not_read_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits has a limit in bytes; once calls end it is read on, and nothing is lost."""
    monkeypatch.setattr("participants.channels.server.MAX_OPEN", 2)
    monkeypatch.setattr("participants.channels.server.MAX_WAITING_BYTES", 2**20)
    recorder, count, done = Recorder(), 160, 0
    async with served(recorder) as (_, urls), aiohttp.ClientSession() as session:
        socket = await session.ws_connect(urls[0] + CHANNEL_PATH)
        sent = 0

        async def ask() -> None:
            nonlocal sent
            for n in range(count):
                await socket.send_bytes(b'{"i":%d,"route":"/hold","body":"%s"}' % (n, b"x" * 2**18))
                sent += 1

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            assert await settled(lambda: sent) < count / 2
            recorder.release.set()
            for _ in range(count):
                await socket.receive()
                done += 1
        await socket.close()
    assert (done, len(recorder.asked)) == (count, count)
