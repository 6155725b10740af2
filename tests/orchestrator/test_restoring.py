"""Restores and retiring over a whole fleet: everything or nothing, whoever fails at whichever step."""

from typing import Any

import anyio
import pytest

from orchestrator.coordination import restore, resume, retire
from orchestrator.errors import (
    ControlFailed,
    RestoreFailed,
)
from participants import Code, ParticipantError
from store import Life
from tests.support.checkpoints import memory_store
from tests.support.desk import beside
from tests.support.owners import (
    KINDS,
    ON_PUSHED_LOOP,
    Notebook,
    Pause,
    failing,
    next_life,
    party,
    push,
    round_id,
    settle,
)
from tests.support.parties import FAULTS, LIVES, failing_with, party_if, published, ready, working_party

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


async def test_a_restore_spreads_over_another_number_of_workers() -> None:
    """Every rollout is at exactly one process of each kind, and continues there."""
    store = memory_store()
    ref = await published(store)
    async with party(store, epoch=2, workers=3) as at:
        await restore(at.fleet, round_id(1, 2), ref, LIVES, timeout_s=10)
        await resume(at.fleet, round_id(1, 2))
        assert sum(at.brought()) == len(LIVES) * 4


@pytest.mark.fault(42, 47)
async def test_a_restore_may_be_repeated_and_leaves_no_double() -> None:
    """In the same round it is the same; in a new epoch it starts again from the boundary."""
    store = memory_store()
    ref = await published(store)
    async with party(store, epoch=2) as at:
        for _ in range(2):
            await restore(at.fleet, round_id(1, 2), ref, LIVES, timeout_s=10)
        assert at.brought() == [3] * 4
        await at.adopt(3)
        assert at.brought() == [0] * 4
        await restore(at.fleet, round_id(1, 3), ref, LIVES, timeout_s=10)
        await resume(at.fleet, round_id(1, 3))
        assert at.brought() == [3] * 4
        await at.write(next_life(LIVES[0], 3), "b")
        assert at.notes("r0") == [["a", "b"]] * 4


@pytest.mark.fault(42)
@pytest.mark.parametrize("absent", ["agent", "resources"])
async def test_a_restore_without_a_participant_of_the_checkpoint_is_refused_by_its_name(absent: str) -> None:
    """Nothing is read; with that participant, and with one more that the checkpoint does not know, it restores."""
    store = memory_store()
    ref = await published(store)
    async with party(store, [kind for kind in KINDS if kind != absent], epoch=2) as at:
        with pytest.raises(RestoreFailed, match=f"has {absent}.main, and the fleet that restores it has not") as caught:
            await restore(at.fleet, round_id(1, 2), ref, LIVES, timeout_s=10)
        failures = caught.value.failures.values()
        assert {f.code for f in failures if isinstance(f, ParticipantError)} == {Code.SCOPE_MISMATCH}
        assert at.phases() == {"idle"}
    async with party(store, [*KINDS, "judge"], epoch=3) as at:
        await restore(at.fleet, round_id(1, 3), ref, LIVES, timeout_s=10)
        await resume(at.fleet, round_id(1, 3))
        assert at.brought() == [3, 3, 3, 3, 0]


