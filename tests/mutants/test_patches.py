"""Planted bugs do not rot: each applies to the tree as it is, compiles, and is on the page."""

from pathlib import Path

import pytest

from .bugs import BUGS
from .copied import ROOT
from .mutant import StalePatch, bug, problems
from .page import listed

pytestmark = pytest.mark.unit

LEAST = 40


def test_every_patch_applies_and_what_ought_to_catch_it_is_there() -> None:
    """Each old text stands in its file once, what comes of it compiles, and the tests exist."""
    assert list(problems(BUGS, ROOT)) == []
    assert len(BUGS) >= LEAST


def test_the_page_has_every_bug() -> None:
    """`python -m tests.mutants --write` brings it up to date."""
    assert listed() == [mutant.name for mutant in BUGS]


@pytest.mark.parametrize(("text", "says"), [("a = 1\na = 1\n", "2 times"), ("b = 1\n", "0 times")])
def test_a_patch_that_does_not_apply_once_is_refused(text: str, says: str) -> None:
    """Neither nowhere nor in two places, and it says where and what."""
    with pytest.raises(StalePatch, match=says):
        bug("n", "f.py", "a = 1", "a = 2", "r").applied(text)


def test_a_patch_that_does_not_compile_is_refused() -> None:
    """A bug that no interpreter takes is none."""
    with pytest.raises(StalePatch, match="does not compile"):
        bug("n", "f.py", "a = 1", "a = ", "r").applied("a = 1\n")


def test_what_has_rotted_is_named(tmp_path: Path) -> None:
    """A test that is gone, a bug that nothing is to catch, and a name that comes twice."""
    (tmp_path / "f.py").write_text("a = 1\n")
    mutants = [bug("n", "f.py", "a = 1", "a = 2", "r", "test_f.py::test_a"), bug("n", "f.py", "a = 1", "a = 2", "r")]
    found = list(problems(mutants, tmp_path))
    assert [problem.partition(": ")[2] for problem in found] == [
        "there is no test tests/test_f.py::test_a",
        "the name comes twice",
        "nothing is named that ought to catch it",
    ]
