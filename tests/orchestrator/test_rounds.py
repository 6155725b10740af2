"""A checkpoint as a context manager: its order, what ends it early, and what each end leaves behind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from orchestrator.errors import CommitFailed, ControlFailed, PrepareFailed, RenewFailed, TalliesDiffer
from orchestrator.rounds import Blocked, Round, RoundLimits, checkpoint
from participants import Floor
from store import Controller, Life, OutcomeUnknown, Segment, Store, StoreError, claim, open_checkpoint
from tests.support.checkpoints import memory_store
from tests.support.owners import ON_PUSHED_LOOP, Party, Pause, PausedBackend, lives, party, push, settle

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIVES = lives(3)
LIMITS = RoundLimits(prepare_timeout_s=5, more_time_s=5, commit_timeout_s=20, publish_timeout_s=10, lease_s=60)


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


@dataclass
class Run:
    """A party with work in it, and the controller of its run."""

    at: Party
    controller: Controller

    @property
    def store(self) -> Store:
        return self.at.store

    async def take(self, **fields: Any) -> Round:
        """One checkpoint of everything."""
        async with checkpoint(self.at.fleet, self.controller, LIMITS) as opened:
            opened.take(**{"scope": LIVES, **fields})
        return opened

    async def assert_works(self) -> None:
        """Everybody is idle, open, and works on."""
        assert self.at.phases() == {"idle"}
        await self.at.assert_open()


@asynccontextmanager
async def running(store: Store | None = None) -> AsyncIterator[Run]:
    """Three lives at one participant of each kind, and a controller."""
    shared = store or memory_store()
    async with claim(shared) as controller, party(shared, epoch=controller.epoch) as at:
        for life in LIVES:
            await at.write(life, "a", creates=True)
        yield Run(at, controller)


async def test_a_checkpoint_has_the_scope_and_the_controllers_own_state() -> None:
    """Scope, restarts, dropped, state with bytes, output, fingerprint and tags are in the manifest; work goes on."""
    async with running() as run:
        gone, again = Life("gone", 1, 0, 8), Life("again", 1, 0, 9)
        segment = Segment(name="rows-1.jsonl", length=5, digest="d" * 64)
        opened = await run.take(
            restarts=[again],
            dropped={gone: "its row is broken"},
            state={"cursor": 7, "buffer": b"bytes"},
            output=[segment],
            fingerprint={"model": "m"},
            tags=["evaluated"],
        )
        assert opened.published is not None
        assert opened.published.checkpoint == opened.id
        found = await open_checkpoint(run.store, opened.published)
        manifest = found.manifest
        assert (list(manifest.scope), list(manifest.restarts)) == (LIVES, [again])
        assert [(d.life, d.reason) for d in manifest.dropped] == [(gone, "its row is broken")]
        assert await found.state() == {"cursor": 7, "buffer": b"bytes"}
        assert (manifest.output, manifest.fingerprint, manifest.tags) == ((segment,), {"model": "m"}, ("evaluated",))
        await run.assert_works()


async def test_the_second_checkpoint_continues_the_first() -> None:
    """The head is the parent that participants and controller name."""
    async with running() as run:
        first = await run.take()
        second = await run.take()
        assert first.published == second.parent
        found = await open_checkpoint(run.store)
        assert found.manifest.parent == first.id


async def test_everything_stands_still_in_the_block_and_goes_on_after_the_renew() -> None:
    """Resumed is called, and admission opens, before the checkpoint is published."""
    backend, seen = PausedBackend(), list[str]()
    async with running(memory_store(backend)) as run, anyio.create_task_group() as group:
        pause = backend.before["1.1/manifest"] = Pause()

        async def take() -> None:
            resumed = lambda: seen.append("resumed")  # noqa: E731
            async with checkpoint(run.at.fleet, run.controller, LIMITS, resumed=resumed) as opened:
                assert all(server.owner.gate.closed for server in run.at.servers)
                assert opened.standstill.prepared
                opened.take(scope=LIVES)
            assert opened.published
            seen.append("published")

        group.start_soon(take)
        await pause.reached.wait()
        assert seen == ["resumed"]
        await run.assert_works()
        assert (await run.store.chain()).state.head is None
        pause.released.set()
    assert seen == ["resumed", "published"]


@pytest.mark.parametrize("error", [ZeroDivisionError("planted"), KeyboardInterrupt()])
async def test_an_exception_in_the_block_aborts(error: BaseException) -> None:
    """It comes out as it is; nothing was written, and all go on."""
    async with running() as run:
        with pytest.raises(type(error)):
            async with checkpoint(run.at.fleet, run.controller, LIMITS):
                raise error
        await run.assert_works()
        assert [server.link.sent[-1] for server in run.at.servers] == ["abort"] * 4
        assert (await run.take()).published


async def test_a_block_that_is_cancelled_aborts() -> None:
    """The abort is shielded from what cancels the block."""
    async with running() as run:
        inside = anyio.Event()

        async def take() -> None:
            async with checkpoint(run.at.fleet, run.controller, LIMITS):
                inside.set()
                await anyio.sleep_forever()

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            await inside.wait()
            group.cancel_scope.cancel()
        await run.assert_works()


async def test_a_block_that_takes_nothing_is_an_error() -> None:
    """A checkpoint without a scope would lose everybody's work."""
    async with running() as run:
        with pytest.raises(ControlFailed, match="took no scope"):
            async with checkpoint(run.at.fleet, run.controller, LIMITS):
                pass
        await run.assert_works()
        assert "commit" not in {sent for server in run.at.servers for sent in server.link.sent}


