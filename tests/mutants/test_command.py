"""`python -m tests.mutants`: what it says of a bug that is caught, of one that is not, and of one that is none."""

import json
import subprocess
import sys

import pytest

from .copied import ROOT
from .mutant import Mutant, bug

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

TESTED = "participants/test_fences.py::test_what_is_installed_may_act"
LIMIT_S = 140


def _mutants(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.mutants", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)


def _reported(mutant: Mutant) -> subprocess.CompletedProcess[str]:
    """A run over one bug that is on no list, in a process of its own."""
    edits, tests = mutant.edits, mutant.tests
    made = f"Mutant(name={mutant.name!r}, file={mutant.file!r}, edits={edits!r}, breaks='', tests={tests!r})"
    lines = [
        "import sys",
        "from tests.mutants.__main__ import report",
        "from tests.mutants.mutant import Mutant",
        f"sys.exit(report([{made}], as_json=True))",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)


def test_a_bug_that_is_caught_is_told_with_the_test_that_failed() -> None:
    """The command ends with 0, and the checkout is as it was."""
    before = (ROOT / "participants" / "fences.py").read_bytes()
    done = _mutants("--only", "floor one too low", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["survived"] == []
    assert document["bugs"][0]["test"].startswith("tests/participants/test_fences.py::test_")
    assert (ROOT / "participants" / "fences.py").read_bytes() == before


def test_a_bug_that_nothing_catches_ends_the_command_with_one() -> None:
    """It stands in the list of those that survived."""
    harmless = bug("harmless", "participants/fences.py", "No life is known, and", "No life is known and", "", TESTED)
    done = _reported(harmless)
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout)["survived"] == ["harmless"]


def test_a_bug_that_keeps_tests_from_running_says_nothing() -> None:
    """What cannot even be imported is a broken patch and no bug that is caught."""
    broken = bug(
        "broken", "participants/fences.py", "from store import Life\n", "from store import Lives\n", "", TESTED
    )
    done = _reported(broken)
    assert done.returncode not in (0, 1) or "Broken" in done.stderr, done.stdout
    assert "cannot import name 'Lives'" in done.stderr


def test_the_bugs_are_listed_and_an_unknown_one_is_refused() -> None:
    """With their files, one a line; nothing is planted."""
    listed = _mutants("--list")
    assert "stale epoch accepted  (participants/book.py)" in listed.stdout.splitlines()
    assert _mutants("--only", "no such bug").returncode == 2
