"""Controllers of a fleet that are told to end, killed, and followed by others."""

import os
import signal
from pathlib import Path

import pytest

from orchestrator.deployment.state import STATE
from tests.support.waiting import until

from .files import ROLES, write_file
from .programs import folder_of, left, nothing_is_left, running, standing

pytestmark = pytest.mark.process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_signal_that_ends_a_controller_ends_its_fleet(tmp_path: Path, number: signal.Signals) -> None:
    """A closed terminal too: no process and no socket outlives it."""
    file = write_file(tmp_path)
    with folder_of(file) as folder, running(standing(file)) as program:
        servers = program.wait_for("up")["servers"]
        assert [server["role"] for server in servers] == ROLES
        assert program.end(number) == 0
        assert program.said("stopping") == [{"event": "stopping", "signal": number.name, "at_once": False}]
        assert program.said("ended") == [{"event": "ended", "died": [], "killed": []}]
        nothing_is_left(folder, servers)


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    """A server that ignores SIGTERM would have an hour."""
    file = write_file(tmp_path, options="{ deaf = true }", shutdown_s=3600.0)
    with folder_of(file) as folder, running(standing(file)) as program:
        servers = program.wait_for("up")["servers"]
        program.process.send_signal(signal.SIGTERM)
        program.wait_for("stopping")
        assert program.end() == 0
        assert [said["at_once"] for said in program.said("stopping")] == [False, True]
        assert "resources.counter" in program.said("ended")[0]["killed"]
        nothing_is_left(folder, servers)


def test_a_controller_that_is_told_to_end_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    """Whatever it has started by then is ended."""
    file = write_file(tmp_path, options="{ never_ready = true }")
    with folder_of(file) as folder, running(standing(file)) as program:
        program.wait_for("server_started")
        assert program.end() == 0
        assert program.said("up") == []
        nothing_is_left(folder, program.said("server_started"))


def test_a_fleet_whose_servers_have_all_ended_ends(tmp_path: Path) -> None:
    """Each is told of, and none is started again."""
    file = write_file(tmp_path)
    with folder_of(file) as folder, running(standing(file)) as program:
        servers = program.wait_for("up")["servers"]
        for number, server in enumerate(servers):
            os.kill(server["pid"], signal.SIGKILL)
            lost = program.wait_for("server_lost")
            assert (lost["role"], lost["how"]) == (server["role"], "was ended by SIGKILL")
            assert lost["left"] == len(servers) - number - 1
        assert program.wait() == 0
        assert len(program.said("server_started")) == len(servers)
        nothing_is_left(folder, servers)


def test_a_start_ends_the_fleet_of_a_killed_controller(tmp_path: Path) -> None:
    """It lives on by itself; the next start ends all of it, first as it wishes, and starts others."""
    file = write_file(tmp_path, options="{ child = true }")
    with folder_of(file) as folder:
        with running(standing(file)) as program:
            before = program.wait_for("up")["servers"]
            program.end(signal.SIGKILL)
        assert len(left(folder)) == len(before) + 1
        with running(standing(file)) as program:
            after = program.wait_for("up")["servers"]
            ended = program.said("leftover_ended")
            assert {(one["role"], one["pid"]) for one in ended if not one["killed"]} == {
                (server["role"], server["pid"]) for server in before
            }
            assert [one["role"] for one in ended if one["killed"]] == ["resources.counter"]
            assert not {server["pid"] for server in before} & left(folder).keys()
            assert program.end() == 0
        nothing_is_left(folder, [*before, *after])


def test_survivors_are_found_without_a_state_file(tmp_path: Path) -> None:
    """Where a kill came before it was written, or somebody removed it, they are told by their mark."""
    file = write_file(tmp_path)
    with folder_of(file) as folder:
        with running(standing(file)) as program:
            before = program.wait_for("up")["servers"]
            program.end(signal.SIGKILL)
        (folder / STATE).unlink()
        with running(standing(file)) as program:
            program.wait_for("up")
            assert {one["pid"] for one in program.said("leftover_ended")} == {server["pid"] for server in before}
            assert program.end() == 0
        nothing_is_left(folder, before)


def test_adopt_goes_on_with_survivors_and_starts_the_dead(tmp_path: Path) -> None:
    """The same processes at the same addresses; a dead one comes back where its callers know it; all end at the end."""
    file = write_file(tmp_path)
    with folder_of(file) as folder:
        with running(standing(file)) as program:
            before = {server["role"]: server for server in program.wait_for("up")["servers"]}
            program.end(signal.SIGKILL)
        os.kill(before["model.main"]["pid"], signal.SIGKILL)
        until(lambda: "model.main" not in left(folder).values())
        with running(standing(file, "adopt")) as program:
            after = {server["role"]: server for server in program.wait_for("up")["servers"]}
            assert {role: one["url"] for role, one in after.items()} == {r: one["url"] for r, one in before.items()}
            same = [role for role in ROLES if after[role]["pid"] == before[role]["pid"]]
            assert same == [role for role in ROLES if role != "model.main"]
            assert [one["role"] for one in program.said("server_adopted")] == same
            assert [one["role"] for one in program.said("server_started")] == ["model.main"]
            assert program.said("leftover_ended") == []
            os.kill(after["agent.main"]["pid"], signal.SIGKILL)
            assert program.wait_for("server_lost")["role"] == "agent.main"
            assert program.end() == 0
        nothing_is_left(folder, list(after.values()))


def test_adopt_ends_what_is_something_else_by_now(tmp_path: Path) -> None:
    """Another endpoint makes another model server; the others, whose programs are the same, go on."""
    file = write_file(tmp_path)
    with folder_of(file) as folder:
        with running(standing(file)) as program:
            before = program.wait_for("up")["servers"]
            program.end(signal.SIGKILL)
        write_file(tmp_path, endpoint="http://127.0.0.1:8/v1")
        with running(standing(file, "adopt")) as program:
            after = program.wait_for("up")["servers"]
            assert [one["role"] for one in program.said("leftover_ended")] == ["model.main"]
            changed = [b["role"] for b, a in zip(before, after, strict=True) if a["pid"] != b["pid"]]
            assert changed == ["model.main"]
            assert [server["url"] for server in after] == [server["url"] for server in before]
            assert program.end() == 0
        nothing_is_left(folder, after)


def test_adopt_ends_what_does_not_answer_as_what_it_should_be(tmp_path: Path) -> None:
    """A survivor that hangs is no survivor: it is ended by force, and started anew."""
    file = write_file(tmp_path)
    with folder_of(file) as folder:
        with running(standing(file)) as program:
            before = program.wait_for("up")["servers"]
            program.end(signal.SIGKILL)
        (folder / "token").unlink()  # Nobody knows the token that they want.
        with running(standing(file, "adopt")) as program:
            after = program.wait_for("up")["servers"]
            assert program.said("server_adopted") == []
            assert len(program.said("leftover_ended")) == len(before)
            assert not {server["pid"] for server in before} & {server["pid"] for server in after}
            assert program.end() == 0
        nothing_is_left(folder, after)


def test_adopt_with_nothing_to_adopt_starts(tmp_path: Path) -> None:
    """The same command is the first one and every other."""
    file = write_file(tmp_path)
    with folder_of(file) as folder, running(standing(file, "adopt")) as program:
        servers = program.wait_for("up")["servers"]
        assert len(program.said("server_started")) == len(ROLES)
        assert program.end() == 0
        nothing_is_left(folder, servers)
