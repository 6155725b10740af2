"""Carries out a sequence of operations against real servers, and compares with what each of them must lead to."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread

from orchestrator.rounds import Round, RoundLimits
from participants import Status
from store import Life, verify_store
from tests.support.backend import Call
from tests.support.waiting import until_asked

from .breaking import NOT_WORK, said_to
from .controller import Controller
from .sequences import Did, Op, Rollout, World, after
from .stage import Stage
from .tasks import Task

LIMITS = RoundLimits(prepare_timeout_s=60, more_time_s=0, commit_timeout_s=120, publish_timeout_s=60, lease_s=180)
"""Generous: the machine may be busy, and nothing here is about time."""
SETTLED_S = 60.0
LIVE = ("running", "held", "waiting")


@dataclass(slots=True)
class Player:
    """Plays on one stage."""

    stage: Stage
    world: World = field(default_factory=World)
    controller: Controller | None = None
    played: list[Op] = field(default_factory=list)
    _next: World = field(default_factory=World)
    _holds: dict[str, int] = field(default_factory=dict)
    _claim: AsyncExitStack | None = None

    async def play(self, ops: list[Op]) -> None:
        """Carry out all of them; each begins once everything stands still. Raises AssertionError where it does not."""
        self.stage.capture = True
        for r in self.world.rollouts.values():
            self._hold(r)
        try:
            for op in ops:
                await self._carry_out(op)
            await self._check_idle()
        finally:
            await self._leave()
        await self._check_store()

    async def _carry_out(self, op: Op) -> None:
        self.played.append(op)
        before, then = self.world, after(self.world, op)
        self._hold_tools(*before.held_tools, *then.held_tools)
        self._next = then
        for name in op.moving:
            self.stage.release(self._holds[name])
        await ACTS[op.name](self, op)
        self.world = then
        self._hold_tools(*then.held_tools)
        await self._settled()
        for name in (*op.moving, *(op.on if op.name == "run" else ())):
            self._hold(then.rollouts[name])

    def _hold(self, r: Rollout) -> None:
        self._holds[r.name] = self.stage.hold(r.task, call=1, after_tokens=r.tokens)

    @property
    def running(self) -> Controller:
        """The controller. Raises AssertionError where there is none."""
        assert self.controller is not None
        return self.controller

    def _hold_tools(self, *names: str) -> None:
        """Hold these tool calls, and no others."""
        if names:
            self.stage.hold_tools(*names)
        else:
            self.stage.let_tools_go()

    # Controllers come and go

    async def _enter(self, *, adopts: bool = False) -> None:
        await self._leave()
        self._claim = AsyncExitStack()
        self.controller = await self._claim.enter_async_context(self.stage.controller(adopts=adopts))

    async def _leave(self, _: Op | None = None) -> None:
        claim, self._claim, self.controller = self._claim, None, None
        if claim is not None:
            await claim.aclose()

    async def start(self, op: Op) -> None:
        """Fresh servers, and a controller that restores the head."""
        await self.stage.start(op.workers)
        await self._enter()

    async def adopt(self, _: Op) -> None:
        """A controller for whom what is whole goes on."""
        await self._enter(adopts=True)

    async def take_over(self, _: Op) -> None:
        """A controller for whom nothing goes on."""
        await self._enter()

    async def crash(self, _: Op) -> None:
        """Every server is killed, and the controller after them."""
        await self.stage.crash()
        await self._leave()

    async def lose(self, op: Op) -> None:
        """One server, or one worker of it, is killed and comes back empty; then the controller dies."""
        if op.worker is None:
            await self.stage.restart(op.role)
        else:
            server = self.stage.servers[op.role]
            await anyio.to_thread.run_sync(server.kill_worker, op.worker)
            await anyio.to_thread.run_sync(server.await_ready)
        await self._leave()

    # Rollouts go on

    async def dispatch(self, op: Op) -> None:
        """The next life of each."""
        for name in op.on:
            [life] = await self.running.submit([self.world.rollouts[name].task])
            assert life == self._next.rollouts[name].life

    async def step(self, op: Op) -> None:
        """The held model call of each goes on to its end."""
        for name in op.on:
            await self._release(self.world.rollouts[name])

    async def run(self, op: Op) -> None:
        """Each goes on to its end."""
        for name in op.on:
            self.stage.release(self._holds[name])

    async def nothing(self, _: Op) -> None:
        """Tool calls go on by themselves, once they are not held any more."""

    async def finish(self, _: Op) -> None:
        """Nothing is held any more."""
        self._hold_tools()
        self.stage.release()

    async def deliver(self, op: Op) -> None:
        """Results become durable, and are released."""
        for name in op.on:
            life = self.world.rollouts[name].life
            assert life is not None
            await self.running.deliver(life)
            await self._knock(self.world.rollouts[name], life)

    async def retire(self, op: Op) -> None:
        """Their next lives start over."""
        for name in op.on:
            life = self.world.rollouts[name].life
            assert life is not None
            assert await self.running.retire(life, timeout_s=SETTLED_S) == frozenset()
            self.running.restarts[name] = life
            await self._knock(self.world.rollouts[name], life)

    async def _knock(self, r: Rollout, life: Life) -> None:
        """Calls of every kind come in the name of a life that is over, and are refused everywhere."""
        said = await said_to(self.stage, self.running, life, r.task)
        assert set(said.values()) == {(409, "stale_life")}, said

    async def _release(self, r: Rollout) -> None:
        assert r.life is not None
        call = (await self._calls())[r.life][-1]
        assert await anyio.to_thread.run_sync(lambda: self.stage.backend.control.release(call=call.number)) == 1

    # Checkpoints

    async def checkpoint(self, op: Op) -> None:
        """Of everything; held tool calls go on once it waits for them, and some model calls once all stands still."""
        controller, taken = self.running, list[Round]()

        async def standing(_: Round) -> None:
            for name in op.on:
                await self._release(self.world.rollouts[name])
            await controller.until_count("model", "held", len(op.on))

        async def take() -> None:
            taken.append(await controller.checkpoint(standing, limits=LIMITS))

        async def is_waiting() -> bool:
            return bool(taken or await controller.waits_for())

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            if self.world.held_tools:
                await until_asked(is_waiting, SETTLED_S)
                self._hold_tools()
        assert taken[0].published is not None

    # Comparing

    async def _calls(self) -> dict[Life, list[Call]]:
        return (await anyio.to_thread.run_sync(self.stage.seen)).made

    async def _settled(self) -> None:
        """Everything stands still as it should. Raises AssertionError, with what is otherwise, where it does not."""
        try:
            await until_asked(self._stands, SETTLED_S)
        except TimeoutError:
            raise AssertionError(await self._otherwise()) from None
        if self.controller is not None:
            await self.controller.wait(*(r.life for r in self.world.of("open") if r.at == "end" and r.life))
        self._compare_controller()

    async def _stands(self) -> bool:
        return not await self._otherwise()

    async def _otherwise(self) -> str:
        """How what was done differs from what should be by now; empty where it does not."""
        seen = await anyio.to_thread.run_sync(self.stage.seen)
        problems = []
        current = {r.life: r for r in self.world.of("open")}
        for life in sorted({*self.world.did, *seen.calls, *seen.tools, *seen.verified}, key=str):
            did, r = self.world.did.get(life, Did()), current.get(life)
            task = self.world.rollouts[life.rollout_id].task
            verified = seen.verified.count(life)
            found = [seen.calls.get(life, []), seen.continued(life), seen.tools.get(life, []), [True] * verified]
            most, least = _told(did, task), _told(did.least or did, task)
            if not all(map(_between, found, least, most)):
                problems.append(f"{life} did {found} {SAYS}, not {most}, nor from {least} on")
            states = [call.state for call in seen.made.get(life, [])]
            live = [state for state in states if state in LIVE]
            if r is None or not r.broken:
                held = ["held"] if r is not None and r.at == "model" else []
                if live != held:
                    problems.append(f"{life}: calls {states}")
        return "\n".join(problems)

    def _compare_controller(self) -> None:
        """What the controller knows is what it should."""
        if self.controller is None:
            return
        for state, found in (
            ("open", self.controller.open),
            ("restored", self.controller.restored),
            ("restart", self.controller.restarts),
        ):
            assert found == {r.name: r.life for r in self.world.of(state)}, state

    async def _check_idle(self) -> None:
        """All is delivered, right, and nowhere is anything left."""
        controller, names = self.running, list(self.world.rollouts)
        assert {r.state for r in self.world.rollouts.values()} == {"done"}
        rewards = {name: result.row and result.row["reward"] for name, result in self.stage.output.items()}
        assert rewards == dict.fromkeys(names, 1.0)
        left: dict[str, Any] = {}

        async def idle() -> bool:
            nonlocal left
            statuses = await controller.statuses()
            assert len(statuses) == len(controller.fleet.members)
            left = {name: _not_idle(status) for name, status in statuses.items() if _not_idle(status)}
            return not left

        try:  # What was ended may need a moment to stop.
            await until_asked(idle)
        except TimeoutError:
            raise AssertionError(left) from None
        assert self.stage.backend.control.counts()["running"] == 0
        for r in self.world.rollouts.values():
            assert r.place.ledger is not None
            assert await self.stage.lineage(r.place.ledger) == list(r.place.by)

    async def _check_store(self) -> None:
        """Every checkpoint verifies, and nothing is left over. Nobody writes any more, not even that he is alive."""
        async with self.stage.open_store() as store:
            report = await verify_store(store, deep=True)
        assert report.sound, report
        assert report.findings == (), report


def _not_idle(status: Status) -> list[Any]:
    """What a server that has nothing left would not say."""
    kept = {key: count for key, count in status.counts.items() if count and key not in REMEMBERED}
    phase = [status.phase] if status.phase != "idle" else []
    return [*phase, *([kept] if kept else []), *status.blockers]


def _told(did: Did, task: Task) -> list[list[Any]]:
    tools = [task.tools[k - 1] for k in did.tools]
    return [list(did.calls), list(did.continued), tools, [True] * did.verified]


def _between(found: list[Any], least: list[Any], most: list[Any]) -> bool:
    return len(found) >= len(least) and found == most[: len(found)]


SAYS = "(calls, tokens that each had from before, tools, verifications)"
REMEMBERED = set(NOT_WORK) - {"fenced"}
"""Counts of what was."""

ACTS: dict[str, Callable[[Player, Op], Awaitable[None]]] = {
    "start": Player.start,
    "adopt": Player.adopt,
    "take over": Player.take_over,
    "leave": Player._leave,
    "lose": Player.lose,
    "crash": Player.crash,
    "dispatch": Player.dispatch,
    "step": Player.step,
    "step into tool": Player.step,
    "run": Player.run,
    "let tool go": Player.nothing,
    "finish": Player.finish,
    "deliver": Player.deliver,
    "retire": Player.retire,
    "checkpoint": Player.checkpoint,
    "checkpoint and release": Player.checkpoint,
}