@pytest.mark.fault(36)
async def test_blockers_get_more_time_once_and_then_the_round_is_resumed() -> None:
    """Blocked names them; nothing is written, and all go on."""
    async with running() as run, anyio.create_task_group() as group:
        pause = run.at.of("agent").owner.hooks["write"] = Pause()
        group.start_soon(lambda: run.at.of("agent").owner.write(LIVES[0], "slow"))
        await pause.reached.wait()
        caught: list[Blocked] = []

        async def take() -> None:
            try:
                await run.take()
            except Blocked as error:
                caught.append(error)

        group.start_soon(take)
        await push(5)
        await push(0)
        assert run.at.of("agent").owner.gate.closed
        await push(5)
        await settle()
        assert [str(b.life) for b in caught[0].standstill.blockers] == ["r0/1.0#0"]
        assert "it writes slow" in str(caught[0])
        await run.assert_works()
        pause.released.set()


@pytest.mark.fault(36)
async def test_the_lease_that_comes_with_more_time_covers_the_rest_of_the_round() -> None:
    """Whoever needed more time may then stand still as long as anybody: a slow block is published all the same."""
    async with running() as run, anyio.create_task_group() as group:
        pause = run.at.of("agent").owner.hooks["write"] = Pause()
        group.start_soon(lambda: run.at.of("agent").owner.write(LIVES[0], "slow"))
        await pause.reached.wait()
        inside, go_on, rounds = anyio.Event(), anyio.Event(), list[Round]()

        async def take() -> None:
            async with checkpoint(run.at.fleet, run.controller, LIMITS) as opened:
                inside.set()
                await go_on.wait()
                opened.take(scope=LIVES)
            rounds.append(opened)

        group.start_soon(take)
        await push(LIMITS.prepare_timeout_s)
        pause.released.set()
        with anyio.fail_after(LIMITS.more_time_s):
            await inside.wait()
        await push(LIMITS.lease_s - 10)
        go_on.set()
        with anyio.fail_after(30):
            while not rounds:
                await settle()
        assert rounds[0].published
        await run.assert_works()


