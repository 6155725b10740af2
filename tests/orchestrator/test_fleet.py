"""Fleets: discovery, adopting, and asking everybody at once, where a bad participant is data."""

from typing import Any

import anyio
import pytest

from orchestrator.coordination import commit, prepare, renew, restore, retire
from orchestrator.errors import ControlFailed, PrepareFailed
from orchestrator.fleet import PREPARE_ORDER, RESUME_ORDER, adopt, ask_all, discover, failures_of
from participants import Code, Floor, ParticipantError, Status
from participants.wire import Prepare, Prepared
from store import Ref
from tests.support.checkpoints import memory_store
from tests.support.owners import ON_PUSHED_LOOP, Party, lives, party, push, round_id

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

REF = Ref(checkpoint=round_id(), digest="d" * 64, run_id="a" * 32)


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


def prepare_for(at: Party) -> Any:
    return lambda member: Prepare(**at.fleet.envelope(member), round=round_id(), timeout_s=1, lease_s=9)


async def test_discovery_names_every_process() -> None:
    """Kind, name and process; an envelope has the incarnation of its member."""
    async with party(kinds=("agent", "model"), workers=2) as at:
        assert [m.name for m in at.fleet.members] == [
            "agent.main/w0",
            "agent.main/w1",
            "model.main/w0",
            "model.main/w1",
        ]
        assert [m.name for m in at.fleet.of_kind("model")] == ["model.main/w0", "model.main/w1"]
        incarnations = {at.fleet.envelope(member)["incarnation"] for member in at.fleet.members}
        assert len(incarnations) == 4


@pytest.mark.fault(37)
async def test_discovery_names_those_that_do_not_answer() -> None:
    """Whatever they raise, all of them, and after the deadline those that hang."""
    async with party() as at:
        for server, error in zip(
            at.servers, (ValueError("odd"), ParticipantError(Code.INTERNAL, "broken")), strict=False
        ):
            server.link.inner = Answering(error)  # type: ignore[assignment]
        at.servers[2].link.inner = Answering(None)  # type: ignore[assignment]
        failed: list[ControlFailed] = []

        async def look() -> None:
            with pytest.raises(ControlFailed) as caught:
                await discover([server.link for server in at.servers], at.store.run_id)
            failed.append(caught.value)

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await push(31)
        assert len(failed[0].failures) == 3
        assert "odd" in str(failed[0])
        assert "broken" in str(failed[0])


class Answering:
    """A participant that raises, or hangs."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"<Answering {self.error!r}>"

    async def capabilities(self) -> Status:
        if self.error is None:
            await anyio.sleep_forever()
        raise self.error or AssertionError


async def test_two_processes_of_one_name_are_refused() -> None:
    """Their records and errors could not be told apart, and each would take the other's share of a restore."""
    async with party(kinds=("agent",)) as at:
        link = at.servers[0].link
        with pytest.raises(ControlFailed, match=r"agent\.main/w0"):
            await discover([link, link], at.store.run_id)


@pytest.mark.fault(37)
async def test_one_that_fails_or_hangs_does_not_keep_the_others_from_answering() -> None:
    """An outcome each, in order, at the deadline."""
    async with party() as at:
        for server, fault in zip(at.servers, ("hangs", "fails", "dies"), strict=False):
            server.link.faults["prepare"] = fault
        outcomes: list[Any] = []

        async def ask() -> None:
            outcomes.extend(await ask_all(at.fleet.members, prepare_for(at), Prepared, timeout_s=3))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await push(4)
        failures = [type(outcome.failure) for outcome in outcomes]
        assert failures == [TimeoutError, ParticipantError, ConnectionError, type(None)]
        assert outcomes[3].answer.prepared
        assert list(failures_of(outcomes)) == [server.name for server in at.servers[:3]]


