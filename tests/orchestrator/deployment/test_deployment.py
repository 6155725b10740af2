"""A fleet of processes in this one's hands: started, watched, started again, attached to, ended."""

import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from orchestrator.collect.config import Participants
from orchestrator.deployment import (
    CannotBe,
    Deployment,
    DeploymentError,
    FleetTable,
    FolderTaken,
    NoFleet,
    NotAnswering,
    NotOurs,
    NotUp,
    PortTaken,
    RunningServer,
)
from orchestrator.deployment.processes import Process, hold, kill_marked, launch
from orchestrator.deployment.state import FleetState, read_state
from tests.support.standin import COMMAND
from tests.support.waiting import until

from .files import ROLES, load, write_file
from .programs import folder_of, left, refuses, running, standing

pytestmark = [pytest.mark.process, pytest.mark.anyio]


Events = list[tuple[str, dict[str, Any]]]


async def read(tmp_path: Path, **facts: Any) -> tuple[Participants, FleetTable]:
    """A file and its table, off the event loop as everything that reads."""
    config = await anyio.to_thread.run_sync(partial(load, tmp_path, **facts))
    assert config.fleet is not None
    return config, config.fleet


@asynccontextmanager
async def fleet(tmp_path: Path, events: Events | None = None, **facts: Any) -> AsyncIterator[Deployment]:
    """A deployment of stand-ins that has not begun; at the end nothing of it is left, however its test went."""
    config, table = await read(tmp_path, **facts)
    heard = [] if events is None else events

    def tell(event: str, facts: dict[str, Any]) -> None:
        heard.append((event, facts))

    async with Deployment(config, table, tell=tell, command=COMMAND) as deployment:
        yield deployment
    assert await anyio.to_thread.run_sync(kill_marked, deployment.folder) == {}


async def living(deployment: Deployment) -> dict[int, str]:
    """Processes of a fleet that live: pid to role."""
    return await anyio.to_thread.run_sync(left, deployment.folder)


async def state_of(deployment: Deployment) -> FleetState:
    """What its state file says."""
    state = await anyio.to_thread.run_sync(read_state, deployment.folder)
    assert state is not None
    return state