@pytest.mark.fault(36)
async def test_a_blocked_round_says_so_although_somebody_did_not_hear_the_resume() -> None:
    """The blockers are what the caller must know; a lease ends the rest."""
    async with running() as run, anyio.create_task_group() as group:
        pause = run.at.of("agent").owner.hooks["write"] = Pause()
        group.start_soon(lambda: run.at.of("agent").owner.write(LIVES[0], "slow"))
        await pause.reached.wait()
        run.at.of("model").link.faults["resume"] = "fails"
        limits = RoundLimits(prepare_timeout_s=0.001, more_time_s=0, lease_s=60)
        with pytest.raises(Blocked):
            async with checkpoint(run.at.fleet, run.controller, limits):
                raise AssertionError
        pause.released.set()


@pytest.mark.parametrize("blocked", [False, True])
async def test_a_round_that_is_cancelled_at_any_moment_leaves_nobody_standing_still(blocked: bool) -> None:
    """Also where it was just being resumed: who did not hear that would wait for a lease to run out."""
    ended = list[bool]()
    limits = RoundLimits(prepare_timeout_s=0.001 if blocked else 5, more_time_s=0, lease_s=60)

    async def take(run: Run) -> None:
        with suppress(Blocked):
            async with checkpoint(run.at.fleet, run.controller, limits) as opened:
                opened.take(scope=LIVES)
        ended.append(True)

    async with running() as run, anyio.create_task_group() as writing:
        pause = run.at.of("agent").owner.hooks["write"] = Pause()
        if blocked:
            writing.start_soon(lambda: run.at.of("agent").owner.write(LIVES[0], "slow"))
            await pause.reached.wait()
        turns = 0
        while not ended:
            async with anyio.create_task_group() as group:
                group.start_soon(take, run)
                await settle(turns)
                group.cancel_scope.cancel()
            await settle()
            assert run.at.phases() == {"idle"}, turns
            turns += 1
        pause.released.set()
    assert turns > 10


@pytest.mark.fault(38, 39, 50)
@pytest.mark.parametrize(
    ("step", "error"), [("prepare", PrepareFailed), ("commit", CommitFailed), ("renew", RenewFailed)]
)
@pytest.mark.parametrize("fault", ["fails", "dies", "dies_after", "loses_reply"])
async def test_a_failure_before_the_renew_aborts_and_the_older_checkpoint_stays(
    step: str, error: type[Exception], fault: str
) -> None:
    """The failure is what is reported; everybody who lives goes on."""
    async with running() as run:
        first = await run.take()
        run.at.of("agent").link.faults[step] = fault
        with pytest.raises(error, match=r"agent\.main"):
            await run.take()
        await run.assert_works()
        found = await open_checkpoint(run.store)
        assert found.ref == first.published
        await found.verify()


async def test_the_caller_hears_of_the_resume_once_every_renew_has_succeeded_and_never_where_one_has_not() -> None:
    """Until then nobody knows that all stood still together, so that no result may be processed."""
    async with running() as run:
        answered: list[bool] = []

        def resumed() -> None:
            links = [server.link for server in run.at.servers]
            answered.append(all(link.answered[-1] == "renew" and link.sent[-1] == "renew" for link in links))

        async def take() -> None:
            async with checkpoint(run.at.fleet, run.controller, LIMITS, resumed=resumed) as opened:
                opened.take(scope=LIVES)

        await take()
        assert answered == [True]
        run.at.of("resources").link.faults["renew"] = "fails"
        with pytest.raises(RenewFailed):
            await take()
        assert answered == [True]


async def test_tallies_that_differ_abort() -> None:
    """Agent and resources do not agree on what is between them."""
    async with running() as run:
        await run.at.of("agent").owner.write(LIVES[0], "b", peer="resources.main")
        with pytest.raises(TalliesDiffer):
            await run.take()
        await run.assert_works()
        assert (await run.store.chain()).state.head is None


@pytest.mark.fault(41)
async def test_a_resume_that_somebody_did_not_hear_still_publishes() -> None:
    """The checkpoint exists; that one is named, and reopens by its lease."""
    async with running() as run:
        run.at.of("model").link.faults["resume"] = "fails"
        opened = await run.take()
        assert opened.published
        assert opened.not_resumed is not None
        assert list(opened.not_resumed.failures) == ["model.main/w0"]
        assert run.at.of("model").owner.gate.closed
        await push(61)
        await run.assert_works()


