"""Calls can be held at an exact token, failed and slowed; each is recorded once; a client that leaves ends its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIConnectionError, APIError, InternalServerError, OpenAI

from participants.inference.calls import LIVE, TRANSITIONS, CallEvent, CallRecord, CallState
from participants.inference.refusals import IllegalCallEvent
from tests.support.backend import RunningBackend, read_log, start_backend

LONG: dict[str, Any] = {"prompt": "once", "max_tokens": 200, "ignore_eos": True, "stream": True}
HEADERS = {"x-midflight-life": "r1/1.0#1", "authorization": "Bearer not-to-be-recorded"}


@contextmanager
def streaming(backend: RunningBackend, **asked: Any) -> Iterator[Iterator[str]]:
    """The events of a stream; leaving the block closes the connection."""
    body = {"model": backend.model, **LONG, **asked}
    with (
        httpx.Client(timeout=20) as http,
        http.stream("POST", f"{backend.base_url}/completions", json=body, headers=HEADERS) as reply,
    ):
        yield (line for line in reply.iter_lines() if line)


def leave_early(backend: RunningBackend) -> None:
    """Make a call and go away before the reply has begun."""
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{backend.base_url}/completions", json={"model": backend.model, **LONG}, timeout=0.5)


@pytest.mark.process
def test_a_held_stream_has_sent_exactly_what_was_generated(backend: RunningBackend) -> None:
    """A hold after 7 tokens leaves 7 with the client; released, the rest comes and the call is one finished call."""
    hold = backend.control.hold(after_tokens=7)
    with streaming(backend) as lines:
        assert len([next(lines) for _ in range(7)]) == 7
        backend.control.wait(held=1)
        [call] = backend.control.calls()
        assert (call.state, call.generated, call.life) == ("held", 7, "r1/1.0#1")
        assert backend.control.release(hold) == 1
        rest = list(lines)
    assert len(rest) == 200 - 7 + len(["reason", "[DONE]"])
    [call] = backend.control.calls()
    assert (call.state, call.generated, call.finish_reason, call.disconnected) == ("finished", 200, "length", False)
    assert "authorization" not in call.headers


@pytest.mark.process
def test_holds_take_the_calls_that_match(backend: RunningBackend) -> None:
    """The n-th call, a prompt with some text, a header: each holds the calls that it means and no other."""
    backend.control.hold(nth=2, after_tokens=1)
    backend.control.hold(substring="special", after_tokens=1, times=1)
    backend.control.hold(headers={"X-Midflight-Life": "nobody"})
    for prompt in ("first", "second", "something special", "special again"):
        with streaming(backend, prompt=prompt, max_tokens=2) as lines:
            next(lines)
            if prompt in ("second", "something special"):
                backend.control.wait(held=1)
                assert backend.control.release(call=backend.control.calls()[-1].number) == 1
            list(lines)
    assert backend.control.counts()["finished"] == 4


@pytest.mark.process
@pytest.mark.parametrize("after_tokens", [0, 5])
def test_a_client_that_leaves_ends_its_call(backend: RunningBackend, after_tokens: int) -> None:
    """Closing the connection of a held call aborts it at once, with the exact number of tokens, and frees its place."""
    backend.control.pace(max_concurrency=1)
    backend.control.hold(after_tokens=after_tokens)
    if after_tokens:
        with streaming(backend) as lines:
            assert len([next(lines) for _ in range(after_tokens)]) == after_tokens
            backend.control.wait(held=1)
    else:
        leave_early(backend)
    backend.control.wait(aborted=1, live_at_most=0)
    [call] = backend.control.calls()
    assert (call.state, call.disconnected, call.generated) == ("aborted", True, after_tokens)
    backend.control.release()
    with streaming(backend, max_tokens=1) as lines:
        assert list(lines)[-1] == "data: [DONE]"


@pytest.mark.process
def test_a_client_that_leaves_a_running_stream_ends_it(backend: RunningBackend) -> None:
    """A slow call that nobody holds is aborted too, well before its end."""
    backend.control.pace(tokens_per_s=50.0)
    with streaming(backend, max_tokens=100_000) as lines:
        next(lines)
    backend.control.wait(aborted=1)
    [call] = backend.control.calls()
    assert call.disconnected
    assert 0 < call.generated < 100


@pytest.mark.process
def test_ordered_failures_happen_and_are_recorded(backend: RunningBackend, client: OpenAI) -> None:
    """The next calls get their status or break off after some tokens; each is a failed call, the one after is fine."""
    backend.control.fail(times=2, status=503)
    for _ in range(2):
        with pytest.raises(InternalServerError, match="failed as ordered"):
            client.completions.create(model=backend.model, prompt="x")
    backend.control.fail(times=2, after_tokens=3)
    with pytest.raises((APIConnectionError, APIError, httpx.TransportError)):
        list(client.completions.create(model=backend.model, prompt="x", stream=True, extra_body={"ignore_eos": True}))
    with pytest.raises((APIConnectionError, APIError, httpx.TransportError)):
        client.completions.create(model=backend.model, prompt="x", extra_body={"ignore_eos": True})
    client.completions.create(model=backend.model, prompt="x", max_tokens=2)
    states = [(call.state, call.status, call.generated) for call in backend.control.calls()]
    assert states == [("failed", 503, 0)] * 2 + [("failed", 200, 3)] * 2 + [("finished", 200, states[-1][2])]


@pytest.mark.process
def test_calls_beyond_the_concurrency_wait_their_turn(backend: RunningBackend) -> None:
    """With one place, a second call generates nothing until the first has ended."""
    backend.control.pace(max_concurrency=1)
    hold = backend.control.hold(nth=1, after_tokens=1)
    with streaming(backend) as first:
        next(first)
        backend.control.wait(held=1)
        leave_early(backend)
        assert [call.generated for call in backend.control.calls()] == [1, 0]
        backend.control.release(hold)
        list(first)
    backend.control.wait(ended=2)


@pytest.mark.process
def test_a_killed_backend_leaves_its_records(tmp_path: Path) -> None:
    """After SIGKILL the log has each call's begin once, and the end of those that ended; a new one appends to it."""
    with start_backend(tmp_path) as backend, OpenAI(base_url=backend.base_url, api_key="x", max_retries=0) as client:
        client.completions.create(model=backend.model, prompt="done", max_tokens=3)
        backend.control.hold(after_tokens=2)
        with streaming(backend) as lines:
            next(lines)
            backend.control.wait(held=1)
            backend.kill()
    lost = [(event, call.number, call.state) for event, call in backend.logged()]
    assert lost == [("begin", 1, "running"), ("end", 1, "finished"), ("begin", 2, "running")]
    with start_backend(tmp_path, port=backend.port) as second:
        assert second.url == backend.url
        httpx.post(f"{second.base_url}/completions", json={"model": second.model, "prompt": "x"}).raise_for_status()
    log = read_log(tmp_path / "backend.jsonl")
    assert len(log) == 5
    assert len({call.id for _, call in log}) == 3


