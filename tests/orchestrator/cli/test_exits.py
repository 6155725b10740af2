"""Every error ends in a documented exit code, and no code means two things."""

import inspect
import re
from pathlib import Path

import pytest

import store.errors
from orchestrator.cli.exits import Exit, exit_of
from store import (
    AccessDenied,
    CheckpointDeleted,
    CorruptChain,
    CorruptCheckpoint,
    InvalidName,
    IOFailed,
    NoCheckpoint,
    NoSpace,
    NotAStore,
    OutcomeUnknown,
    RootMissing,
    StoreError,
    StoreUnavailable,
    UnsupportedVersion,
)

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[3] / "docs" / "commands.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CorruptCheckpoint("x", "y"), 1),
        (CorruptChain("x", "y"), 1),
        (InvalidName("x", "y", "z"), 2),
        (UnsupportedVersion("x", "y"), 2),
        (NoCheckpoint("x"), 3),
        (NotAStore("x", "y"), 3),
        (RootMissing("open", "x"), 3),
        (CheckpointDeleted("x", 1), 3),
        (AccessDenied("get", "x"), 4),
        (StoreUnavailable("get", "x"), 4),
        (OutcomeUnknown("create", "x"), 4),
        (NoSpace("put", "x"), 4),
        (IOFailed("put", "x"), 4),
    ],
)
def test_an_error_ends_in_the_code_of_its_kind(error: StoreError, code: int) -> None:
    """Damage 1, refused 2, nothing there 3, a store that did not do it 4."""
    assert exit_of(error) == code


def test_every_error_of_the_store_has_a_code() -> None:
    """None ends in 0, and none in a code that means something else than an error of the store."""
    kinds = [kind for _, kind in inspect.getmembers(store.errors, inspect.isclass) if issubclass(kind, StoreError)]
    assert len(kinds) > 30
    for kind in kinds:
        error = kind.__new__(kind)
        assert exit_of(error) in {Exit.DAMAGE, Exit.REFUSED, Exit.NOTHING, Exit.FAILED}


def test_every_code_is_documented() -> None:
    """The table of the page has one row for each code."""
    rows = re.findall(r"^\| `?(\d+)`? \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(code) for code in rows] == [int(code) for code in Exit]
