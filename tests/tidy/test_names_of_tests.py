"""The names of tests are the same in every process, or they cannot be spread over several, or be asked for again."""

import os
import subprocess
import sys

import pytest

from .tree import ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def test_names_do_not_depend_on_the_process() -> None:
    """No name has an address, or the order of a set, in it."""
    assert names("1") == names("2")


def names(seed: str) -> list[str]:
    """All tests, as a process with this seed of hashes names them."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", ""]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if "::" in line]
