"""A worker that is killed: what it acknowledged is there for the next process, whatever it was doing."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import pytest

from participants.data import CALL_HEADER, LIFE_HEADER
from participants.staging import Identity, Key, Staged, TokenStore, Wanted, client
from store import CheckpointId
from tests.support.backend import RunningBackend, start_backend
from tests.support.checkpoints import life

from .made import CALL, RUN, all_staged
from .test_backend import claim, named

pytestmark = [pytest.mark.process, pytest.mark.anyio]

FIRST = CheckpointId(1, 1)
TOKENS = 60


def caller(n: int, attempt: int = 0) -> Identity:
    """The caller of rollout `r<n>`."""
    return Identity(life(f"r{n}", attempt=attempt), CALL)


def start(folder: Path, n: int) -> RunningBackend:
    """The n-th process on one token store."""
    own = folder / str(n)
    own.mkdir()
    return start_backend(own, "--token-store", str(folder / "tokens"))


@pytest.fixture
def first(tmp_path: Path) -> Iterator[RunningBackend]:
    """The process that is killed."""
    with start(tmp_path, 1) as running:
        yield running


def asked(backend: RunningBackend, prompt: Any, **more: Any) -> dict[str, Any]:
    """A streaming request that wants ids."""
    fixed = {"stream": True, "return_token_ids": True, "ignore_eos": True, "max_tokens": TOKENS}
    return {"model": backend.model, "prompt": prompt, **fixed, **more}


async def generate(session: aiohttp.ClientSession, backend: RunningBackend, who: Identity, body: Any) -> bytes:
    """One stream; what came of it, to its end or to the end of the backend."""
    headers, shown = {LIFE_HEADER: str(who.life), CALL_HEADER: who.call}, b""
    try:
        async with session.post(f"{backend.base_url}/completions", json=body, headers=headers) as reply:
            async for chunk in reply.content.iter_any():
                shown += chunk
    except aiohttp.ClientError:
        pass
    return shown


@asynccontextmanager
async def held(backend: RunningBackend, callers: list[Identity], after: int) -> AsyncIterator[aiohttp.ClientSession]:
    """Streams of these callers, each held after so many tokens; they end with the block, or with the backend."""
    await anyio.to_thread.run_sync(lambda: backend.control.hold(after_tokens=after))
    async with aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
        for who in callers:
            tasks.start_soon(generate, session, backend, who, asked(backend, f"prompt {who.life.rollout_id}"))
        await anyio.to_thread.run_sync(lambda: backend.control.wait(held=len(callers)))
        yield session
        tasks.cancel_scope.cancel()


async def test_the_next_process_continues_what_a_killed_one_staged(first: RunningBackend, tmp_path: Path) -> None:
    """Staged and pinned, SIGKILL, a fresh process on the same folder, a sweep: prefix and rest are the uncut ids."""
    callers = [caller(n) for n in range(3)]
    async with held(first, callers, 20) as session:
        post = client.posting(session, first.base_url)
        staged = all_staged(await client.stage_all(post, [Wanted(who, 15) for who in callers], 30))
        await client.pin_all(post, RUN, FIRST, [each.key for each in staged])
        await anyio.to_thread.run_sync(first.kill)
    second = await anyio.to_thread.run_sync(start, tmp_path, 2)
    try:
        async with aiohttp.ClientSession() as session:
            post = client.posting(session, second.base_url)
            [gone] = await client.stage_all(post, [Wanted(callers[0], 15)], 30)
            assert not isinstance(gone, Staged)
            assert (await client.sweep(post, 0)).packs == 0
            assert (await client.status(session, second.base_url, run=RUN)).pinned == (FIRST,)
            for n, each in enumerate(staged):
                prompt = f"prompt r{n}"
                whole = named(await generate(session, second, caller(n, 1), asked(second, prompt)), "token_ids")
                body = asked(second, prompt, staged=claim(each), max_tokens=TOKENS - 15)
                rest = named(await generate(session, second, caller(n, 2), body), "token_ids")
                assert (len(rest), rest) == (TOKENS - 15, whole[15:])
    finally:
        await anyio.to_thread.run_sync(second.stop)


@pytest.mark.parametrize("after", [1, 4, 9])
async def test_a_kill_while_it_stages_loses_nothing_that_was_acknowledged(
    first: RunningBackend, tmp_path: Path, after: int
) -> None:
    """Requests without a pause, a kill inside one: every key that came back is readable, and no litter stays."""
    callers = [caller(n) for n in range(20)]
    acknowledged: dict[tuple[Identity, int], Staged] = {}

    async def stage(session: aiohttp.ClientSession, enough: anyio.Event) -> None:
        post = client.posting(session, first.base_url)
        for count in range(1, 41):
            outcomes = await client.stage_all(post, [Wanted(who, count) for who in callers], 30)
            staged = [each for each in outcomes if isinstance(each, Staged)]
            if not staged:
                return
            acknowledged.update({(who, count): each for who, each in zip(callers, staged, strict=True)})
            if count == after:
                enough.set()

    async with held(first, callers, 40) as session, anyio.create_task_group() as tasks:
        enough = anyio.Event()
        tasks.start_soon(stage, session, enough)
        await enough.wait()
        await anyio.to_thread.run_sync(first.kill)
    assert len(acknowledged) >= after * len(callers)
    store = await anyio.to_thread.run_sync(TokenStore.on_disk, tmp_path / "tokens")
    for (who, count), each in acknowledged.items():
        entry = await store.read(Key.parse(each.key))
        assert (entry.source, entry.count, entry.digest) == (who, count, each.digest)
    await store.sweep(0)
    left = await anyio.to_thread.run_sync(lambda: [path for path in (tmp_path / "tokens").rglob("*") if path.is_file()])
    assert [path.name for path in left] == ["sweep.lock"]
