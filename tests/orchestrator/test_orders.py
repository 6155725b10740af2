"""In which order the kinds are asked: who begins work parks first and reopens last."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import pytest

from orchestrator.coordination import abort, prepare, resume, retire
from tests.support.owners import ON_PUSHED_LOOP, Party, round_id, settle
from tests.support.parties import LIVES, ready, working_party

Ask = Callable[[], Coroutine[Any, Any, Any]]
pytestmark = [pytest.mark.unit, pytest.mark.anyio]

TO_PARK = ("environment", "model", "agent", "resources")
"""The model before agents: from then on it holds what it would answer them."""
TO_REOPEN = ("resources", "agent", "model", "environment")


@pytest.fixture
def anyio_backend() -> Any:
    """A clock that stands still, so that whoever hangs is waited for."""
    return ON_PUSHED_LOOP


async def asked_of(at: Party, operation: str, hanging: str, ask: Ask) -> set[str]:
    """The kinds that were asked while all processes of one kind hang."""
    before = {server.name: server.link.sent.count(operation) for server in at.servers}
    for server in at.servers:
        if server.owner.kind == hanging:
            server.link.faults[operation] = "hangs"
    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await settle(200)
        found = {s.owner.kind for s in at.servers if s.link.sent.count(operation) > before[s.name]}
        group.cancel_scope.cancel()
    return found


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(("operation", "order"), [("prepare", TO_PARK), ("resume", TO_REOPEN), ("abort", TO_REOPEN)])
async def test_each_kind_is_asked_once_those_before_it_have_answered(
    operation: str, order: tuple[str, ...], place: int
) -> None:
    """Where one kind hangs, those before it have answered, and none after it was asked yet."""
    async with working_party() as at:
        await at.adopt(2)
        fleet, first = at.fleet, round_id(1, 2)
        asks: dict[str, Ask] = {
            "prepare": partial(prepare, fleet, first, timeout_s=5, lease_s=500),
            "resume": partial(resume, fleet, first),
            "abort": partial(abort, fleet, first),
        }
        if operation != "prepare":
            await ready(at)
        assert await asked_of(at, operation, order[place], asks[operation]) == set(order[: place + 1])


@pytest.mark.parametrize(
    ("hanging", "asked"),
    [
        ("environment", {"environment"}),
        ("agent", {"environment", "agent"}),
        ("model", {"environment", "agent", "model", "resources"}),
        ("resources", {"environment", "agent", "model", "resources"}),
    ],
)
async def test_a_retire_stops_callers_before_those_whom_they_call(hanging: str, asked: set[str]) -> None:
    """The environment, then the agent, then model and resources together."""
    async with working_party() as at:
        await at.adopt(2)
        ask = partial(retire, at.fleet, LIVES, timeout_s=5)
        assert await asked_of(at, "retire", hanging, ask) == asked
