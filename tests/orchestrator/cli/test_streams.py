"""Whatever becomes of its streams, the program ends with a documented exit code and without a traceback."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from .test_process import PROGRAM, TIMEOUT_S, midflight

pytestmark = pytest.mark.process

COMMANDS = (("checkpoints", "list", "{root}"), ("checkpoints", "list", "{root}", "--json"), ("--version",), ("--help",))


def shell(redirection: str, root: Path, *arguments: str) -> tuple[int, bytes, bytes]:
    """Run with redirections of a shell; the code, stdout and stderr."""
    filled = [argument.format(root=root) for argument in arguments]
    ran = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {redirection}', PROGRAM, *filled],
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("arguments", COMMANDS)
@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_a_stdout_that_takes_nothing_is_a_failure_and_no_damage(
    root: Path, redirection: str, arguments: tuple[str, ...]
) -> None:
    """Closed or full: exit code 4, and one line on stderr that says so."""
    code, _, err = shell(redirection, root, *arguments)
    assert code == 4, err
    assert err.count(b"\n") == 1
    assert b"print" in err


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&-"])
def test_a_stderr_that_takes_nothing_changes_no_exit_code(root: Path, redirection: str) -> None:
    """Nobody can be told more than the code."""
    assert shell(redirection, root, "checkpoints", "list", "{root}")[0] == 0
    assert shell(redirection, root, "checkpoints", "show", "{root}", "9.9")[0] == 3
    assert shell(redirection, root, "checkpoints", "burn")[0] == 2


def test_no_file_of_a_store_takes_the_place_of_a_closed_stream(root: Path) -> None:
    """With all three closed the command does its work, and the store is as it was."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert shell(">&- 2>&- <&-", root, "checkpoints", "verify", "{root}", "--deep")[0] == 4
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_what_the_encoding_lacks_is_printed_as_an_escape(root: Path) -> None:
    """On an ASCII terminal, and for a path that is no text at all, for people and for programs."""
    odd = os.fsencode(root.with_name("数")) + b"\xff"
    os.rename(root, odd)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for flags in ([], ["--json"]):
        command = [PROGRAM.encode(), b"checkpoints", b"list", odd, *map(str.encode, flags)]
        ran = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, env=environment)
        assert (ran.returncode, ran.stderr) == (0, b"")
        assert ran.stdout.isascii()
        assert b"%FF" in ran.stdout
    assert midflight("checkpoints", "list", json.loads(ran.stdout)["store"]).returncode == 0