def kill(server: RunningServer) -> None:
    """SIGKILL to its first process alone."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)


def by_role(deployment: Deployment) -> dict[str, RunningServer]:
    """The servers of a fleet."""
    return {server.role: server for server in deployment.servers}


def has(token: str, path: str) -> bool:
    """Whether it stands in a file."""
    return token.encode() in Path(path).read_bytes()


async def lost(deployment: Deployment) -> RunningServer:
    """The one server that is lost, once it is."""
    with anyio.fail_after(10):
        while not (found := deployment.lost()):
            await anyio.lowlevel.checkpoint()  # The kernel's word is no event.
    [server] = found
    return server


async def test_every_server_is_a_session_of_its_own_and_answers(tmp_path: Path) -> None:
    """All are there, each leads its session, each answers the token, and the state file says the same."""
    async with fleet(tmp_path) as deployment:
        servers = await deployment.start()
        assert [server.role for server in servers] == ROLES
        assert all(server.pid is not None and os.getsid(server.pid) == server.pid for server in servers)
        assert len({server.pid for server in servers} | {os.getsid(0)}) == len(ROLES) + 1
        assert await deployment.unanswering() == {}
        state = await state_of(deployment)
        assert [(s.role, s.pid, s.url) for s in state.servers] == [(s.role, s.pid, s.url) for s in servers]
        assert deployment.lost() == []
    assert all(refuses(server.url) for server in servers)
    assert await state_of(deployment) == state.model_copy(update={"servers": ()})


async def test_a_server_that_dies_is_named_and_not_started_again(tmp_path: Path) -> None:
    """How it ended is told; the others go on."""
    async with fleet(tmp_path) as deployment:
        await deployment.start()
        kill(by_role(deployment)["model.main"])
        server = await lost(deployment)
        assert (server.role, server.ended) == ("model.main", "was ended by SIGKILL")
        assert refuses(server.url)
        assert [s.role for s in deployment.servers if s.ended is None] == [r for r in ROLES if r != "model.main"]


async def test_a_server_is_started_again_where_its_callers_know_it(tmp_path: Path) -> None:
    """The address is the same, the process another one, and nothing of the lost one is left."""
    async with fleet(tmp_path, options="{ child = true }") as deployment:
        await deployment.start()
        before = by_role(deployment)["resources.counter"]
        children = [
            pid for pid, role in (await living(deployment)).items() if role == before.role and pid != before.pid
        ]
        assert len(children) == 1
        kill(before)
        await lost(deployment)
        after = await deployment.restart(before.role)
        assert (after.url, after.ended) == (before.url, None)
        assert after.pid != before.pid
        assert children[0] not in await living(deployment)
        assert await deployment.unanswering() == {}
        assert deployment.lost() == []


async def test_the_end_takes_what_servers_have_started(tmp_path: Path) -> None:
    """Also from a session of its own, which no signal to a group reaches; the fixture looks for it."""
    async with fleet(tmp_path, options="{ child = true }") as deployment:
        await deployment.start()
        assert len(await living(deployment)) == len(ROLES) + 1


async def test_a_server_that_does_not_listen_to_sigterm_is_killed_in_time(tmp_path: Path) -> None:
    """It is named; the others ended by themselves."""
    async with fleet(tmp_path, options="{ deaf = true }", shutdown_s=0.5) as deployment:
        await deployment.start()
        began = anyio.current_time()
        assert await deployment.stop() == ["resources.counter"]
        assert anyio.current_time() - began < 0.5 + 5
        assert await deployment.stop() == ["resources.counter"]


async def test_hurry_waits_for_nobody(tmp_path: Path) -> None:
    """A second signal ends a fleet that would have an hour."""
    async with fleet(tmp_path, options="{ deaf = true }", shutdown_s=3600.0) as deployment:
        await deployment.start()
        deployment.hurry()
        with anyio.fail_after(20):
            assert "resources.counter" in await deployment.stop()


@pytest.mark.parametrize(
    ("options", "start_s", "says"),
    [
        ("{ dies = true }", 30.0, ["it ended with exit code 1", "what a server says before it dies"]),
        ("{ never_ready = true }", 0.7, ["it was not ready in 0.7 s", "a stand-in begins"]),
        ("{ elsewhere = true }", 30.0, ["it says that it is at http://127.0.0.1:", "and was to be at"]),
    ],
)
async def test_a_server_that_does_not_come_up_is_named_with_the_end_of_its_log(
    tmp_path: Path, options: str, start_s: float, says: list[str]
) -> None:
    """The others are ended; the log of an earlier start is not quoted."""
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "resources.counter.log").write_text("an earlier start\n")
    async with fleet(tmp_path, options=options, start_s=start_s) as deployment:
        with pytest.raises(NotUp) as failed:
            await deployment.start()
        assert "resources.counter" in failed.value.failures
        for said in says:
            assert said in failed.value.failures["resources.counter"]
        assert "an earlier start" not in str(failed.value)
        assert await living(deployment) == {}


async def test_a_server_that_refuses_what_it_is_started_from_is_no_loss(tmp_path: Path) -> None:
    """It is told apart from one that died, with its own words and what to do."""
    async with fleet(tmp_path, options="{ refuses = true }") as deployment:
        with pytest.raises(CannotBe, match="Correct what is said there") as failed:
            await deployment.start()
    assert "it ended with exit code 2" in failed.value.failures["resources.counter"]
    assert "what is wrong with its options" in str(failed.value)


@pytest.mark.parametrize(
    ("failures", "advice"),
    [
        ({"a": "at u does not take the control token"}, "Correct the token: token_env"),
        ({"a": "at u cannot be reached (ConnectError)"}, "Start what is down, or correct its url"),
        ({"a": "at u is b"}, "Correct the url of what is another server"),
    ],
)
def test_what_does_not_answer_as_it_should_is_told_what_applies_alone(failures: dict[str, str], advice: str) -> None:
    """A wrong token is corrected, and nothing is started for it."""
    told = str(NotAnswering(failures))
    assert f". {advice}" in told
    assert ("token_env" in told) == ("token" in failures["a"])
    assert ("url" in told) == ("token" not in failures["a"])
    assert str(NotAnswering({**failures, "b": failures["a"]})).endswith(told.partition(". ")[2])


async def test_a_port_in_use_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    """The role, the address and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        events: list[tuple[str, dict[str, Any]]] = []
        text = f'[fleet.servers."agent.main"]\nlisten = "{listen}"'
        async with fleet(tmp_path, events, fleet=text) as deployment:
            with pytest.raises(PortTaken, match=f"agent.main cannot listen on {listen}: Address already in use"):
                await deployment.start()
        assert events == []