@pytest.mark.process
def test_a_terminated_backend_ends_although_it_holds_a_call(tmp_path: Path) -> None:
    """SIGTERM ends it within its grace, and the call that it held is logged as aborted."""
    with start_backend(tmp_path) as backend:
        backend.control.hold(after_tokens=1)
        with streaming(backend) as lines:
            next(lines)
            backend.control.wait(held=1)
            backend.process.terminate()
            assert backend.process.wait(20) == 0
    assert [(event, call.state) for event, call in backend.logged()] == [("begin", "running"), ("end", "aborted")]


@pytest.mark.process
def test_without_control_there_is_no_control(tmp_path: Path) -> None:
    """The control routes exist only when asked for, and the options name model and pace."""
    options = ("--model", "m", "--seed", "7", "--tokens-per-s", "1e6", "--latency-s", "0.001", "--max-concurrency", "2")
    with start_backend(tmp_path, *options, control=False) as backend:
        assert httpx.get(f"{backend.url}/control/calls").status_code == 404
        assert httpx.get(f"{backend.url}/health").json() == {"status": "ok"}
        assert httpx.get(f"{backend.base_url}/models").json()["data"][0]["id"] == backend.model == "m"
        httpx.post(f"{backend.base_url}/completions", json={"model": "m", "prompt": "x"}).raise_for_status()


@pytest.mark.process
def test_tokenize_is_what_calls_use(backend: RunningBackend) -> None:
    """The ids of /tokenize are those of the prompt, for text and conversation; /detokenize gives the text back."""
    messages = [{"role": "user", "content": "hi <|user|>"}]
    chat = {"model": backend.model, "messages": messages, "return_token_ids": True, "max_tokens": 1}
    ids = httpx.post(f"{backend.base_url}/chat/completions", json=chat).json()["prompt_token_ids"]
    tokenized = httpx.post(f"{backend.url}/tokenize", json={"messages": messages}).json()
    assert (tokenized["tokens"], tokenized["count"]) == (ids, len(ids))
    text = httpx.post(f"{backend.url}/detokenize", json={"tokens": ids}).json()["prompt"]
    assert text == "<|user|>hi <|user|><|end|><|assistant|>"
    assert httpx.post(f"{backend.url}/tokenize", json={"prompt": "a the"}).json()["count"] == 2


@pytest.mark.unit
@pytest.mark.parametrize("state", CallState)
@pytest.mark.parametrize("event", CallEvent)
def test_every_state_and_event_is_legal_or_refused(state: CallState, event: CallEvent) -> None:
    """An event either moves the call as the table says, or raises and changes nothing."""
    record = CallRecord(1, "b", "chat", "m", False, {}, "", 0, 1, state=state)
    if (state, event) in TRANSITIONS:
        record.advance(event)
        assert record.state == TRANSITIONS[state, event]
        assert state in LIVE
    else:
        with pytest.raises(IllegalCallEvent, match=f"{state}: {event}"):
            record.advance(event)
        assert record.state == state
