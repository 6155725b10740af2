"""Hooks of authors that fail, are slow or do not listen: no control operation is held beyond its time."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from participants import Code, ControlPlane, Gate, ParticipantError, ResourcesServer
from participants.custody import CLEANUP_TIMEOUT_S, EXPORT_TIMEOUT_S
from participants.data import CallId
from participants.hooks import AT_ONCE
from participants.sessions import ResourcesSession
from participants.wire import Abort, Activate, Adopt, Commit, Prepare, Resume, Retire, Stage
from store import CheckpointId, Controller, Draft, Life, Ref, Store, claim
from tests.support.checkpoints import memory_store
from tests.support.deaf import Deaf, taking
from tests.support.desk import beside, refused
from tests.support.owners import ON_PUSHED_LOOP, Pause, lives, next_life, push, settle

from .harness import RESPONSE, Caller, Drawer

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIFE, OTHER = lives(2)
Hook = Callable[[], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


class Cupboard(Drawer):
    """Its hooks named in `at` are held, those of sessions of `life` alone where that is given."""

    def __init__(self) -> None:
        super().__init__(gate=Gate(clock=anyio.current_time))
        self.at: dict[str, Hook] = {}
        self.life: Life | None = None
        self.running = self.most = 0

    async def _at(self, what: str, session: ResourcesSession) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if what in self.at and self.life in (None, session.life):
                await self.at[what]()
        finally:
            self.running -= 1

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        await self._at("seed", session)
        await super().seed(session, row)

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        await self._at("tool", session)
        return await super().call_tool(session, name, arguments)

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        await self._at("verify", session)
        return await super().verify(session, row)

    async def export_session(self, session: ResourcesSession) -> list[str]:
        await self._at("export", session)
        return await super().export_session(session)

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        await self._at("import", session)
        await super().import_session(session, exported)

    async def close_session(self, session: ResourcesSession) -> None:
        await self._at("close", session)
        await super().close_session(session)


@dataclass
class Bench:
    """A server, its plane and the calls of one controller."""

    server: Cupboard
    plane: ControlPlane
    store: Store
    epoch: int = 1

    @property
    def base(self) -> dict[str, Any]:
        return {"run": self.store.run_id, "epoch": self.epoch, "incarnation": self.plane.book.incarnation}

    def of(self, k: int) -> dict[str, Any]:
        return {**self.base, "round": CheckpointId(self.epoch, k)}

    def prepare(self, k: int = 1, timeout_s: float = 5) -> Awaitable[Any]:
        return self.plane.prepare(Prepare(**self.of(k), timeout_s=timeout_s, lease_s=500))

    def commit(self, *scope: Life, k: int = 1) -> Awaitable[Any]:
        return self.plane.commit(Commit(**self.of(k), scope=scope, parent=None))

    def resume(self, k: int = 1) -> Awaitable[Any]:
        return self.plane.resume(Resume(**self.of(k)))

    def abort(self, k: int = 1) -> Awaitable[Any]:
        return self.plane.abort(Abort(**self.of(k)))

    def stage(self, ref: Ref, *scope: Life, k: int = 1) -> Awaitable[Any]:
        return self.plane.stage(Stage(**self.of(k), checkpoint=ref, scope=scope))

    def retire(self, *ended: Life, timeout_s: float = 2) -> Awaitable[Any]:
        return self.plane.retire(Retire(**self.base, lives=ended, timeout_s=timeout_s))

    async def seed(self, *begun: Life) -> None:
        """A session of each life, with a thing in it."""
        for life in begun:
            call = Caller(self.server, life)
            await call("/seed_session", {})
            await call("/put", {"thing": "pen"})

    def session(self, life: Life = LIFE) -> ResourcesSession:
        return next(held for held in self.server.held() if held.life == life).state.open["s"]


@asynccontextmanager
async def bench(*begun: Life, store: Store | None = None, epoch: int = 1) -> AsyncIterator[Bench]:
    """An adopted server with a session of each life."""
    server, shared = Cupboard(), store or memory_store()
    async with ControlPlane(server, shared, clock=anyio.current_time).run() as plane:
        await plane.adopt(Adopt(run=shared.run_id, epoch=epoch))
        made = Bench(server, plane, shared, epoch)
        await made.seed(*begun)
        yield made


async def failing() -> None:
    """A sandbox that is gone."""
    raise RuntimeError("no such sandbox")


# Exports


async def test_a_prepare_names_what_cannot_be_exported_and_the_first_commit_succeeds() -> None:
    """The life of the failing session is a restart before any scope is taken; nothing is refused."""
    async with bench(LIFE, OTHER) as at:
        at.server.at, at.server.life = {"export": failing}, LIFE
        prepared = await at.prepare()
        assert (prepared.prepared, prepared.restarts) == (True, (LIFE,))
        assert (await at.commit(OTHER)).manifest.records == 1
        await at.resume()


@pytest.mark.fault(36)
async def test_a_slow_export_is_a_blocker_and_a_repeat_waits_on_for_the_same_one() -> None:
    """The deadline holds and the session is named; with more time the export that was begun comes to its end."""
    async with bench(LIFE, OTHER) as at:
        pause = Pause()
        at.server.at, at.server.life = {"export": pause}, LIFE
        async with beside(at.prepare()) as [first]:
            await pause.reached.wait()
            await push(5)
        [blocker] = first.answer.blockers
        assert (first.answer.prepared, first.answer.blocker_count) == (False, 1)
        assert (blocker.life, blocker.step, blocker.reason) == (LIFE, "export", "session s is being exported")
        async with beside(at.prepare()) as [second]:
            await settle()
            pause.released.set()
        assert (second.answer.prepared, second.answer.restarts, at.server.exports) == (True, (), 2)
        assert (await at.commit(LIFE, OTHER)).manifest.records == 2
        assert at.server.exports == 2


@pytest.mark.fault(36)
@pytest.mark.parametrize("hook", [Pause, Deaf])
async def test_an_export_that_hangs_makes_its_life_a_restart(hook: Any) -> None:
    """Also one that swallows its cancellation; every other session is exported meanwhile."""
    async with bench(LIFE, OTHER) as at:
        held = at.server.at["export"] = hook()
        at.server.life = LIFE
        async with beside(at.prepare(timeout_s=60)) as [asked]:
            await held.reached.wait()
            await push(EXPORT_TIMEOUT_S)
        assert (asked.answer.prepared, asked.answer.restarts) == (True, (LIFE,))
        assert (await at.commit(OTHER)).manifest.records == 1
        held.released.set()


@pytest.mark.parametrize("hook", [Pause, Deaf])
@pytest.mark.parametrize("end", ["abort", "resume"])
async def test_a_round_ends_at_once_while_an_export_hangs(hook: Any, end: str) -> None:
    """The next round exports anew; what the old one has left behind changes nothing."""
    async with bench(LIFE) as at:
        held = at.server.at["export"] = hook()
        async with beside(at.prepare()):
            await held.reached.wait()
            await push(5)
        assert (await getattr(at, end)()).phase == "idle"
        assert at.session().exported is None
        at.server.at.clear()
        assert (await at.prepare(2)).restarts == ()
        held.released.set()
        await settle()
        assert (await at.commit(LIFE, k=2)).manifest.records == 1


async def test_exports_run_many_at_once_and_never_more_than_the_bound() -> None:
    """Two hundred of them, each of a second, are through after four."""
    many = lives(200)
    async with bench(*many) as at:
        at.server.most = 0
        at.server.at["export"] = taking(1)
        async with beside(at.prepare()) as [asked]:
            for _ in range(4):
                await push(1.01)
            await asked.done.wait()
        assert asked.answer.prepared
        assert at.server.most == AT_ONCE


async def test_what_a_waited_for_step_changes_after_the_prepare_is_exported_anew() -> None:
    """Such a call is admitted while closed; the commit has the session as it is then."""
    async with bench(LIFE) as at:
        await at.prepare()
        inside = CallId("resources.other", 7, 0, "agent.main:3.0")
        await Caller(at.server)("/put", {"thing": "cup"}, call=inside)
        await at.commit(LIFE)
        assert at.server.exports == 2


async def test_an_export_that_fails_only_at_the_commit_refuses_it_and_names_its_life() -> None:
    """The session has changed since the prepare; the next prepare names it."""
    async with bench(LIFE) as at:
        await at.prepare()
        inside = CallId("resources.other", 7, 0, "agent.main:3.0")
        await Caller(at.server)("/put", {"thing": "cup"}, call=inside)
        at.server.at["export"] = failing
        error = await refused(at.commit(LIFE), Code.RESTART_IN_SCOPE)
        assert error.details == {"lives": [str(LIFE)]}
        assert (await at.prepare()).restarts == (LIFE,)


# Closing


async def test_closing_runs_many_at_once_and_is_done_when_a_retire_answers() -> None:
    """A hundred sessions of a second each end in two."""
    many = lives(100)
    async with bench(*many) as at:
        at.server.most = 0
        at.server.at["close"] = taking(1)
        async with beside(at.retire(*many, timeout_s=10)) as [asked]:
            await push(1.01)
            await push(1.01)
            await asked.done.wait()
        assert (asked.answer.not_stopped, len(at.server.closed), at.server.most) == ((), 100, AT_ONCE)


@pytest.mark.fault(36, 54)
@pytest.mark.parametrize("hook", [Pause, Deaf])
async def test_a_close_that_hangs_is_named_by_a_retire_at_its_deadline(hook: Any) -> None:
    """Its life is not stopped yet; the others are, and once the hook has come to its end so is it."""
    async with bench(LIFE, OTHER) as at:
        held = at.server.at["close"] = hook()
        at.server.life = LIFE
        async with beside(at.retire(LIFE, OTHER)) as [asked]:
            await held.reached.wait()
            await push(2)
            await asked.done.wait()
        assert asked.answer.not_stopped == (LIFE,)
        assert (await at.retire(LIFE)).not_stopped == (LIFE,)
        held.released.set()
        await settle()
        assert (await at.retire(LIFE)).not_stopped == ()


@pytest.mark.parametrize("hook", [Pause, Deaf])
@pytest.mark.parametrize("how", ["aclose", "close", "another call"])
async def test_closes_that_hang_share_one_limit(hook: Any, how: str) -> None:
    """However many there are, the whole batch is over after it; a call of another session does not wait at all."""
    many = lives(100)
    async with bench(*many) as at:
        held = at.server.at["close"] = hook()
        if how == "another call":
            for life in many[2:]:
                at.server.finish(life)
            await Caller(at.server, OTHER, boundary=9)("/put", {"thing": "cup"})
        else:
            asked = at.server.aclose() if how == "aclose" else Caller(at.server, boundary=9)("/close_session")
            async with beside(asked) as [closing]:
                await held.reached.wait()
                await push(CLEANUP_TIMEOUT_S)
                await closing.done.wait()
        held.released.set()


async def test_a_close_that_goes_on_is_given_its_time_at_the_end_of_the_plane() -> None:
    """What a retire did not wait for is not cut off."""
    async with bench(LIFE) as at:
        at.server.at["close"] = taking(0.05)
        await at.retire(LIFE, timeout_s=0.001)
        assert at.server.closed == []
    assert at.server.closed == ["s"]


# Everything else that may not listen


@pytest.mark.fault(36, 54)
@pytest.mark.parametrize("what", ["seed", "tool", "verify"])
async def test_a_call_that_does_not_listen_is_named_by_a_retire_and_forgotten(what: str) -> None:
    """At the deadline; then neither a prepare nor the rollout's next life waits for it, and its end changes nothing."""
    calls = {
        "seed": ("/seed_session", {}),
        "tool": ("/put", {"thing": "x"}),
        "verify": ("/verify", {"response": RESPONSE}),
    }
    async with bench(*(() if what == "seed" else (LIFE,))) as at, anyio.create_task_group() as group:
        held = at.server.at[what] = Deaf()
        group.start_soon(_stale, Caller(at.server, boundary=9), *calls[what])
        await held.reached.wait()
        async with beside(at.retire(LIFE)) as [asked]:
            await push(2)
            await asked.done.wait()
        assert asked.answer.not_stopped == (LIFE,)
        at.server.at.clear()
        newer = Life(LIFE.rollout_id, 1, 0, 9)
        await at.seed(newer)
        assert (await at.prepare()).prepared
        assert (await at.commit(newer)).manifest.records == 1
        held.released.set()
    assert at.session(newer).state == {"pen"}


