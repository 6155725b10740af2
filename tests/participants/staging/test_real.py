"""The real worker with a token store: the same helper behind another engine."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import pytest

from participants.inference import Backend, Settings, serving
from participants.staging import Key

from .test_backend import Rig, caller, claim

pytest.importorskip("torch", reason="the real worker needs the extra `worker`")
pytestmark = [pytest.mark.real, pytest.mark.anyio]

ROUTE = "/v1/completions"
TOKENS = 14
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "presence_penalty": 0.5, "repetition_penalty": 1.2}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A real worker with a token store."""
    from participants.worker import start_engine

    def make() -> Backend:
        return Backend(Settings(control=True, token_store=tmp_path / "tokens"), start_engine(0))

    backend = await anyio.to_thread.run_sync(make)
    async with serving(backend) as url, aiohttp.ClientSession() as session:
        yield Rig(backend, url, session)
    backend.close()


@pytest.mark.parametrize("more", [{}, SAMPLED], ids=["greedy", "sampled"])
async def test_a_real_generation_continues_the_same_inline_and_staged(rig: Rig, more: dict[str, Any]) -> None:
    """Cut at several tokens: prefix and rest are the uncut ids both ways, sampled with a seed and penalties too."""
    more = {"max_tokens": TOKENS, "temperature": 0, **more}
    whole = await rig.uncut(ROUTE, **more)
    assert rig.backend.stager is not None
    for k in (1, 5, 9, TOKENS - 1):
        staged = await rig.cut(ROUTE, k, caller(k), **more)
        prefix = list((await rig.backend.stager.store.read(Key.parse(staged.key))).ids)
        assert prefix == whole.ids[: staged.count]
        asked = more | {"max_tokens": TOKENS - staged.count, "ignore_eos": True}
        inline = whole.prompt + prefix
        assert prefix + await rig.rest(inline, caller(k, 1), continued_tokens=staged.count, **asked) == whole.ids
        assert prefix + await rig.rest(whole.prompt, caller(k, 2), staged=claim(staged), **asked) == whole.ids


async def test_many_real_generations_at_once_are_each_staged_and_continued(rig: Rig) -> None:
    """Eight cut at once and continued at once, each by its key: the uncut ids of each."""
    prompts = [f"story number {n}" for n in range(8)]
    more = {"max_tokens": TOKENS, "temperature": 0}
    whole = [await rig.uncut(ROUTE, prompt=prompt, **more) for prompt in prompts]
    staged = [await rig.cut(ROUTE, 3 + n, caller(n), prompt=prompt, **more) for n, prompt in enumerate(prompts)]
    rests: dict[int, list[int]] = {}

    async def go_on(n: int) -> None:
        asked = more | {"max_tokens": TOKENS - staged[n].count, "ignore_eos": True}
        rests[n] = await rig.rest(whole[n].prompt, caller(n, 1), staged=claim(staged[n]), **asked)

    async with anyio.create_task_group() as tasks:
        for n in range(len(prompts)):
            tasks.start_soon(go_on, n)
    assert [rests[n] for n in range(8)] == [whole[n].ids[staged[n].count :] for n in range(8)]
