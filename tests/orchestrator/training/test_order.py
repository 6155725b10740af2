"""The order of a checkpoint of a training run: what its block allows, what leaving it does, what is released then."""

from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from midflight import (
    ControlPlane,
    EnvironmentServer,
    InsideCheckpoint,
    LocalLink,
    LocalPeer,
    MemoryBackend,
    ModelServer,
    NoState,
    NothingDispatched,
    OutcomeUnknown,
    PrepareFailed,
    RunLeft,
    Save,
    SimpleAgent,
    StoreUnavailable,
    TrainingRun,
    UnknownRollout,
    UnusableFile,
    UnusableState,
    open_checkpoint,
    training_run,
)
from orchestrator.training.ledger import Result, TrainingLedger
from participants.fences import position
from participants.servers import CounterServer
from store.backends.memory import Fault
from tests.support.checkpoints import memory_store
from tests.support.journal import Journal
from tests.support.owners import Pause, settle
from tests.support.scripted import ScriptedUpstream, counter_row

from .stage import LIMITS, Stage, Strike, StruckLink, row

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@asynccontextmanager
async def running(stage: Stage, backend: MemoryBackend | None = None, strike: Strike | None = None) -> Any:
    """A run over participants of its own."""
    store = stage.store(strike, backend)
    async with (
        stage.participants(store) as links,
        training_run([StruckLink(link, strike or Strike()) for link in links], store, limits=LIMITS) as run,
    ):
        yield run


async def given(run: TrainingRun, count: int) -> list[str]:
    """The ids of the next results."""
    return [(await run.next()).rollout_id for _ in range(count)]


async def save(run: TrainingRun, state: Any = "saved") -> None:
    """A whole checkpoint."""
    async with run.checkpoint() as saving:
        saving.state = state


def named(saving: Save, path: Path) -> None:
    """A state, and a file."""
    saving.state = 1
    saving.file("weights", path)


