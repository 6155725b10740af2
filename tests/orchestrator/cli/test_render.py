"""What is printed is safe to look at, and short where there is much of it."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.cli.documents import Copied, Document, Listing, Row
from orchestrator.cli.jsonout import plain, to_json
from orchestrator.cli.render import print_document
from orchestrator.cli.words import age, amount, count, names, safe
from store import CheckpointId

pytestmark = pytest.mark.unit
NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["\x1b[31mred", "bell\x07", "line\nfeed", "\x9b2J", "\u202eright", "\r", "\x00", "\ud800"]
)
def test_nothing_that_a_terminal_acts_on_gets_through(text: str) -> None:
    """Control and direction characters come out as escapes; a store is untrusted."""
    assert safe(text).isprintable()
    assert "\\" in safe(text)


def test_letters_of_every_script_stay() -> None:
    """Only what cannot be printed is changed."""
    assert safe("naïve 数学 ✓ [bold]") == "naïve 数学 ✓ [bold]"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1234567, "1.2 MB"),
        (5 * 10**12, "5.0 TB"),
        (9 * 10**15, "9000.0 TB"),
        (None, "?"),
    ],
)
def test_bytes_are_shown_in_decimal_units(size: int | None, text: str) -> None:
    """Small numbers exactly, large ones with one digit after the point."""
    assert amount(size) == text


@pytest.mark.parametrize(
    ("created_at", "text"),
    [
        ((NOW - timedelta(seconds=5)).isoformat(), "just now"),
        ((NOW - timedelta(minutes=61)).isoformat(), "1 h ago"),
        ((NOW - timedelta(days=3)).isoformat(), "3 d ago"),
        ((NOW + timedelta(hours=1)).isoformat(), "in the future"),
        ("2026-05-04T12:00:00", "2026-05-04T12:00:00"),
        ("yesterday", "yesterday"),
        ("", "?"),
    ],
)
def test_an_age_is_for_people_and_never_fails(created_at: str, text: str) -> None:
    """A clock that is wrong, or text that is no time, is shown as what it is."""
    assert age(created_at, NOW) == text


HUGE = "2026" * 25_000


@pytest.mark.parametrize(
    "document",
    [
        Copied(source=HUGE, destination=HUGE, checkpoint=CheckpointId(1, 1), run_id=HUGE, digest="d"),
        Listing(
            store="s",
            run_id="r",
            epoch=1,
            entries=1,
            head=None,
            checkpoints=(Row(checkpoint=CheckpointId(1, 1), head=True, imported=False, entry=1, created_at=HUGE),),
            deletions=(),
            warnings=(HUGE,),
        ),
    ],
)
def test_a_huge_field_does_not_fill_a_screen(document: Document, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables and lines are cut, with the length said; the JSON document is whole."""
    print_document(document, "x", as_json=False)
    shown = capsys.readouterr().out
    assert len(shown) < 10_000
    assert "characters)" in shown
    assert HUGE.encode() in to_json(document, "x")


def test_a_document_is_ascii_without_control_characters() -> None:
    """No terminal acts on it, no encoding lacks a letter of it, and bytes of a path that are no text are escapes."""
    odd = "\x1b[31m\x7f\x9b2J\u202e数\udcff\n"
    document = Copied(source=odd, destination="d", checkpoint=CheckpointId(1, 1), run_id="r", digest="d")
    data = to_json(document, "copy")
    assert data.isascii()
    assert data.rstrip(b"\n").decode().isprintable()
    assert json.loads(data)["source"] == odd.replace("\udcff", "\\udcff")
    assert plain({"a": (b"x",)}) == {"a": ["eA=="]}


def test_many_names_are_cut_and_counted() -> None:
    """Sixty-four thousand rollouts do not fill a screen."""
    assert names([]) == "-"
    assert names(range(3)) == "0, 1, 2"
    assert names(range(64_000)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 63990 more"


def test_nouns_have_a_plural() -> None:
    """One is one."""
    assert [count(n, noun) for n in (0, 1, 2) for noun in ("blob", "entry")] == [
        "0 blobs",
        "0 entries",
        "1 blob",
        "1 entry",
        "2 blobs",
        "2 entries",
    ]