async def test_a_newer_life_waits_only_so_long_for_one_that_does_not_listen() -> None:
    """Then it begins, and the older one is fenced for good."""
    async with bench(LIFE) as at, anyio.create_task_group() as group:
        held = at.server.at["tool"] = Deaf()
        group.start_soon(_stale, Caller(at.server, boundary=9), "/put", {"thing": "x"})
        await held.reached.wait()
        at.server.at.clear()
        async with beside(at.seed(Life(LIFE.rollout_id, 1, 0, 9))) as [begun]:
            await push(5)
            assert not begun.done.is_set()
            await push(6)
            await begun.done.wait()
        held.released.set()


async def _stale(call: Caller, route: str, body: Any) -> None:
    with pytest.raises(ParticipantError) as caught:
        await call(route, body)
    assert caught.value.code is Code.STALE_LIFE


@pytest.mark.fault(42)
@pytest.mark.parametrize("hook", [Pause, Deaf])
async def test_an_abort_does_not_wait_for_an_import_that_hangs(hook: Any) -> None:
    """The restore is discarded, what was imported is closed, and the same checkpoint restores afterwards."""
    store = memory_store()
    async with claim(store) as controller, bench(LIFE, OTHER, store=store, epoch=controller.epoch) as at:
        ref = await _published(at, controller, LIFE, OTHER)
    async with bench(store=store, epoch=2) as at:
        held = at.server.at["import"] = hook()
        at.server.life = LIFE
        async with beside(at.stage(ref, LIFE, OTHER)) as [staging]:
            await held.reached.wait()
            assert (await at.abort()).phase == "idle"
        assert staging.code is Code.STALE_ROUND
        assert at.server.closed == ["s", "s"]
        at.server.at.clear()
        await at.stage(ref, LIFE, OTHER, k=2)
        await at.plane.activate(Activate(**at.of(2)))
        await at.resume(2)
        held.released.set()
        await settle()
        assert (await Caller(at.server, next_life(LIFE, 2), boundary=9)("/put", {"thing": "cup"})).body == 2


