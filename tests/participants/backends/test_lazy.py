"""Capabilities of an endpoint that may be dead at the start: known as soon as somebody answers, and probed once."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from participants import Code, ParticipantError, Reply
from participants.backends import NOTHING, Capabilities, LazyCapabilities

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
MODELS = Reply(200, {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 7}]})


class Desk:
    """Answers `GET` with the list of models, or not at all; nothing else is there."""

    def __init__(self, *, alive: bool) -> None:
        self.alive = alive
        self.probes = 0
        self.pause: anyio.Event | None = None

    async def get(self, path: str) -> Reply:
        self.probes += path == "/v1/models"
        if self.pause:
            await self.pause.wait()
        if not self.alive:
            raise ParticipantError(Code.MODEL_FAILED, "nobody did not answer")
        return MODELS if path == "/v1/models" else Reply(404, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        return Reply(404, None)


async def test_a_dead_endpoint_is_probed_again_after_the_first_success() -> None:
    """Until then its capabilities are nothing, and it is not asked at every call."""
    desk = Desk(alive=False)
    lazy = LazyCapabilities(desk)
    assert (lazy.now, lazy.probed.reached, desk.probes) == (NOTHING, False, 0)
    assert await lazy.ensure() == await lazy.ensure() == NOTHING
    assert desk.probes == 1
    desk.alive = True
    assert (await lazy.ensure(), desk.probes) == (NOTHING, 1)
    lazy.note_success()
    assert (await lazy.ensure()).context_length == 7
    lazy.note_success()
    assert (await lazy.ensure()).kind == "vllm"
    assert desk.probes == 2


async def test_callers_at_once_share_one_probe() -> None:
    """They wait for it, and have the same."""
    desk = Desk(alive=True)
    desk.pause = anyio.Event()
    lazy, found = LazyCapabilities(desk), []

    async def caller() -> None:
        found.append(await lazy.ensure())

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(caller)
        await anyio.wait_all_tasks_blocked()
        desk.pause.set()
    assert (len(set(map(id, found))), desk.probes) == (1, 1)


async def test_a_caller_that_gives_up_leaves_the_probe_to_the_next() -> None:
    """Nothing is remembered of a probe that was cancelled."""
    desk = Desk(alive=True)
    desk.pause = anyio.Event()
    lazy = LazyCapabilities(desk)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lazy.ensure)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    desk.pause = None
    assert (await lazy.ensure()).kind == "vllm"


async def test_a_refresh_that_reaches_nobody_keeps_what_is_known() -> None:
    """An endpoint that is down for a moment has not become another one."""
    desk = Desk(alive=True)
    lazy = LazyCapabilities(desk)
    known = await lazy.ensure()
    desk.alive = False
    assert (await lazy.refresh()).capabilities == known == lazy.now
    desk.alive = True
    assert (await lazy.refresh()).reached


async def test_what_is_said_to_be_known_is_not_probed() -> None:
    """For tests, and for operators who know better."""
    desk, known = Desk(alive=True), Capabilities(kind="sglang")
    lazy = LazyCapabilities(desk, known=known)
    assert (await lazy.ensure(), lazy.now, desk.probes) == (known, known, 0)


async def test_a_slow_probe_holds_up_only_those_who_need_it() -> None:
    """Who has patience goes on with what is known; the probe itself goes on, and so does who waits for it."""
    desk = Desk(alive=True)
    desk.pause = anyio.Event()
    lazy, found = LazyCapabilities(desk), []

    async def caller(patience_s: float | None) -> None:
        found.append((await lazy.ensure(patience_s)).context_length)

    async with anyio.create_task_group() as group:
        group.start_soon(caller, 0.01)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(caller, None)
        await caller(0.01)
        assert found == [None]
        desk.pause.set()
    assert (found, desk.probes) == ([None, 7, 7], 1)
