"""A model endpoint that does not answer, or not as it is configured, is told of at once and then now and then."""

from pathlib import Path

import pytest

from orchestrator.collect.config import ModelTable
from orchestrator.collect.endpoint import TELL_EVERY_S, Endpoint
from participants.backends.breaks import Unreachable
from tests.support.backend import start_backend

pytestmark = pytest.mark.anyio


def table(base_url: str, model: str = "m", retry_for_s: float = 0.1) -> ModelTable:
    """An endpoint."""
    return ModelTable(base_url=base_url, model=model, retry_for_s=retry_for_s)


@pytest.mark.unit
async def test_a_silent_endpoint_is_told_of_at_the_first_try_and_at_intervals() -> None:
    """However many calls fail; and that it answers again is told once."""
    told: list[str] = []
    now = 0.0
    endpoint = Endpoint(table("http://model/v1", retry_for_s=120.0), told.append, lambda: now)
    for _ in range(50):
        endpoint.tried(Unreachable("refused"))
    assert told == ["http://model/v1 does not answer: refused; each call is tried for up to 120 s"]
    now = TELL_EVERY_S
    endpoint.tried(Unreachable("refused"))
    assert len(told) == 2
    endpoint.tried(None)
    endpoint.tried(None)
    assert told[2:] == ["http://model/v1 answers again"]


@pytest.mark.process
async def test_what_is_wrong_with_an_endpoint_is_told_when_it_is_probed(tmp_path: Path) -> None:
    """Nobody there; another path; another model; and of one that is right, nothing, with `/v1` or without."""
    with start_backend(tmp_path) as backend:
        cases = [
            (table("http://127.0.0.1:9/v1"), "http://127.0.0.1:9/v1 does not answer"),
            (table(f"{backend.url}/other/v1"), "/other/v1: GET /models answered 404"),
            (table(backend.base_url, "nobody"), f"serves {backend.model}, and not 'nobody'"),
            (table(backend.base_url, backend.model), ""),
            (table(backend.url, backend.model), ""),
        ]
        for given, says in cases:
            told: list[str] = []
            async with Endpoint(given, told.append) as endpoint:
                await endpoint.probe()
            assert [says in line for line in told] == [True] * bool(says), told


@pytest.mark.process
async def test_a_call_that_finds_nothing_says_what_base_url_usually_is(tmp_path: Path) -> None:
    """Once, and with the address."""
    told: list[str] = []
    with start_backend(tmp_path) as backend:
        async with Endpoint(table(f"{backend.url}/api"), told.append) as endpoint:
            for _ in range(2):
                await endpoint.complete("/v1/chat/completions", {"model": "m", "messages": []})
    [line] = told
    assert "/api: POST /chat/completions answered 404" in line
    assert line.endswith("base_url is what stands before /chat/completions, and usually ends in /v1")
