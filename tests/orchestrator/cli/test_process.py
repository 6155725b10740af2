"""The command line as a program: exit codes, streams, terminals, pipes, signals."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

TIMEOUT_S = 50
PROGRAM = str(Path(sys.executable).with_name("midflight"))
NO_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_DEFAULT_REGION": "us-east-1"}


def midflight(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **environment},
    )


def test_each_kind_of_ending_has_its_exit_code(root: Path) -> None:
    """0 fine, 1 damage, 2 refused, 3 nothing there; errors are one line on stderr without a traceback."""
    fine = midflight("checkpoints", "verify", root, "--deep")
    assert (fine.returncode, fine.stderr) == (0, "")
    refused = midflight("checkpoints", "show", root, "not-an-id")
    nothing = midflight("checkpoints", "list", root / "nowhere")
    manifest = root / "checkpoints" / "1.2" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-40])
    damage = midflight("checkpoints", "show", root)
    assert [refused.returncode, nothing.returncode, damage.returncode] == [2, 3, 1]
    for ran in (refused, nothing, damage):
        assert ran.stdout == ""
        assert ran.stderr.startswith("midflight: ")
        assert len(ran.stderr.splitlines()) == 1
    assert midflight("checkpoints", "verify", root).returncode == 1


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_store_that_cannot_be_reached_exits_4(scheme: str) -> None:
    """That is neither damage nor an empty store; the error says which."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        at = ("s3://bucket/run", "--endpoint-url", endpoint) if scheme == "s3" else (f"{endpoint}/run",)
        ran = midflight("checkpoints", "list", *at, "--retry-for", "0.3", "--json", **NO_CREDENTIALS)
    assert ran.returncode == 4, ran.stderr
    document = json.loads(ran.stdout)
    assert (document["exit_code"], document["error"]) == (4, "StoreUnavailable")
    assert len(ran.stderr.splitlines()) == 1


def test_wrong_usage_exits_2_before_anything_is_opened() -> None:
    """A missing argument, an unknown command and an unknown option."""
    for arguments in (["checkpoints", "list"], ["checkpoints", "burn"], ["checkpoints", "list", "x", "--fast"]):
        ran = midflight(*arguments)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert "Error" in ran.stderr


def test_the_version_is_printed() -> None:
    """One line, for bug reports."""
    ran = midflight("--version")
    assert ran.returncode == 0
    assert ran.stdout.startswith("midflight ")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("checkpoints", "list", "{root}"), 0),
        (("checkpoints", "list", "{root}", "--json"), 0),
        (("checkpoints", "list", "--help"), 0),
        (("--version",), 0),
    ],
)
def test_a_reader_that_goes_away_is_no_damage(root: Path, arguments: tuple[str, ...], code: int) -> None:
    """`midflight … | head` ends with the code of the command and without noise."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            [PROGRAM, *(argument.format(root=root) for argument in arguments)],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (code, b"")


def test_an_interrupt_exits_130_and_not_as_damage() -> None:
    """Ctrl-C while a store does not answer; the signal is sent once the program waits for it."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [PROGRAM, "checkpoints", "list", "s3://bucket/run", "--endpoint-url", endpoint],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **NO_CREDENTIALS},
        )
        with process:
            silent.settimeout(TIMEOUT_S)
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (130, "")
    assert err == "midflight: interrupted\n"


def on_terminal(*arguments: object) -> tuple[int, str, bytes]:
    """Run with a terminal as stderr; returns the code, stdout and what the terminal showed."""
    ours, theirs = pty.openpty()
    shown = b""
    try:
        process = subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=theirs, text=True)
        os.close(theirs)
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:
            pass  # The other end was closed: that is how a terminal ends.
        out, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        os.close(ours)
    return process.returncode, out, shown


def test_progress_goes_to_a_terminal_and_nowhere_else(root: Path) -> None:
    """On a terminal stderr shows it; in a pipe there is none, and stdout is the same either way."""
    code, out, shown = on_terminal("checkpoints", "verify", root, "--deep", "--json")
    assert code == 0
    assert b"verifying" in shown
    plain = midflight("checkpoints", "verify", root, "--deep", "--json")
    assert (plain.stdout, plain.stderr) == (out, "")


def test_a_copy_that_is_killed_is_continued_by_the_same_command(root: Path, tmp_path: Path) -> None:
    """SIGKILL at three points of its work: the source stays, no half checkpoint shows, and the last run completes."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    destination = tmp_path / "copy"
    command = [PROGRAM, "checkpoints", "copy", str(root), str(destination)]
    for wanted in ("checkpoints", "checkpoints/1.2/agent.solver", "checkpoints/1.2/manifest.json"):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        with process:
            while process.poll() is None and not (destination / wanted).exists():
                with suppress(subprocess.TimeoutExpired):  # Its own progress is the clock.
                    process.wait(0.005)
            process.kill()
        listed = midflight("checkpoints", "list", destination, "--json")
        assert listed.returncode in {0, 3}
        assert all(row["damage"] is None for row in json.loads(listed.stdout).get("checkpoints", []))
    assert subprocess.run(command, timeout=TIMEOUT_S, check=False, capture_output=True).returncode == 0
    assert midflight("checkpoints", "verify", destination, "--deep").returncode == 0
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
