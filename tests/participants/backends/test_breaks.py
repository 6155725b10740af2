"""Pure rules of failing: waits that are asked for, how much a stream may say, models in messages."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from participants import Code, Reply
from participants.backends.breaks import (
    EVENTS_A_TOKEN,
    SPARE_EVENTS,
    Break,
    failed,
    is_event_stream,
    most_events,
    naming_model,
    retry_after_s,
)

pytestmark = pytest.mark.unit
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("-1", None),
        ("soon", None),
        ("9" * 400, 999_999_999.0),
        ("٣", None),
        (format_datetime(NOW + timedelta(seconds=30), usegmt=True), 30.0),
        (format_datetime(NOW - timedelta(seconds=30), usegmt=True), 0.0),
        ("Tue, 01 Jan 2030 00:00:10", None),
    ],
)
def test_a_wait_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    """Anything else is none; a date that is past is no wait; a date without a zone cannot be compared."""
    assert retry_after_s(value, format_datetime(NOW, usegmt=True)) == seconds


def test_a_wait_until_a_date_is_by_the_clock_of_the_server() -> None:
    """Ours may be minutes off; a reply that does not say when it was made asks for nothing that can be known."""
    asked = format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)
    assert retry_after_s(asked, asked) == 0.0
    for date in (None, "", "now"):
        assert retry_after_s(asked, date) is None
    assert retry_after_s("7", None) == 7.0


@pytest.mark.parametrize(
    ("body", "events"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": "9"}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": 0}, SPARE_EVENTS),
        ({"max_tokens": 10}, SPARE_EVENTS + EVENTS_A_TOKEN * 10),
        ({"max_tokens": 10, "max_completion_tokens": 20}, SPARE_EVENTS + EVENTS_A_TOKEN * 20),
        ({"max_output_tokens": 10, "n": 3}, SPARE_EVENTS + EVENTS_A_TOKEN * 30),
    ],
)
def test_the_length_that_was_asked_for_bounds_the_events(body: dict[str, Any], events: int | None) -> None:
    """Of the largest limit, for each choice; without a limit there is none."""
    assert most_events(body) == events


@pytest.mark.parametrize(
    "body",
    ["<html>", None, [], {}, {"detail": "Not Found"}, {"error": "gone"}, {"error": {"message": "no such model"}}],
)
def test_a_404_names_the_model(body: Any) -> None:
    """As an error of OpenAI's API, with what the server said in it."""
    named = naming_model(Reply(404, body), {"model": "m-1"}).body["error"]
    assert "'m-1'" in named["message"]
    assert named["code"] == "model_not_found"


def test_what_names_it_already_and_what_is_no_404_stay() -> None:
    """And a request without a model has no name to say."""
    named = Reply(404, {"error": {"message": "The model `m-1` does not exist."}})
    other = Reply(400, {"detail": "no"})
    nameless = Reply(404, {})
    assert naming_model(named, {"model": "m-1"}) is named
    assert naming_model(other, {"model": "m-1"}) is other
    assert naming_model(nameless, {}) is nameless


def test_a_failure_says_its_reason_and_what_is_known() -> None:
    """Details that are None are left out."""
    error = failed(Break.TOO_LONG, "much", limit="max_stream_bytes", status=None)
    assert (error.code, error.details) == (Code.MODEL_FAILED, {"reason": "too_long", "limit": "max_stream_bytes"})


def test_no_type_is_no_other_type() -> None:
    """Servers of one file forget the header."""
    assert is_event_stream(None)
    assert not is_event_stream("application/json")
