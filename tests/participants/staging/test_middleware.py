"""Staging in a server that knows nothing of it: through the middleware, keys instead of ids."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from bench.exact_calls import HaltingEndpoint
from bench.exactness import Sizes, run
from participants.inference import Backend, Settings, serving
from participants.staging.middleware import StagingMiddleware
from participants.staging.wire import STAGING_PREFIX

pytestmark = [pytest.mark.scale, pytest.mark.anyio]

SIZES = Sizes(prompts=1, calls=1, tokens=10, cuts=1, call_cuts=2, at_once=2)


@asynccontextmanager
async def staging(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, StagingMiddleware]]:
    """A backend without a token store, and the middleware in front of it."""
    monkeypatch.setenv("MIDFLIGHT_TOKEN_STORE", str(folder))
    backend = await anyio.to_thread.run_sync(Backend, Settings())
    middleware = await anyio.to_thread.run_sync(StagingMiddleware, backend.app)
    backend.app = middleware  # type: ignore[assignment]
    async with serving(backend) as url:
        yield f"{url}/v1", middleware
    backend.close()


async def test_cuts_are_staged_and_continued_by_their_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call that names ids on its way is staged, continued by its key, and has the reply of an uncut one."""
    async with staging(tmp_path, monkeypatch) as (url, middleware):
        result = await run(url, SIZES)
    assert result.passed
    assert result.capabilities.staging
    counts = middleware.stager.counts
    ways = [figures for way, figures in result.figures.items() if way.startswith(("chat", "completions"))]
    assert all(figures.continued == figures.total for figures in ways)
    assert counts["staged"] == sum(figures.total for figures in ways)
    assert counts["begun"] >= counts["staged"]
    assert set(counts) == {"staged", "staged_tokens", "begun", "not_active"}


async def test_what_is_not_as_it_was_staged_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason, and nothing is generated."""
    async with staging(tmp_path, monkeypatch) as (url, _), HaltingEndpoint(url) as endpoint:
        body: dict[str, Any] = {"model": "midflight-deterministic", "prompt": [1, 2, 3], "max_tokens": 4}
        for staged, code in (({"key": "none"}, "invalid_request"), (_cut("0" * 32 + ".0.1"), "unknown_key")):
            reply = await endpoint.post("/v1/completions", {**body, "staged": staged})
            assert (reply.status, reply.body["error"]["code"]) == (422, code)
        assert (await endpoint.get(f"{STAGING_PREFIX}/status")).body["counts"] == {"unknown_key": 1}


def _cut(key: str) -> dict[str, Any]:
    return {"key": key, "count": 1, "digest": "0" * 64}
