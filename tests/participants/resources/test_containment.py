"""Hooks that end with what would end a task or a process: their step fails, and nothing else does."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from participants import Agent, Final, data_app
from participants.activation import StepContext
from participants.containment import contained, own_task
from participants.errors import Code, ParticipantError
from participants.sessions import ResourcesSession
from tests.support.scripted import counter_row
from tests.support.world import world

from .harness import RESPONSE, Caller, Drawer, Notebook

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


async def own_cancellation() -> None:
    """As a hook does that ends a task of its own and waits for it."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended.cancel()
    await ended


async def cancel_itself() -> None:
    """As a hook does that cancels the task that it runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await anyio.lowlevel.checkpoint()


async def leave() -> None:
    """As `sys.exit` does."""
    raise SystemExit(3)


async def end_generator() -> None:
    """As a generator that was closed does."""
    raise GeneratorExit


ENDS = [own_cancellation, leave, end_generator]
IN_OWN_TASK = [*ENDS, cancel_itself]


class Ending(Notebook):
    """The hook named `at` ends so."""

    at = ""
    end: Any = None

    async def _pause(self) -> None:
        await super()._pause()
        if self.at == self.log[-1].split()[0]:
            await self.end()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("at", ["seed", "add", "verify"])
async def test_a_hook_that_ends_in_its_own_way_fails_its_call_alone(at: str, end: Any) -> None:
    """The call is refused as a defect that names the hook, its change is undone, and the session goes on."""
    server = Ending()
    call = Caller(server)
    calls = [("/seed_session", {"words": ["a"]}), ("/add", {"word": "b"}), ("/verify", {"response": RESPONSE})]
    for route, body in calls:
        server.at, server.end = at, end
        if at in route:
            with pytest.raises(ParticipantError, match=f"{at}.* at resources.main ended") as caught:
                await call(route, body)
            assert caught.value.code is Code.INTERNAL
            server.at = ""
        await call(route, body)
    assert server.log[-1] == "verify 2"


@pytest.mark.parametrize("end", IN_OWN_TASK)
async def test_a_close_that_ends_in_its_own_way_is_contained(end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged, and the call that closes the session succeeds."""

    async def hook(self: Drawer, session: ResourcesSession) -> None:
        await end()

    server = Drawer()
    call = Caller(server)
    await call("/seed_session", {})
    monkeypatch.setattr(Drawer, "close_session", hook)
    assert (await call("/close_session", {})).status == 200


async def interrupt() -> None:
    """As a hook does that was made to be run by hand."""
    raise KeyboardInterrupt


@contextmanager
def hearing(handler: Any) -> Iterator[None]:
    """With this handler of SIGINT."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("at", ["seed", "add", "verify"])
async def test_an_interrupt_of_a_hook_is_a_typed_error_of_a_server(at: str) -> None:
    """A server hears SIGINT itself, so it is no person's; the session is as before, and the call may be made again."""
    server = Ending()
    calls = [("/seed_session", {"words": ["a"]}), ("/add", {"word": "b"}), ("/verify", {"response": RESPONSE})]
    transport = httpx.ASGITransport(data_app(server))
    with hearing(lambda number, frame: None):
        async with httpx.AsyncClient(transport=transport, base_url="http://resources") as http:
            for route, body in calls:
                server.at, server.end = at, interrupt
                if at in route:
                    refused = await http.post(route, json=body)
                    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "internal")
                    assert "ended with KeyboardInterrupt()" in refused.json()["error"]["message"]
                    server.at = ""
                reply = await http.post(route, json=body)
                assert reply.status_code == 200, reply.text
    assert reply.json()["reward"] == 2.0


async def test_an_interrupt_passes_where_it_may_be_a_persons() -> None:
    """With Python's own handler a SIGINT raises it wherever the program is, and that may be in a hook."""
    server = Ending()
    server.at, server.end = "seed", interrupt
    with hearing(signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        await Caller(server)("/seed_session", {})


async def test_a_cancellation_of_ours_is_none_of_a_hook() -> None:
    """A scope around the call that is cancelled, and a task that is, end it as ever."""
    server = Notebook()
    call = Caller(server)
    await call("/seed_session", {})
    server.hold = anyio.Event()
    with anyio.move_on_after(0.01) as scope:
        await call("/add", {"word": "b"})
    assert scope.cancelled_caught
    tasks: list[asyncio.Task[Any]] = []
    async with anyio.create_task_group() as group:
        group.start_soon(_until_cancelled, call, tasks)
        await anyio.wait_all_tasks_blocked()
        tasks[0].cancel()


@pytest.mark.parametrize("at", ["seed", "add", "verify"])
async def test_a_hook_that_cancels_its_own_task_fails_its_call_alone(at: str) -> None:
    """The call's task goes on; the next call in it is as ever."""
    server = Ending()
    call = Caller(server)
    calls = [("/seed_session", {"words": ["a"]}), ("/add", {"word": "b"}), ("/verify", {"response": RESPONSE})]
    for route, body in calls:
        server.at, server.end = at, cancel_itself
        if at in route:
            with pytest.raises(ParticipantError, match=f"{at}.* at resources.main ended") as caught:
                await own_task("the call", partial(call, route, body))
            assert caught.value.code is Code.INTERNAL
            server.at = ""
        await own_task("the call", partial(call, route, body))
    assert server.log[-1] == "verify 2"


async def test_a_timeout_of_a_hook_around_what_it_calls_stays_its_own() -> None:
    """Hooks further in let it pass, and whoever set it gets it."""

    async def outer() -> str:
        with contained("the outer hook"):
            try:
                async with asyncio.timeout(0.01):
                    with contained("the inner hook"):
                        await anyio.sleep_forever()
            except TimeoutError:
                return "its own"
        raise AssertionError("unreachable")

    assert await own_task("the call", outer) == "its own"


async def test_a_cancellation_that_waits_for_the_next_await_is_left_to_nobody() -> None:
    """A hook cancels its task and comes to its end: what it returned counts, and its task is as before."""

    async def work() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return 1

    assert await own_task("the call", work) == 1
    await anyio.lowlevel.checkpoint()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def _until_cancelled(call: Caller, tasks: list[asyncio.Task[Any]]) -> None:
    task = asyncio.current_task()
    assert task is not None
    tasks.append(task)
    with pytest.raises(asyncio.CancelledError):
        await call("/add", {"word": "b"})
    task.uncancel()


class EndingAgent(Agent):
    """Its step ends so."""

    end: Any = None

    async def start(self, held: Any, body: Any) -> Any:
        """Nothing."""
        return {}

    async def step(self, context: StepContext, state: Any) -> Final:
        """Does not come to its end for one rollout."""
        if context.life.rollout_id == "bad":
            await self.end()
        return Final({"output": []})


@pytest.mark.parametrize("max_wall_s", [0.0, 60.0])
@pytest.mark.parametrize("end", IN_OWN_TASK)
async def test_a_step_that_ends_in_its_own_way_fails_its_rollout_alone(end: Any, max_wall_s: float) -> None:
    """The other rollout has its row."""
    async with world(make_agent=EndingAgent, max_wall_s=max_wall_s) as one:
        one.agent.end = end  # type: ignore[attr-defined]
        await one.start({"bad": counter_row("bad", 1), "good": counter_row("good", 1)})
        results = await one.results(2)
    failures = {key: result.failure for key, result in results.items()}
    assert failures["good"] is None
    assert failures["bad"] is not None
    assert failures["bad"]["class"] == "step_failed"