async def test_one_controller_a_folder(tmp_path: Path) -> None:
    """Another one is refused, by the process that has it, and changes nothing; it may wait, and says so at once."""
    async with fleet(tmp_path) as deployment:
        await deployment.start()
        config, table = await read(tmp_path)
        async with Deployment(config, table, command=COMMAND) as other:
            with pytest.raises(FolderTaken, match=f"a fleet that process {os.getpid()} runs"):
                await other.start()
        assert await deployment.unanswering() == {}
        waits = anyio.Event()

        def tell(event: str, facts: Mapping[str, Any]) -> None:
            if event == "waiting_for_folder" and f"process {os.getpid()} has" in facts["message"]:
                waits.set()

        async with Deployment(config, table, command=COMMAND, tell=tell) as other, anyio.create_task_group() as group:
            group.start_soon(other.start, 30.0)
            await waits.wait()
            await deployment.stop()
        assert await living(deployment) == {}


async def test_attaching_starts_and_ends_nothing(tmp_path: Path) -> None:
    """The servers of a folder are used, watched by their processes, and live on behind it."""
    async with fleet(tmp_path) as deployment:
        started = await deployment.start()
        config, table = await read(tmp_path, fleet='mode = "attach"')
        async with Deployment(config, table, command=COMMAND) as attached:
            found = await attached.attach()
            assert [(s.role, s.url, s.pid) for s in found] == [(s.role, s.url, s.pid) for s in started]
            assert not any(server.started_by_us for server in found)
            assert attached.token == deployment.token
        assert await deployment.unanswering() == {}
        async with Deployment(config, table, command=COMMAND) as attached:
            await attached.attach()
            kill(by_role(deployment)["agent.main"])
            assert (await lost(attached)).role == "agent.main"
            with pytest.raises(NotOurs, match=r"agent\.main is run by somebody else"):
                await attached.restart("agent.main")
            await lost(deployment)
            async with anyio.create_task_group() as group:
                group.start_soon(deployment.restart, "agent.main")
                await attached.attach()
            assert attached.lost() == []
            assert by_role(attached)["agent.main"].pid == by_role(deployment)["agent.main"].pid


async def test_attaching_to_nothing_says_what_to_do(tmp_path: Path) -> None:
    """No folder, and a folder whose servers have ended."""
    async with fleet(tmp_path, fleet='mode = "attach"', start_s=0.3) as deployment:
        with pytest.raises(NoFleet, match="Run `midflight up` with this file first"):
            await deployment.attach()
    async with fleet(tmp_path) as deployment:
        await deployment.start()
    async with fleet(tmp_path, fleet='mode = "attach"', start_s=0.3) as deployment:
        with pytest.raises(NoFleet, match=r"model\.main has no url"):
            await deployment.attach()


