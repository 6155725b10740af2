"""A backend served inside the test's own event loop, and thousands of streams held at once."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import orjson
import pytest

from participants.inference import Backend, Pace, Settings, serving
from participants.inference.control import HoldOrder
from tests.support.backend import read_log, start_backend

HELD = 4_000
RSS_KIB_PER_CALL = 64
TASK = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[tuple[Backend, httpx.AsyncClient]]:
    """A backend in this loop, and a client for it."""
    log = tmp_path / "log.jsonl"
    backend = Backend(Settings(control=True, log=log))
    async with serving(backend) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield backend, client
    backend.close()
    assert len(read_log(log)) == 2 * backend.calls.counts()["total"]


Embedded = tuple[Backend, httpx.AsyncClient]


@pytest.mark.unit
@pytest.mark.anyio
async def test_an_embedded_backend_serves_without_blocking_the_loop(embedded: Embedded) -> None:
    """A call over a real socket is answered and recorded, log and all, with no blocking call in the loop."""
    backend, client = embedded
    body = TASK | {"model": backend.settings.model}
    reply = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
    again = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
    assert reply["choices"] == again["choices"]
    [first, _] = backend.calls.since(0)
    assert first.generated == reply["usage"]["completion_tokens"]


@pytest.mark.unit
@pytest.mark.anyio
async def test_leaving_an_embedded_backend_ends_what_it_holds(embedded: Embedded) -> None:
    """The block ends although a call is held: the call is aborted and its client sees a broken reply."""
    backend, client = embedded
    backend.board.hold(HoldOrder(after_tokens=3))
    outcome: list[str] = []

    async def call() -> None:
        body = TASK | {"model": backend.settings.model, "stream": True}
        try:
            await client.post("/v1/chat/completions", json=body)
        except httpx.TransportError as error:
            outcome.append(type(error).__name__)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        await backend.calls.wait(lambda: backend.calls.counts()["held"] == 1)
        backend.board.reset()
    assert outcome == ["RemoteProtocolError"]
    assert backend.calls.counts()["aborted"] == 1


@pytest.mark.unit
@pytest.mark.anyio
@pytest.mark.parametrize("rate", [500.0, None])
async def test_a_rate_holds_and_no_rate_is_no_limit(embedded: Embedded, rate: float | None) -> None:
    """50 tokens at 500 a second take a tenth of a second or more; the tokens are the same at any rate."""
    backend, client = embedded
    backend.board.set_pace(Pace(tokens_per_s=rate))
    began = anyio.current_time()
    body = {"model": backend.settings.model, "prompt": "x", "max_tokens": 50, "ignore_eos": True}
    reply = (await client.post("/v1/completions", json=body)).json()
    assert reply["usage"]["completion_tokens"] == 50
    if rate:
        assert anyio.current_time() - began > 0.09


@pytest.mark.unit
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", b"{"), ("/tokenize", b"[]"), ("/detokenize", b'{"tokens":["a"]}')]
)
async def test_a_body_that_cannot_be_read_is_refused(embedded: Embedded, path: str, body: bytes) -> None:
    """A malformed body is 400 with a message, on every route."""
    _, client = embedded
    reply = await client.post(path, content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]


@pytest.mark.scale
@pytest.mark.anyio
@pytest.mark.timeout(300)
async def test_thousands_of_streams_are_held_at_once(tmp_path: Path) -> None:
    """4,000 streams held after 5 tokens stay with their exact count at a small cost each; all finish when released."""
    running = await anyio.to_thread.run_sync(lambda: start_backend(tmp_path))
    try:
        control = running.control
        before = _rss_kib(running.process.pid)
        hold = await anyio.to_thread.run_sync(lambda: control.hold(after_tokens=5))
        async with anyio.create_task_group() as tasks:
            for n in range(HELD):
                tasks.start_soon(_one_stream, running.port, running.model, n)
            await anyio.to_thread.run_sync(lambda: control.wait(held=HELD, timeout_s=40))
            calls = await anyio.to_thread.run_sync(control.calls)
            assert {call.generated for call in calls} == {5}
            assert (_rss_kib(running.process.pid) - before) / HELD < RSS_KIB_PER_CALL
            assert await anyio.to_thread.run_sync(lambda: control.release(hold)) == HELD
        counts = await anyio.to_thread.run_sync(lambda: control.wait(finished=HELD, live_at_most=0))
        assert counts["generated"] == HELD * 20
    finally:
        await anyio.to_thread.run_sync(running.stop)


async def _one_stream(port: int, model: str, n: int) -> None:
    """One request on a socket of its own, read to its end."""
    asked: dict[str, Any] = {
        "model": model,
        "prompt": f"call {n}",
        "max_tokens": 20,
        "ignore_eos": True,
        "stream": True,
    }
    body = orjson.dumps(asked)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(head.encode() + body)
        received = b"".join([chunk async for chunk in stream])
    assert received.count(b"data: ") == 22


def _rss_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0])