def nested(depth: int) -> Any:
    """Lists in each other."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


async def test_state_cursor_and_rollouts_of_all_four_kinds_of_participants_come_back_together() -> None:
    """Of six rollouts one is given before the checkpoint and one after it: five come in the next life."""
    store, journal = memory_store(), Journal()
    rows = {f"r{n}": counter_row(f"r{n}", n) for n in range(6)}
    for life in range(2):
        upstream = ScriptedUpstream(journal)
        model, counter = ModelServer(upstream), CounterServer()
        peers = {counter.role: LocalPeer(counter)}
        agent = SimpleAgent(LocalPeer(model), peers)
        environment = EnvironmentServer(LocalPeer(agent), peers)
        async with (
            environment.run(),
            ControlPlane(environment, store).run() as one,
            ControlPlane(model, store).run() as two,
            ControlPlane(agent, store).run() as three,
            ControlPlane(counter, store).run() as four,
            training_run([LocalLink(plane) for plane in (one, two, three, four)], store, limits=LIMITS) as run,
        ):
            if life == 0:
                assert (run.state, run.cursor, run.head) == (None, None, None)
                await run.dispatch(rows, after=None, cursor={"row": 6})
                first = await run.next()
                assert (first.row or {})["reward"] == 1.0
                await save(run, {"buffer": [first.rollout_id], "optimizer": b"\x00\xff" * 40_000})
                await run.next()
                continue
            assert run.state == {"buffer": [first.rollout_id], "optimizer": b"\x00\xff" * 40_000}
            assert (run.cursor, set(run.undelivered)) == ({"row": 6}, rows.keys() - {first.rollout_id})
            assert set(await given(run, 5)) == rows.keys() - {first.rollout_id}
            await save(run)
            assert not any([environment.held(), model.held(), agent.held(), counter.held()])


@pytest.mark.parametrize("asked", [
    lambda run: run.dispatch({"b": row()}, after=1, cursor=2),
    lambda run: run.next(),
    lambda run: run.retire(["a"]),
    lambda run: run.checkpoint().__aenter__(),
])  # fmt: skip
async def test_what_would_come_between_state_and_rollouts_is_refused_in_the_block(
    asked: Callable[..., Any],
) -> None:
    """Also of a task that the block has started; the checkpoint is taken all the same."""
    async with running(Stage()) as run:
        await run.dispatch({"a": row()}, after=None, cursor=1)
        async with run.checkpoint() as saving:
            with pytest.raises(InsideCheckpoint, match="Leave the block first"):
                await asked(run)
            refused = []

            async def child() -> None:
                with pytest.raises(InsideCheckpoint):
                    await asked(run)
                refused.append(True)

            async with anyio.create_task_group() as group:
                group.start_soon(child)
            saving.state = 1
        assert (refused, saving.published, run.cursor) == ([True], run.head, 1)
        assert await given(run, 1) == ["a"]


async def test_other_tasks_wait_while_everything_stands_still_and_are_not_refused() -> None:
    """Their dispatch, and a result that has come before, once the renew has succeeded."""
    done, inside = list[str](), anyio.Event()
    async with running(Stage()) as run, anyio.create_task_group() as group:
        await run.dispatch({"a": row()}, after=None, cursor=1)
        await settle(100)

        async def dispatch() -> None:
            await inside.wait()
            await run.dispatch({"b": row()}, after=1, cursor=2)
            done.append("dispatched")

        async def take() -> None:
            await inside.wait()
            done.extend(await given(run, 1))

        group.start_soon(dispatch)
        group.start_soon(take)
        async with run.checkpoint() as saving:
            inside.set()
            await settle(200)
            assert (done, run.cursor, run.undelivered) == ([], 1, ("a",))
            saving.state = 1
    assert sorted(done) == ["a", "dispatched"]


async def test_who_did_not_hear_the_resume_hears_it_again() -> None:
    """Else it would stand still until its lease has run out."""
    stage, strike = Stage(holds={"a": Pause()}), Strike(mode="fails")
    async with running(stage, strike=strike) as run:
        await run.dispatch({"a": row()}, after=None, cursor=1)
        async with run.checkpoint() as saving:
            strike.strikes_at("Resume")
            saving.state = 1
        assert strike.struck
        stage.holds["a"].released.set()
        with anyio.fail_after(10):
            assert await given(run, 1) == ["a"]


@pytest.mark.parametrize(("put", "error", "says"), [
    (lambda save, path: None, NoState, "nothing was written"),
    (lambda save, path: setattr(save, "state", {"a": [1, {2}]}), UnusableState, r"state\['a'\]\[1\] is a builtins.set"),
    (lambda save, path: setattr(save, "state", [float("nan")]), UnusableState, r"state\[0\] is nan"),
    (lambda save, path: setattr(save, "state", {1: 2}), UnusableState, "has the key 1"),
    (lambda save, path: setattr(save, "state", ["a\udc80"]), UnusableState, r"state\[0\] has half of a character at 1"),
    (lambda save, path: setattr(save, "state", {"\ud800": 1}), UnusableState, "a key of state has half of a character"),
    (lambda save, path: setattr(save, "state", nested(201)), UnusableState, "nested more than 200 deep"),
    (lambda save, path: named(save, path / "a\0b"), UnusableFile, "no path that a checkpoint can name"),
    (lambda save, path: named(save, path / "a\udc80"), UnusableFile, "no path that a checkpoint can name"),
    (lambda save, path: save.file(5, path), UnusableState, "the name of a file is no text but 5"),
    (lambda save, path: named(save, path / "none"), UnusableFile, "is not there"),
    (named, UnusableFile, "no regular file"),
    (lambda save, path: 1 / 0, ZeroDivisionError, "division"),
])  # fmt: skip
async def test_a_block_that_is_not_left_well_writes_nothing_and_work_goes_on(
    tmp_path: Path, put: Any, error: type[Exception], says: str
) -> None:
    """Without a state, with one that would not come back as it is, with a file that is none, or with an error."""
    stage, strike = Stage(), Strike()
    async with running(stage, strike=strike) as run:
        await run.dispatch({"a": row()}, after=None, cursor=1)
        await given(run, 1)
        with pytest.raises(error, match=says):
            async with run.checkpoint() as saving:
                put(saving, tmp_path)
        assert not any("checkpoints/1." in call for call in strike.calls)
        await run.dispatch({"b": row()}, after=1, cursor=2)
        assert await given(run, 1) == ["b"]
        await save(run)
    assert (await (await open_checkpoint(stage.store())).state())["trainer"] == "saved"


async def test_results_are_released_only_once_a_checkpoint_is_published_that_has_them() -> None:
    """Given by next() they stay where they are; one that is given after the state was taken waits for another one."""
    stage = Stage()
    async with running(stage) as run:
        await run.dispatch({"a": row(), "b": row()}, after=None, cursor=2)
        await given(run, 1)
        assert len(stage.environments[0].held()) == 2
        await save(run)
        assert len(stage.environments[0].held()) == 1
        with pytest.raises(UnknownRollout, match="delivered already"):
            await run.retire(["a"])
        await given(run, 1)
        with pytest.raises(NothingDispatched):
            await run.next()


def test_the_floor_stays_below_what_was_given_and_is_in_no_checkpoint() -> None:
    """Above it, participants would free a result that comes again after a crash; it goes on once they were told."""
    ledger = TrainingLedger(1)
    ledger.dispatch({"a": {}, "b": {}}, after=None, cursor=2)
    first, second = ledger.open["a"], ledger.open["b"]
    ledger.submitted(ledger.to_submit(2), {})
    ledger.arrived(Result(rollout_id="a", life=first, row={}, failure=None))
    assert ledger.give() is not None
    given = ledger.floor
    ledger.delivered([first])
    published = ledger.floor
    ledger.released([first])
    assert (given, published, ledger.floor) == (position(first), position(first), position(second))


async def test_values_are_of_the_moment_at_which_they_were_given() -> None:
    """A cursor, a row and a state that the trainer changes later are in no checkpoint, and cannot be ahead of it."""
    stage, cursor, one = Stage(), {"position": 1}, row()
    async with running(stage) as run:
        await run.dispatch({"a": one}, after=None, cursor=cursor)
        cursor["position"], one["later"] = 7, True
        run.cursor["position"] = 8
        buffer = ["x"]
        async with run.checkpoint() as saving:
            saving.state = {"buffer": buffer}
        buffer.append("y")
        assert run.cursor == {"position": 1}
    state = await (await open_checkpoint(stage.store())).state()
    assert (state["cursor"], state["rows"], state["trainer"]) == ({"position": 1}, {"a": row()}, {"buffer": ["x"]})


async def test_a_dispatch_says_where_its_rows_were_read_and_none_is_dispatched_twice() -> None:
    """Refused as a whole: neither the cursor moves nor does a rollout begin."""
    async with running(Stage()) as run:
        await run.dispatch({"a": row()}, after=None, cursor=1)
        for rows, after in (({"b": row()}, None), ({"b": row()}, 2)):
            with pytest.raises(Exception, match="the run stands at 1"):
                await run.dispatch(rows, after=after, cursor=9)
        with pytest.raises(UnknownRollout, match="such as a"):
            await run.dispatch({"b": row(), "a": row()}, after=1, cursor=9)
        with pytest.raises(UnusableState, match=r"the row of b\['x'\]"):
            await run.dispatch({"b": {"x": b""}}, after=1, cursor=9)
        assert (run.cursor, run.undelivered) == (1, ("a",))


@pytest.mark.parametrize("value", ["\ud800", nested(300), nested(3000), float("nan"), 2**64])
async def test_what_no_checkpoint_could_write_is_refused_when_it_is_given(value: Any) -> None:
    """Else every checkpoint of the run would fail from then on."""
    async with running(Stage()) as run:
        for rows, after, cursor in (
            ({"a": row()}, None, value), ({"a": row()}, value, 1), ({"a": row(x=value)}, None, 1), ({3: row()}, None, 1)
        ):  # fmt: skip
            with pytest.raises(UnusableState):
                await run.dispatch(rows, after=after, cursor=cursor)
        await run.dispatch({"a": row(x=nested(198))}, after=None, cursor=nested(200))
        with pytest.raises(UnusableState, match="the reason"):
            await run.retire(["a"], "\ud800")
        await save(run, nested(200))
        assert (await run.next()).failure is None


async def test_a_dispatch_that_is_cancelled_at_any_moment_has_moved_the_cursor_with_its_rows_or_not_at_all() -> None:
    """After every number of turns of the event loop; a checkpoint then has the same."""
    stage, whole = Stage(), 0
    async with running(stage) as run:
        for turns in range(24):
            before, name = run.cursor, f"r{turns}"
            async with anyio.create_task_group() as group:
                group.start_soon(partial(run.dispatch, {name: row()}, after=before, cursor=turns))
                await settle(turns)
                group.cancel_scope.cancel()
            assert (run.cursor == turns) is (name in run.undelivered)
            whole += run.cursor == turns
        await save(run)
        state = await (await open_checkpoint(stage.store())).state()
        assert (state["rows"].keys(), state["cursor"]) == (set(run.undelivered), run.cursor)
        assert 0 < whole < 24
        assert len(await given(run, whole)) == whole


@pytest.mark.parametrize("mode", ["cancelled", "cancelled before"])
async def test_a_checkpoint_that_is_cancelled_at_any_call_leaves_nobody_standing_still(mode: Any) -> None:
    """Nor in a round of its own, which would refuse the next one until its lease has run out."""
    stage, strike = Stage(), Strike(mode=mode)
    async with running(stage, strike=strike) as run:
        nth = calls = 0
        while nth <= calls:
            name = f"r{nth}"
            await run.dispatch({name: row()}, after=run.cursor, cursor=nth)
            begins, strike.loop = len(strike.calls), anyio.CancelScope()
            strike.nth = begins + nth + 1
            with strike.loop:
                await save(run, nth)
            calls = max(calls, len(strike.calls) - begins)
            strike.nth = 0
            with anyio.fail_after(5):
                assert await given(run, 1) == [name]
                await save(run, nth)
            assert not stage.environments[0].held()
            nth += 1
    assert nth > 8


async def test_a_run_that_was_left_refuses_everything() -> None:
    """In silence it would be lost: what it is told is in no checkpoint any more."""
    async with running(Stage()) as run:
        await run.dispatch({"a": row()}, after=None, cursor=1)
    for asked in (
        lambda: run.dispatch({"b": row()}, after=1, cursor=2), run.next, lambda: run.retire(["a"]), lambda: save(run)
    ):  # fmt: skip
        with pytest.raises(RunLeft, match="Enter training_run again"):
            await asked()
    assert run.cursor == 1


async def test_what_is_retired_comes_as_a_failed_result_with_its_reason() -> None:
    """Once, also over a crash in between; while it waits the manifest has it as dropped."""
    stage = Stage(holds={"a": Pause()})
    async with running(stage) as run:
        await run.dispatch({"a": row(), "b": row()}, after=None, cursor=2)
        await run.retire(["a"], "it is too old")
        assert [held.life.rollout_id for held in stage.environments[0].held()] == ["b"]
        await save(run)
    manifest = (await open_checkpoint(stage.store())).manifest
    assert [(dropped.life.rollout_id, dropped.reason) for dropped in manifest.dropped] == [("a", "it is too old")]
    async with running(stage) as run:
        results = [await run.next() for _ in range(2)]
        assert [(result.rollout_id, (result.failure or {}).get("message")) for result in results] == [
            ("a", "it is too old"),
            ("b", None),
        ]
        with pytest.raises(NothingDispatched):
            await run.next()


async def test_a_retire_that_is_cancelled_at_any_moment_has_failed_its_rollouts_or_none_of_them() -> None:
    """Servers may have ended them by then: a checkpoint has to be possible all the same, and next() gives each once."""
    failed = 0
    for turns in range(7):
        stage = Stage(holds={"a": Pause()})
        async with running(stage) as run:
            await run.dispatch({"a": row(), "b": row()}, after=None, cursor=2)
            async with anyio.create_task_group() as group:
                group.start_soon(run.retire, ["a"])
                await settle(turns)
                group.cancel_scope.cancel()
            stage.holds["a"].released.set()
            await save(run)
            results = {result.rollout_id: result for result in [await run.next(), await run.next()]}
            failed += results["a"].failure is not None
            await save(run)
            assert not stage.environments[0].held()
    assert 0 < failed < 7


async def test_what_was_retired_while_its_result_came_is_in_no_set_that_participants_have_freed() -> None:
    """The retire stands, for participants have nothing of the rollout any more."""
    stage = Stage()
    async with running(stage) as run:
        await run.dispatch({"a": row(3), "b": row()}, after=None, cursor=2)
        await run.retire(["a"])
        await save(run)
        assert sorted(await given(run, 2)) == ["a", "b"]


@pytest.mark.parametrize("mode", ["fails", "cancelled"])
async def test_whoever_waits_for_a_result_goes_on_with_what_another_task_could_not_finish(mode: Any) -> None:
    """Rows that were dispatched by a call that was cancelled, or failed, while nothing else would ever come."""
    stage, strike = Stage(), Strike(mode=mode)
    async with running(stage, strike=strike) as run, anyio.create_task_group() as group:
        await run.dispatch({"a": row(200)}, after=None, cursor=1)
        await run.retire([])
        got = list[str]()

        async def take() -> None:
            got.extend(await given(run, 2))

        stage.holds["a"] = Pause()
        group.start_soon(take)
        await settle(2)
        strike.strikes_at("Submit")
        with strike.loop:
            await run.dispatch({"b": row()}, after=1, cursor=2)
        assert (run.cursor, set(run.undelivered)) == (2, {"a", "b"})
        with anyio.fail_after(5):
            while got != ["b"] and run.undelivered != ("a",):
                await settle(1)
        stage.holds["a"].released.set()
    assert got == ["b", "a"]


async def test_what_servers_refuse_comes_as_a_failed_result() -> None:
    """A row that no environment takes: never in silence, and the others go on."""
    async with running(Stage()) as run:
        await run.dispatch({"a": {"responses_create_params": 7, "task": {}}, "b": row()}, after=None, cursor=2)
        results = {result.rollout_id: result for result in [await run.next(), await run.next()]}
        assert results["b"].failure is None
        assert results["a"].failure is not None


@pytest.mark.parametrize("after", [False, True])
async def test_an_unknown_outcome_of_the_publication_is_settled_by_the_chain(after: bool) -> None:
    """The block raises it; the next checkpoint finds out, and what was given is released once, by whichever exists."""
    stage = Stage()
    backend = MemoryBackend(space=stage.space)
    async with running(stage, backend) as run:
        await run.dispatch({"a": row(), "b": row()}, after=None, cursor=2)
        await given(run, 1)
        unknown = lambda call: OutcomeUnknown(call.verb, call.key)  # noqa: E731
        gone = lambda call: StoreUnavailable(call.verb, call.key)  # noqa: E731
        backend.inject(Fault(verb="create", key_part="chain/", after=after, error=unknown))
        backend.inject(Fault(verb="list", key_part="chain/", times=10_000, error=gone))
        backend.inject(Fault(verb="get", key_part="chain/", nth=2, times=4, error=gone))
        with pytest.raises((OutcomeUnknown, StoreUnavailable)):
            await save(run, "first")
        assert len(stage.environments[0].held()) == 2
        backend._armed.clear()
        await save(run, "second")
        assert len(stage.environments[0].held()) == 1
    chain = await stage.store().chain()
    assert len(chain.known.refs) == 2
    assert (await (await open_checkpoint(stage.store())).state())["trainer"] == "second"


async def test_a_failed_prepare_keeps_what_was_given_and_names_who_failed() -> None:
    """The trainer goes on; the next checkpoint has it all."""
    stage, strike = Stage(), Strike(mode="fails")
    async with running(stage, strike=strike) as run:
        await run.dispatch({"a": row(), "b": row()}, after=None, cursor=2)
        await given(run, 1)
        strike.strikes_at("Prepare")
        with pytest.raises(PrepareFailed, match=r"environment\.main"):
            await save(run)
        await save(run)
        assert len(stage.environments[0].held()) == 1
