"""The benchmark of the verifiers measures each that ships, and says consistent things of it."""

import json
import os
import subprocess
import sys

import pytest

from bench import verifiers
from bench.verifiers import TRIALS, cohorts_of, cpu_of_tree
from participants.cases import Case

TRAINING = {"code_gen", "competitive_coding_challenges", "equivalence_llm_judge", "genrm_compare", "math_with_judge"}


@pytest.mark.unit
def test_each_verifier_of_training_is_measured() -> None:
    """By its name, and with the class of the module of that name."""
    assert set(TRIALS) == TRAINING
    assert all(f".{name}:" in trial.server for name, trial in TRIALS.items())


@pytest.mark.unit
def test_cohorts_are_taken_whole() -> None:
    """As many cases as asked for, or the rest of a cohort more; the cases come again where there are too few."""
    cases = [Case(row={}, cohort="a"), Case(row={}), Case(row={}, cohort="a"), Case(row={})]
    assert [len(group) for group in cohorts_of(cases, 6)] == [2, 1, 1, 2]
    assert [len(group) for group in cohorts_of(cases, 5)] == [2, 1, 1, 2]


@pytest.mark.process
def test_the_processor_time_of_children_counts_while_they_live_and_after() -> None:
    """A child that computes for half a second of processor time adds as much, and does not vanish with its end."""
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before = cpu_of_tree()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = cpu_of_tree()
        child.communicate(b"\n")
    assert alive - before >= 0.45
    assert cpu_of_tree() >= alive - 2 / os.sysconf("SC_CLK_TCK")


@pytest.mark.process
def test_the_bench_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    """Its last line has exactly the promised keys for each verifier that it was asked for."""
    verifiers.main(["--only", "equivalence_llm_judge", "--count", "12", "--repeat", "1", "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    figures = {"verifies_per_s", "cpu_ms_per_verify", "limit_per_s", "limit_cpu_ms", "ratio", "cpu_ratio", "against"}
    assert {name: set(each) for name, each in found.items()} == {"equivalence_llm_judge": figures}
    assert found["equivalence_llm_judge"]["verifies_per_s"] > 0