async def test_a_lease_that_runs_out_before_the_renew_publishes_nothing() -> None:
    """The block took too long; the participants have reopened by themselves."""
    async with running() as run:

        async def take() -> None:
            async with checkpoint(run.at.fleet, run.controller, LIMITS) as opened:
                await push(61)
                opened.take(scope=LIVES)

        with pytest.raises(CommitFailed, match="lease_expired"):
            await take()
        await run.assert_works()
        assert (await run.store.chain()).state.head is None


@pytest.mark.fault(24)
async def test_an_unknown_outcome_of_the_publication_is_raised_and_work_goes_on() -> None:
    """Participants were resumed already; the chain will tell."""
    backend = PausedBackend()
    async with running(memory_store(backend)) as run, anyio.create_task_group() as group:
        pause = backend.before["chain/"] = Pause()

        async def take() -> None:
            with pytest.raises(OutcomeUnknown):
                await run.take()

        group.start_soon(take)
        await pause.reached.wait()
        await run.assert_works()
        await push(11)


async def test_a_scope_that_nobody_exports_is_refused_at_publication() -> None:
    """Every rollout of the scope is at some participant, and in one set only; notebooks take no dispatches."""
    again = Life("r0", 1, 1, 9)
    async with running() as run:
        for fields in ({"scope": [*LIVES, Life("r9", 1, 0, 9)]}, {"restarts": [again]}, {"scope": LIVES[:2]}):
            before = (await run.store.chain()).state.head
            if fields == {"scope": LIVES[:2]}:
                assert (await run.take(**fields)).published
                continue
            with pytest.raises(StoreError, match=r"r\d"):
                await run.take(**fields)
            assert (await run.store.chain()).state.head == before
            await run.assert_works()


async def test_a_round_knows_for_how_long_work_was_held() -> None:
    """From before the prepare to after the resume."""
    async with running() as run:
        async with checkpoint(run.at.fleet, run.controller, LIMITS) as opened:
            await push(7)
            opened.take(scope=LIVES)
        assert 7 <= opened.held_s < 8


@pytest.mark.fault(43)
async def test_a_controller_that_was_taken_over_publishes_nothing() -> None:
    """Its participants refuse it; what the new one does is not disturbed."""
    async with running() as run:
        async with claim(run.store, take_over=True) as controller:
            fleet = run.at.fleet
            await run.at.adopt(controller.epoch, Floor(1, 0))
            with pytest.raises(PrepareFailed, match="stale_epoch"):
                async with checkpoint(fleet, run.controller, LIMITS):
                    raise AssertionError
            async with checkpoint(run.at.fleet, controller, LIMITS) as opened:
                opened.take(scope=LIVES)
        assert (await run.store.chain()).state.head == opened.published


@pytest.mark.fault(52)
@pytest.mark.parametrize("delivered", [True, False])
async def test_an_episode_that_finishes_during_prepare_is_delivered_or_exported(delivered: bool) -> None:
    """Delivered before all stood still, it is in no scope; else its last step is in the record."""
    async with running() as run, anyio.create_task_group() as group:
        pause = run.at.of("agent").owner.hooks["write"] = Pause()

        async def last_step() -> None:
            await run.at.of("agent").owner.write(LIVES[0], "last")
            for server in run.at.servers if delivered else ():
                server.owner.finish(LIVES[0])

        async def take() -> None:
            async with checkpoint(run.at.fleet, run.controller, LIMITS) as opened:
                opened.take(scope=LIVES[1:] if delivered else LIVES)

        group.start_soon(last_step)
        await pause.reached.wait()

        group.start_soon(take)
        await settle()
        pause.released.set()
    found = await open_checkpoint(run.store)
    records = await found.rollout("r0")
    notes = [raw.parse().payload["state"] for name, raw in records.items() if name.kind == "agent"]
    assert notes == ([] if delivered else [["a", "last"]])
