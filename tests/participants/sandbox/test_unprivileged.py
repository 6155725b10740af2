"""The same hostile programs, where the server is an ordinary user and a program the same user."""

import json
import os
import subprocess
import sys

import pytest

from tests.tidy.tree import ROOT

from .unprivileged import PROGRAMS, USER

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


@pytest.mark.skipif(
    os.getuid() != 0, reason="not the administrator: all other tests here run as an ordinary user already"
)
def test_an_ordinary_user_contains_hostile_programs_too(way: str) -> None:
    """Each ends as it may end, has reached nothing and left nothing."""
    if not readable_by_others():
        pytest.skip("the repository cannot be read by another user")
    line = [sys.executable, "-m", "tests.participants.sandbox.unprivileged", way]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [
        result
        for program, result in zip(PROGRAMS, results, strict=True)
        if result["ended"] not in program.ended
        or program.says not in result["said"]
        or "ESCAPED" in result["said"]
        or result["left"]
    ]
    assert not wrong


def readable_by_others() -> bool:
    """Whether another user reaches this repository."""
    look = [
        "setpriv",
        f"--reuid={USER}",
        f"--regid={USER}",
        "--clear-groups",
        "ls",
        str(ROOT / "participants" / "sandbox"),
    ]
    return subprocess.run(look, capture_output=True).returncode == 0
