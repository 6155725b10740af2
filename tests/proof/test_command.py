"""`python -m tests.proof`: what it prints, and that two processes come to the same history of a seed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def _proof(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.proof", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)


def test_a_few_seeds_give_one_sentence_with_their_counts() -> None:
    """It ends with how many violations there were, and with 0 where there were none."""
    done = _proof("--part", "simulation", "--seeds", "2", "--first", "100")
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("2 seeds of the whole system")
    assert last.endswith("no violations of twelve invariants.")


def test_each_part_has_its_words_in_the_sentence() -> None:
    """A part for which a busy machine had no time is named and fails the run; what is lost and found is not told."""
    done = _proof("--minutes", "0.1")
    last = done.stdout.splitlines()[-1]
    tried, _, nothing = last.partition("; nothing was tried of ")
    for name, words in {
        "crash states": "crash points of opening",
        "schedules": "interleavings of writers",
        "kills": "ended by SIGKILL",
        "simulation": "seeds of the whole system",
    }.items():
        assert (words in tried) != (name in nothing)
    assert (done.returncode, done.stderr) == (int(bool(nothing)), ""), done.stdout


def test_programs_get_one_json_object() -> None:
    """With counts, what was reached and what was not, and the violations."""
    done = _proof("--part", "simulation", "--seeds", "1", "--json")
    assert json.loads(done.stdout)["simulation"]["counts"]["seeds"] == 1


def test_a_replay_is_the_same_in_every_process() -> None:
    """Two processes print the same events, byte for byte."""
    assert _proof("--seed", "7").stdout == _proof("--seed", "7").stdout != ""