async def test_a_server_elsewhere_is_asked_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that answers is used and not ended; another program, another token and silence are each named."""
    monkeypatch.setenv("TEST_FLEET_TOKEN", "a-token-of-this-test")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with fleet(tmp_path / "one", fleet='token_env = "TEST_FLEET_TOKEN"') as deployment:
        await deployment.start()
        there = by_role(deployment)["model.main"].url

        def text(url: str) -> str:
            return f'token_env = "TEST_FLEET_TOKEN"\n[fleet.servers."model.main"]\nurl = "{url}"'

        async with fleet(tmp_path / "two", fleet=text(there)) as other:
            servers = await other.start()
            assert [s.pid is None for s in servers] == [role == "model.main" for role in ROLES]
            assert other.token == "a-token-of-this-test"
        assert await deployment.unanswering() == {}
        agent = by_role(deployment)["agent.main"].url
        async with fleet(tmp_path / "two", fleet=text(agent), start_s=3.0) as other:
            with pytest.raises(NotAnswering, match=f"model.main at {agent} is agent.main"):
                await other.start()
        monkeypatch.setenv("TEST_FLEET_TOKEN", "another")
        async with fleet(tmp_path / "two", fleet=text(there), start_s=3.0) as other:
            with pytest.raises(NotAnswering, match="does not take the control token"):
                await other.start()
        async with fleet(tmp_path / "two", fleet=text("http://127.0.0.1:9"), start_s=3.0) as other:
            with pytest.raises(NotAnswering, match=r"cannot be reached \(ConnectError\)"):
                await other.start()


async def test_cancelling_a_start_leaves_nothing(tmp_path: Path) -> None:
    """Whatever was started by then is ended; the fixture looks for it."""
    async with fleet(tmp_path, options="{ never_ready = true }") as deployment:
        with anyio.move_on_after(0.5):
            await deployment.start()
        assert await living(deployment) == {}


async def test_cancelling_a_start_ends_all_of_what_a_killed_one_left(tmp_path: Path) -> None:
    """Also what does not listen to SIGTERM, once the others have ended by it; nothing is started."""
    file = await anyio.to_thread.run_sync(partial(write_file, tmp_path, options="{ deaf = true }"))

    def leave() -> None:
        with running(standing(file)) as controller:
            controller.wait_for("up")

    await anyio.to_thread.run_sync(leave)
    events: Events = []
    async with fleet(tmp_path, events, options="{ deaf = true }", shutdown_s=3.0) as deployment:
        async with anyio.create_task_group() as group:
            group.start_soon(deployment.start)
            with anyio.fail_after(30):
                while set((await living(deployment)).values()) != {"resources.counter"}:
                    await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert await living(deployment) == {}
        assert {name for name, _ in events} == {"leftover_ended"}


async def test_the_token_is_in_the_environment_of_servers_alone(tmp_path: Path) -> None:
    """No command line, log, state, spec or message has it, and only its own file, which is its owner's."""
    events: list[tuple[str, dict[str, Any]]] = []
    async with fleet(tmp_path, events) as deployment:
        servers = await deployment.start()
        token = deployment.token
        for server in servers:
            assert not has(token, f"/proc/{server.pid}/cmdline")
            assert has(token, f"/proc/{server.pid}/environ")
        having = [p.name for p in deployment.folder.iterdir() if token.encode() in p.read_bytes()]
        assert having == ["token"]
        assert (deployment.folder / "token").stat().st_mode & 0o077 == 0
        assert deployment.folder.stat().st_mode & 0o077 == 0
        assert token not in repr((events, servers, deployment))


async def test_a_token_of_ones_own_is_kept_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from the environment each time, and is refused where it is not there."""
    monkeypatch.setenv("TEST_FLEET_TOKEN", "a-token-of-this-test")
    async with fleet(tmp_path, fleet='token_env = "TEST_FLEET_TOKEN"') as deployment:
        await deployment.start()
        assert [p.name for p in deployment.folder.iterdir() if b"a-token-of-this-test" in p.read_bytes()] == []
        assert await deployment.unanswering() == {}


def test_a_pid_that_went_to_another_process_is_not_taken_for_the_first(tmp_path: Path) -> None:
    """Pid and start time together name a process; neither is signalled where they do not agree."""
    with folder_of(tmp_path / "run.toml") as folder:
        folder.mkdir()
        command = (COMMAND[0], "-S", "-c", "import signal; signal.pause()")
        running = launch(command, f"{folder}:agent.main", {}, folder / "out", folder / "log")
        held = hold(running.pid, running.started)
        assert held is not None
        assert held.ended() is None
        assert hold(running.pid, running.started - 1) is None
        Process(running.pid, running.started - 1).kill_group()
        assert running.ended() is None
        held.kill_group()
        assert (held.ended(), running.ended()) == ("is gone", "was ended by SIGKILL")
        assert hold(running.pid, running.started) is None
        running.kill_group()
        held.close()
        until(lambda: not left(folder))


def test_errors_have_codes_that_stay() -> None:
    """What a program may rely on."""
    codes = {kind.__name__: kind.code for kind in DeploymentError.__subclasses__()}
    assert codes == {
        "PortTaken": "port_taken",
        "FolderTaken": "folder_taken",
        "NotUp": "not_up",
        "NoFleet": "no_fleet",
        "NotAnswering": "not_answering",
        "NotOurs": "not_ours",
        "BadState": "bad_state",
        "NotWritten": "not_written",
    }