@pytest.mark.enumerated(4)
@pytest.mark.fault(42)
@pytest.mark.parametrize("nth", range(4))
@pytest.mark.parametrize("step", ["stage", "activate"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_restore_opens_everything_or_nothing(fault: str, step: str, nth: int) -> None:
    """One that fails is named; nothing is active anywhere, and with it repaired a fresh restore works."""
    store = memory_store()
    ref = await published(store)
    async with party(store, epoch=2) as at:
        bad = at.servers[nth]
        bad.link.faults[step] = fault
        error = await failing_with(
            RestoreFailed, restore(at.fleet, round_id(1, 2), ref, LIVES, timeout_s=10), party_if(at, fault)
        )
        assert list(error.failures) == [bad.name]
        others = [server for server in at.servers if server is not bad]
        assert [server.owner.counts()["restored"] for server in others] == [0, 0, 0]
        assert at.phases() == {"idle"}
        if bad.link.dead:
            await at.restart(bad)
        bad.link.faults.clear()
        await at.adopt(3)
        await restore(at.fleet, round_id(1, 3), ref, LIVES, timeout_s=10)
        assert at.brought() == [3] * 4


@pytest.mark.parametrize("hook", ["import", "activate"])
async def test_a_hook_that_raises_in_a_restore_opens_nothing(hook: str) -> None:
    """The participant is named with what it raised."""
    store = memory_store()
    ref = await published(store)
    async with party(store, epoch=2) as at:
        at.of("resources").owner.hooks[hook] = failing(ZeroDivisionError("planted"))
        error = await failing_with(RestoreFailed, restore(at.fleet, round_id(1, 2), ref, LIVES, timeout_s=10))
        assert "planted" in str(error.failures["resources.main/w0"])
        assert (at.brought(), at.phases()) == ([0] * 4, {"idle"})


@pytest.mark.fault(42)
@pytest.mark.parametrize("step", ["stage", "activate"])
async def test_a_restore_whose_controller_dies_opens_nothing_and_the_next_one_works(step: str) -> None:
    """There is no lease: it stays closed until the next controller adopts, and that discards."""
    store = memory_store()
    ref = await published(store)
    async with party(store, epoch=2) as at:
        for server in at.servers[2:]:
            server.link.faults[step] = "hangs"
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: restore(at.fleet, round_id(1, 2), ref, LIVES, timeout_s=10**6))
            while at.of("environment").plane.status().phase != ("staged" if step == "stage" else "restored"):
                await settle(5)
            for server in at.servers:
                server.link.dead = True  # Not even the abort of the dying controller is heard.
            group.cancel_scope.cancel()
        await push(10**6)
        for server in at.servers:
            server.link.dead = False
            server.link.faults.clear()
        await at.adopt(3)
        assert (at.brought(), at.phases()) == ([0] * 4, {"idle"})
        await restore(at.fleet, round_id(1, 3), ref, LIVES, timeout_s=10)


@pytest.mark.fault(42)
async def test_a_restore_that_is_cancelled_discards() -> None:
    """The controller lives and gives up: nothing stays closed."""
    store = memory_store()
    ref = await published(store)
    async with party(store, epoch=2) as at, anyio.create_task_group() as group:
        at.of("resources").link.faults["activate"] = "hangs"
        group.start_soon(lambda: restore(at.fleet, round_id(1, 2), ref, LIVES, timeout_s=10**6))
        while at.of("environment").plane.status().phase != "restored":
            await settle(5)
        group.cancel_scope.cancel()
    assert (at.brought(), at.phases()) == ([0] * 4, {"idle"})


# Retire


@pytest.mark.fault(54)
async def test_retire_goes_environment_agent_then_model_and_resources() -> None:
    """Who makes calls stops before who answers them; twice and of unknown lives is fine."""
    order: list[str] = []
    async with working_party(workers=1) as at:
        for server in at.servers:
            server.link.sent = _Recorder(order, server.owner.kind)
        for _ in range(2):
            assert await retire(at.fleet, [*LIVES, Life("unknown", 1, 0, 9)], timeout_s=5) == frozenset()
        kinds = [entry.removesuffix(" retire") for entry in order]
        assert (kinds[:2], set(kinds[2:4])) == (["environment", "agent"], {"model", "resources"})
        assert [server.owner.freed for server in at.servers] == [LIVES] * 4


@pytest.mark.fault(36, 54)
async def test_a_retire_has_one_deadline_for_all_kinds() -> None:
    """Where work listens nowhere it takes no longer than that, and everybody was told."""
    async with working_party(workers=1) as at, anyio.create_task_group() as group:
        pause = Pause(shielded=True)
        for server in at.servers:
            server.owner.hooks["write"] = pause
            group.start_soon(_stale, server.owner, LIVES[0])
        await pause.reached.wait()
        async with beside(retire(at.fleet, LIVES[:1], timeout_s=10)) as [asked]:
            await push(10)
            with anyio.move_on_after(1):  # What comes after the deadline is told in no time.
                await asked.done.wait()
            in_time = asked.done.is_set()
            if not in_time:
                pause.released.set()
        assert in_time
        assert asked.answer == frozenset(LIVES[:1])
        assert all(list(server.owner.live()) == LIVES[1:] for server in at.servers)
        pause.released.set()


async def _stale(owner: Notebook, life: Life) -> None:
    with pytest.raises(ParticipantError, match="stale_life"):
        await owner.write(life, "late")


class _Recorder(list[str]):
    """Notes what is sent to a kind in one common list."""

    def __init__(self, order: list[str], kind: str) -> None:
        super().__init__()
        self._order = order
        self._kind = kind

    def append(self, item: str) -> None:
        self._order.append(f"{self._kind} {item}")


@pytest.mark.fault(53, 54)
async def test_retire_in_a_round_is_refused_and_says_what_to_do() -> None:
    """Neither in a checkpoint nor in a restore."""
    store = memory_store()
    ref = await published(store)
    async with party(store, epoch=2) as at:
        await ready(at)
        with pytest.raises(ControlFailed, match="resume or abort it first"):
            await retire(at.fleet, LIVES, timeout_s=1)
        await resume(at.fleet, round_id(1, 2))
        await restore(at.fleet, round_id(2, 2), ref, LIVES, timeout_s=10)
        with pytest.raises(ControlFailed, match="resume or abort it first"):
            await retire(at.fleet, LIVES, timeout_s=1)
