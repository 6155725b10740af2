"""The client of a real endpoint: what it tries again, what a cancelled call leaves, and who sees the key."""

import logging
from pathlib import Path

import anyio
import pytest

from participants import OpenAIEndpoint, ParticipantError
from store import Life
from tests.support.backend import RunningBackend, start_backend
from tests.support.processes import free_port

pytestmark = [pytest.mark.process, pytest.mark.anyio]
ROUTE = "/v1/chat/completions"
KEY = "sk-not-to-be-seen"


def body(backend: RunningBackend) -> dict[str, object]:
    """A request."""
    return {"model": backend.model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_failure_of_the_backend_is_tried_again(tmp_path: Path, status: int) -> None:
    """Two failures and an answer: the caller sees the answer; the backend saw three calls, each of the life."""
    with start_backend(tmp_path) as backend:
        backend.control.fail(times=2, status=status)
        async with OpenAIEndpoint(backend.base_url, retry_for_s=20) as endpoint:
            reply = await endpoint.complete(ROUTE, body(backend), Life("r", 1, 0, 3))
        assert reply.status == 200
        assert [call.life for call in backend.control.calls()] == ["r/1.0#3"] * 3


async def test_a_refusal_is_an_answer_and_is_not_tried_again(tmp_path: Path) -> None:
    """A model that does not exist stays one."""
    with start_backend(tmp_path) as backend:
        async with OpenAIEndpoint(backend.base_url) as endpoint:
            reply = await endpoint.complete(ROUTE, {**body(backend), "model": "none"})
        assert reply.status == 404


async def test_a_backend_that_does_not_come_back_ends_the_call_in_time() -> None:
    """Nobody listens: a typed error, after the time that was given."""
    async with OpenAIEndpoint(f"http://127.0.0.1:{free_port()}/v1", retry_for_s=0.3) as endpoint:
        with anyio.fail_after(10), pytest.raises(ParticipantError, match="did not answer"):
            await endpoint.complete(ROUTE, {})


async def test_a_backend_that_comes_back_is_used_again(tmp_path: Path) -> None:
    """It is killed with a call in progress and started again on its port: the call is answered."""
    with start_backend(tmp_path) as backend:
        backend.control.hold()
        async with OpenAIEndpoint(backend.base_url, retry_for_s=30) as endpoint, anyio.create_task_group() as group:
            answered = anyio.Event()

            async def call() -> None:
                assert (await endpoint.complete(ROUTE, body(backend))).status == 200
                answered.set()

            group.start_soon(call)
            await anyio.to_thread.run_sync(lambda: backend.control.wait(held=1))
            backend.kill()
            with start_backend(tmp_path, port=backend.port):
                await answered.wait()


async def test_a_cancelled_call_is_aborted_at_the_backend(tmp_path: Path) -> None:
    """Cancelling closes the connection at once, so that nothing is generated for nobody."""
    with start_backend(tmp_path) as backend:
        backend.control.hold()
        async with OpenAIEndpoint(backend.base_url) as endpoint, anyio.create_task_group() as group:
            group.start_soon(endpoint.complete, ROUTE, body(backend))
            await anyio.to_thread.run_sync(lambda: backend.control.wait(held=1))
            group.cancel_scope.cancel()
        counts = await anyio.to_thread.run_sync(lambda: backend.control.wait(aborted=1))
        assert counts["aborted"] == 1


async def test_the_key_is_never_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in a repr, a log line, an error or the backend's own log."""
    caplog.set_level(logging.DEBUG)
    with start_backend(tmp_path) as backend:
        backend.control.fail(times=50, status=500)
        async with OpenAIEndpoint(backend.base_url, api_key=KEY, retry_for_s=0.3) as endpoint:
            with pytest.raises(ParticipantError) as refusal:
                await endpoint.complete(ROUTE, body(backend))
        told = f"{endpoint!r} {refusal.value} {caplog.text} {(tmp_path / 'backend.jsonl').read_text()}"
    assert KEY not in told
