"""Every test says in which tier it runs and what it claims; one that does not would silently never run."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .tree import ROOT, expect_none, modules, plant

TIERS = ("unit", "process", "real", "scale")
UNTIERED = " and ".join(f"not {tier}" for tier in TIERS)
TORN = "unit and (process or real or scale)"
"""In a tier that plain pytest runs and in one that it leaves out."""
COLLECT_TIMEOUT_S = 50
NOTHING_COLLECTED = 5
"""Pytest's exit code where no test is left."""


def collected(root: Path, expression: str) -> list[str]:
    """The tests that pytest finds in a tree for this marker expression, marks of parameters included."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", "-m", expression]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=COLLECT_TIMEOUT_S, check=False)
    assert result.returncode in {0, NOTHING_COLLECTED}, result.stdout + result.stderr
    return [line for line in result.stdout.splitlines() if ".py" in line]


def silent(root: Path) -> list[str]:
    """Tests of a tree whose docstring does not say what they claim."""
    return [
        f"{module.at(function)}: {function.name} does not say in a docstring what it claims"
        for module in modules(root, "tests")
        for function in module.functions()
        if module.path.name.startswith("test_") and function.name.startswith("test_")
        if not ast.get_docstring(function)
    ]


@pytest.mark.process
def test_every_test_is_in_a_tier() -> None:
    """No test is left out of all tiers, and none is both in a quick tier and in a slow one."""
    expect_none(collected(ROOT, UNTIERED))
    expect_none(collected(ROOT, TORN))


@pytest.mark.unit
def test_every_test_says_what_it_claims() -> None:
    """Each test has a docstring beside its name."""
    expect_none(silent(ROOT))


@pytest.mark.unit
def test_the_tiers_are_those_that_pytest_knows() -> None:
    """The tiers here, the markers that pytest accepts and the page for contributors are the same."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = [marker.partition(":")[0] for marker in options["markers"]]
    assert [name for name in names if "(" not in name] == list(TIERS)
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(TIERS)


PLANTED = '''"""Some tests."""
import pytest

@pytest.mark.unit
def test_right(): ...

def test_left_out():
    """Nothing."""

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.real)])
def test_half(x): ...

@pytest.mark.unit
@pytest.mark.real
def test_torn(): ...
'''


@pytest.mark.process
def test_a_test_in_no_tier_or_in_two_is_found(tmp_path: Path) -> None:
    """A test without a mark, a parameter without one, and a test torn between two tiers are found."""
    settings = '[tool.pytest.ini_options]\nmarkers = ["unit", "process", "real", "scale"]\n'
    plant(tmp_path, {"pyproject.toml": settings, "test_a.py": PLANTED})
    assert collected(tmp_path, UNTIERED) == ["test_a.py: 2"]
    assert collected(tmp_path, TORN) == ["test_a.py: 1"]


@pytest.mark.unit
def test_a_test_without_a_claim_is_found(tmp_path: Path) -> None:
    """A missing docstring is found, in a class too; helpers need none."""
    files = {"tests/test_a.py": PLANTED, "tests/test_b.py": "class TestB:\n    async def test_b(self): ...\n"}
    found = silent(plant(tmp_path, {**files, "tests/support/a.py": "def test_double(): ...\n"}))
    names = [message.split()[1] for message in found]
    assert names == ["test_right", "test_half", "test_torn", "test_b"]
