"""Who gives way where descriptors run out, and which lines of a log are only counted."""

import logging
from typing import Any

import pytest

from participants.serving import crowd
from participants.serving.crowd import Crowd
from participants.serving.logs import MOST_ALIKE, WINDOW_S, Repeats

pytestmark = pytest.mark.unit

LIMIT = 100
"""So that 80 may be open before somebody gives way, and 40 may ask."""


class One:
    """A connection."""

    def __init__(self, of: Crowd) -> None:
        self.over = False
        connections: set[Any] = of.connections
        connections.add(self)
        of.came(self)

    def evict(self) -> None:
        """As a transport does it: the loss is told later."""
        self.over = True


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> Crowd:
    """A crowd that may have few."""
    monkeypatch.setattr(crowd, "_limit", lambda: float(LIMIT))
    return Crowd()


def test_the_oldest_that_has_said_nothing_gives_way_first(of: Crowd) -> None:
    """Then who has sent half a body, then who has its answer; never who waits for one, nor who has just come."""
    silent, sending, idle, waits = (One(of) for _ in range(4))
    for one in (sending, idle, waits):
        assert of.asks(one)
    of.has_answer(idle)
    of.has_asked(waits)
    for _ in range(76):
        of.has_asked(One(of))
    over = list[bool]()
    for _ in range(4):
        of.has_asked(One(of))
        over.append(waits.over)
    assert (silent.over, sending.over, idle.over, any(over)) == (True, True, True, False)
    last = One(of)
    assert not last.over


def test_who_calls_nobody_takes_more_calls_at_once(of: Crowd) -> None:
    """Nine tenths of the limit rather than two fifths: a backend's calls need no descriptor but their own."""
    taken = []
    for crowd_ in (of, Crowd(calls_others=False)):
        count = 0
        while crowd_.asks(one := One(crowd_)):
            crowd_.has_asked(one)
            count += 1
        taken.append(count)
    assert taken == [40, 90]


def test_what_others_have_open_counts_too(of: Crowd) -> None:
    """Calls and files: connections give way to them at the next count, and at each that comes until then."""
    ones = [One(of) for _ in range(50)]
    of.counted(90)
    assert [one.over for one in ones] == [True] * 10 + [False] * 40
    One(of)
    One(of)
    assert sum(one.over for one in ones) > 10


def test_who_asks_beyond_the_limit_is_told_to_come_again(of: Crowd) -> None:
    """Unless somebody has sent half a body only: that one gives way instead."""
    for _ in range(38):
        one = One(of)
        assert of.asks(one)
        of.has_asked(one)
    half, other, late = One(of), One(of), One(of)
    assert of.asks(half)
    assert of.asks(other)
    of.has_asked(other)
    assert of.asks(late)
    assert half.over
    of.has_asked(late)
    assert not of.asks(One(of))


def record(message: str, line: int = 1, name: str = "midflight.x", **more: Any) -> logging.LogRecord:
    """One from a line of a file."""
    made = logging.LogRecord(name, logging.WARNING, "a.py", line, message, None, None)
    for key, value in more.items():
        setattr(made, key, value)
    return made


def said(repeats: Repeats, *records: logging.LogRecord, now: float) -> list[str]:
    """What is written of them."""
    return [line.getMessage() for each in records for line in repeats.lines_for(each, now)]


def test_lines_of_one_place_are_told_a_few_times_a_minute_and_counted_then() -> None:
    """Whatever they say; those of other places are told, and so is how many were left out, once the minute is over."""
    repeats = Repeats()
    assert len(said(repeats, *[record(f"a frame {n}") for n in range(300)], now=100.0)) == MOST_ALIKE
    assert said(repeats, record("b", 2), now=101.0) == ["b"]
    first, *rest = said(repeats, record("b", 2), now=101.0 + WINDOW_S)
    assert first == f"a frame 0 ... and {300 - MOST_ALIKE} more like it within a minute"
    assert rest == ["b"]
    assert said(repeats, record("a frame 300"), now=102.0 + WINDOW_S) == ["a frame 300"]


def test_what_authors_log_and_events_are_all_told() -> None:
    """Nobody else can bring them about as often as they like."""
    repeats = Repeats()
    for each in (record("a", name="my_tools"), record("a", event="worker_died")):
        assert len(said(repeats, *[each] * 50, now=100.0)) == 50
