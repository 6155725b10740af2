"""The flights of a server: how many would be continued after a crash, and why the others would not."""

import orjson
import pytest

from participants.data import Request
from participants.flights import Flight, Flights, Listening

pytestmark = pytest.mark.unit

ROUTE = "/v1/chat/completions"
ASKED = Request(route=ROUTE, body={})


def chunk(*ids: int) -> bytes:
    choice = {"index": 0, "delta": {"content": "x"}, "token_ids": list(ids)}
    return b"data: " + orjson.dumps({"prompt_token_ids": [1], "choices": [choice]}) + b"\n\n"


def test_dispositions_follow_what_has_come_of_each() -> None:
    """A flight is cut from its first token on, and no more once what it has counts for nothing or it is over."""
    flights, one, other = Flights(), Flight(ASKED), Flight(ASKED, uncuttable="several_choices")
    flights.add(one)
    flights.add(other)
    assert flights.dispositions() == {"nothing_generated": 1, "several_choices": 1}
    listening = one.listen(ROUTE)
    listening.feed(chunk())
    assert flights.dispositions() == {"nothing_generated": 1, "several_choices": 1}
    listening.feed(chunk(7))
    assert flights.dispositions() == {"cut": 1, "several_choices": 1}
    one.start_over()
    assert flights.dispositions() == {"nothing_generated": 1, "several_choices": 1}
    flights.discard(one)
    one.start_over()
    assert (flights.dispositions(), len(flights)) == ({"several_choices": 1}, 1)


@pytest.mark.parametrize("route", [ROUTE, "/v1/completions", "/v1/responses"])
def test_a_prefix_is_that_of_the_whole_reading(route: str) -> None:
    """What a cut takes is what a reading of the same stream has, from nothing at all to an event of another shape."""
    listening = Listening(route)
    created = b'data: {"type": "response.created", "response": {"id": "r", "model": "m", "output": []}}\n\n'
    for event in (b"", created, chunk(7), chunk(8, 9), chunk(), b'data: {"choices": [{"token_ids": ["x"]}]}\n\n'):
        listening.feed(event)
        assert listening.prefix() == listening.reading().prefix