@pytest.mark.fault(43)
async def test_an_adopt_lifts_epoch_and_floor_everywhere_and_lists_what_lives() -> None:
    """By default nothing of a lower epoch may go on; a lower floor keeps it."""
    async with party() as at:
        [life] = lives(1)
        await at.write(life, "a", creates=True)
        kept, answers = await adopt(at.fleet, 2, Floor(1, 0))
        assert (kept.epoch, kept.floor) == (2, Floor(1, 0))
        assert [answer.lives for answer in answers.values()] == [(life,)] * 4
        lifted, answers = await adopt(kept, 3)
        assert (lifted.floor, lifted.with_floor(Floor(1, 0)).floor) == (Floor(3, 0), Floor(3, 0))
        assert [answer.lives for answer in answers.values()] == [()] * 4
        with pytest.raises(ControlFailed, match="stale_epoch"):
            await adopt(kept, 2)


@pytest.mark.fault(46)
async def test_an_adopt_of_a_process_that_was_restarted_is_refused() -> None:
    """It is discovered again first: nobody takes an empty worker for the old one."""
    async with party() as at:
        await at.restart(at.of("agent"))
        at.fleet.members[2].link.inner = at.of("agent").link.inner  # type: ignore[attr-defined]
        with pytest.raises(ControlFailed, match=r"agent\.main/w0: wrong_incarnation"):
            await adopt(at.fleet, 2)


async def test_the_orders_are_each_others_reverse() -> None:
    """Who starts work is closed first and opened last."""
    assert tuple(reversed(RESUME_ORDER)) == ("environment", "model", "agent", "resources")
    assert PREPARE_ORDER == ("environment", "model", "agent", "resources")


async def test_a_fleet_of_nobody_answers_nothing() -> None:
    """No error, and no deadline to wait for."""
    assert await ask_all([], lambda member: Prepare.model_construct(), Prepared) == []
    assert (await discover([], memory_store().run_id)).members == ()


async def test_an_epoch_below_one_is_no_epoch() -> None:
    """Neither adopted, nor asked with before one is adopted; the error says what to do, in plain words."""
    async with party() as at:
        found = await discover([server.link for server in at.servers], at.store.run_id)
        for asked in (adopt(found, 0), adopt(found, -1)):
            with pytest.raises(ControlFailed, match=r"epoch -?[01] is none: claim one") as caught:
                await asked
            assert len(caught.value.failures) == len(at.servers)
        with pytest.raises(PrepareFailed, match="epoch 0 is none: claim one"):
            await prepare(found, round_id(), timeout_s=1, lease_s=9)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
async def test_what_is_no_time_is_refused_and_nobody_is_asked(seconds: float) -> None:
    """By every workflow that takes one."""
    async with party() as at:
        fleet, round_ = at.fleet, round_id()
        before = [list(server.link.sent) for server in at.servers]
        for asked in (
            prepare(fleet, round_, timeout_s=seconds, lease_s=9),
            prepare(fleet, round_, timeout_s=1, lease_s=seconds),
            commit(fleet, round_, [], None, timeout_s=seconds),
            renew(fleet, round_, lease_s=seconds),
            restore(fleet, round_, REF, [], timeout_s=seconds),
            retire(fleet, [], timeout_s=seconds),
        ):
            with pytest.raises(ControlFailed, match=r"_s: .* is no number of seconds"):
                await asked
        assert [server.link.sent for server in at.servers] == before


async def test_a_message_that_cannot_be_is_refused_in_plain_words() -> None:
    """As the participant would have said it, and not as the text of a library."""
    async with party() as at:

        def wrong(member: Any) -> Any:
            return Prepare(**at.fleet.envelope(member), round=round_id(), timeout_s=-1, lease_s=9)

        for failure in failures_of(await ask_all(at.fleet.members, wrong, Prepared)).values():
            assert isinstance(failure, ParticipantError)
            assert (failure.code, failure.message) == (
                Code.INVALID_REQUEST,
                "timeout_s: Input should be greater than 0",
            )