async def test_imports_run_many_at_once() -> None:
    """A hundred of a second each take two."""
    store, many = memory_store(), lives(100)
    async with claim(store) as controller, bench(*many, store=store, epoch=controller.epoch) as at:
        ref = await _published(at, controller, *many)
    async with bench(store=store, epoch=2) as at:
        at.server.at["import"] = taking(1)
        async with beside(at.stage(ref, *many)) as [staging]:
            while at.server.running < AT_ONCE:
                await settle()
            await push(1.01)
            await push(1.01)
            await staging.done.wait()
        assert (staging.code, at.server.most) == (None, AT_ONCE)


async def _published(at: Bench, controller: Controller, *scope: Life) -> Ref:
    k = controller.next_round().k
    await at.prepare(k)
    committed = await at.commit(*scope, k=k)
    await at.resume(k)
    draft = Draft(checkpoint=CheckpointId(at.epoch, k), parent=None, participants=[committed.manifest], scope=scope)
    return await controller.publish(draft, timeout_s=10)


@pytest.mark.parametrize("hook", ["seed", "call_tool", "verify", "export_session", "import_session", "close_session"])
def test_a_class_with_a_hook_that_is_not_async_says_so(hook: str) -> None:
    """Where it is written, and not as a failure of the first call."""
    with pytest.raises(TypeError, match=rf"Mine\.{hook} is not an async method: write `async def {hook}"):
        type("Mine", (ResourcesServer,), {hook: lambda *given: None})


@pytest.mark.parametrize("mode", ["checkpoint_mode", "checkpoint_verify"])
def test_a_class_with_a_mode_that_there_is_not_says_which_there_are(mode: str) -> None:
    """Also where it is written."""
    with pytest.raises(TypeError, match=rf"Mine\.{mode} is to be one of .*, and not 'export'"):
        type("Mine", (ResourcesServer,), {mode: "export"})
