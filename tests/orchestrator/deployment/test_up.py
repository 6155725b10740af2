"""`midflight up` with real servers: the table, deaths, ends, and what a killed one leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until

from .files import ROLES, write_file
from .programs import PATIENCE_S, folder_of, left, nothing_is_left, running, up

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "fleet" / "run.toml"


def midflight(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """A command that ends by itself."""
    command = [sys.executable, "-m", "midflight", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def workers_of(server: dict[str, Any], folder: Path) -> list[int]:
    """The processes of a server behind its first one."""
    return [pid for pid, role in left(folder).items() if role == server["role"] and pid != server["pid"]]


def test_the_example_runs_and_nothing_dies_or_comes_back_in_silence(tmp_path: Path) -> None:
    """A worker that dies is replaced, a server that dies is not; both are said; SIGTERM ends the rest, with code 1."""
    file = tmp_path / "run.toml"
    file.write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-8")
    with folder_of(file) as folder, running(up(file)) as program:
        servers = {server["role"]: server for server in program.wait_for("up")["servers"]}
        assert list(servers) == ROLES
        counter, agent = servers["resources.counter"], servers["agent.main"]
        assert (counter["workers"], agent["workers"]) == (2, 1)
        assert len(workers_of(counter, folder)) == 2
        os.kill(workers_of(counter, folder)[0], signal.SIGKILL)
        died = program.wait_for("worker_died")
        assert (died["role"], died["signal"]) == ("resources.counter", "SIGKILL")
        assert program.wait_for("worker_started")["replaced"] == 1
        os.kill(agent["pid"], signal.SIGKILL)
        lost = program.wait_for("server_lost")
        assert (lost["role"], lost["how"], lost["left"]) == ("agent.main", "was ended by SIGKILL", 3)
        until(lambda: workers_of(agent, folder) == [])
        assert program.end() == 1
        assert len(program.said("server_started")) == len(ROLES)
        assert program.said("ended")[0]["died"] == ["agent.main"]
        nothing_is_left(folder, list(servers.values()))


def test_people_get_one_table_and_sentences(tmp_path: Path) -> None:
    """The table alone is on stdout; all that happens is on stderr; the end is code 0."""
    file = write_file(tmp_path)
    command = [sys.executable, "-m", "midflight", "up", str(file)]
    log = tmp_path / "said"
    with folder_of(file) as folder, log.open("wb") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline().rstrip() for _ in range(5)]
            assert re.split(r"  +", lines[0]) == ["SERVER", "KIND", "WORKERS", "URL", "PID", "LOG"]
            for role, line in zip(ROLES, lines[1:], strict=True):
                name, kind, workers, url, pid, path = line.split()
                assert (name, kind, workers) == (role, role.partition(".")[0], "1")
                assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
                assert left(folder)[int(pid)] == role
                assert path == str(folder / f"{role}.log")
            until(lambda: b"up: 4 servers" in log.read_bytes() and b"does not answer" in log.read_bytes())
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()
            process.communicate()
        nothing_is_left(folder, [])
    told = log.read_text(encoding="utf-8").splitlines()
    [silent] = [line for line in told if "does not answer" in line]
    assert silent.startswith("model.main: w0: http://127.0.0.1:9/v1 does not answer: ")
    assert [line for line in told if line != silent][-3:] == [
        "up: 4 servers; SIGTERM or Ctrl-C ends them",
        "SIGTERM: every server is told to end",
        "ended: no server is left",
    ]


def test_what_a_killed_up_leaves_is_adopted_or_ended(tmp_path: Path) -> None:
    """The fleet lives on; a second `up` of mode adopt goes on with it; `--stop` ends one that nobody has."""
    file = write_file(tmp_path, fleet='mode = "adopt"')
    with folder_of(file) as folder:
        with running(up(file)) as program:
            before = program.wait_for("up")["servers"]
            refused = midflight("up", "--stop", file)
            assert refused.returncode == 2
            assert f"a fleet that process {program.process.pid} runs" in refused.stderr
            assert f"send SIGTERM to process {program.process.pid} first" in refused.stderr
            program.end(signal.SIGKILL)
        with running(up(file)) as program:
            after = program.wait_for("up")["servers"]
            assert after == before
            program.end(signal.SIGKILL)
        ended = midflight("up", "--stop", file)
        assert ended.returncode == 0
        assert [line.partition(":")[0] for line in ended.stderr.splitlines()] == ROLES
        nothing_is_left(folder, after)
        assert midflight("up", "--stop", file).stderr == ""


def test_a_server_that_cannot_start_ends_up_with_its_own_words(tmp_path: Path) -> None:
    """Options that the class does not take: named, with code 2, for it helps to correct them, and nothing is left."""
    file = write_file(tmp_path, options="{ colour = 3 }")
    with folder_of(file) as folder:
        ran = midflight("up", file, "--json")
        assert ran.returncode == 2
        assert "error: resources.counter did not come up: it ended with exit code 2" in ran.stderr
        assert "does not take these options" in ran.stderr
        assert ran.stderr.endswith("\nCorrect what is said there; the same command fails again until then\n")
        last = json.loads(ran.stdout.splitlines()[-1])
        assert (last["event"], last["error"], last["exit_code"]) == ("failed", "CannotBe", 2)
        assert left(folder) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no table [fleet], so its run has no servers"),
        ("[fleet]\nmode = 'never'", "fleet.mode"),
        ("[fleet]\ntoken_env = 'NOT_SET_BY_ANYBODY'", "the environment variable NOT_SET_BY_ANYBODY is not set"),
        (
            "[fleet]\n" + "".join(f"[fleet.servers.'{role}']\nurl = 'http://h:1'\n" for role in ROLES),
            "every server of [fleet] has a url: there is nothing to start",
        ),
    ],
)
def test_what_cannot_be_started_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """With code 2 and one sentence."""
    file = tmp_path / "run.toml"
    rest = write_file(tmp_path).read_text(encoding="utf-8").partition("[fleet]")[0]
    file.write_text(rest + text, encoding="utf-8")
    ran = midflight("up", file)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
