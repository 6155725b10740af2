"""What is counted is added up once, and can be told to another process."""

import json
import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.telemetry import Span
from participants.telemetry import names as n
from participants.telemetry.collected import Collected, Distribution, Snapshot, bounds_of

pytestmark = pytest.mark.unit

AGENT = {"participant": "agent.main"}
WRITTEN = {"participant": "agent.main", "way": "written"}


def test_counters_add_up_by_labels_in_any_order() -> None:
    """Two orders of the same labels are one series; another value is another one."""
    collected = Collected()
    collected.add(n.RECORDS, 2, WRITTEN)
    collected.add(n.RECORDS, 3, dict(reversed(WRITTEN.items())))
    collected.add(n.RECORDS, 1, {**WRITTEN, "way": "restored"})
    [series] = collected.snapshot().counters.values()
    assert sorted(series.values()) == [1, 5]


def test_a_value_on_a_bound_is_below_it() -> None:
    """As Prometheus and OpenTelemetry have it: a bound is the greatest value of its bucket."""
    bounds = bounds_of(n.BY_NAME[n.PARTICIPANT_HOLD])
    collected = Collected()
    for value in (bounds[0], bounds[0] * 1.01, bounds[-1] * 2):
        collected.observe(n.PARTICIPANT_HOLD, value, AGENT)
    [found] = collected.snapshot().histograms[n.PARTICIPANT_HOLD].values()
    assert (found.counts[0], found.counts[1], found.counts[-1], sum(found.counts)) == (1, 1, 1, 3)
    assert found.total == pytest.approx(bounds[0] * 2.01 + bounds[-1] * 2)


def test_a_gauge_that_cannot_be_read_is_left_out_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """The page and the other gauges come nevertheless."""
    collected = Collected()
    collected.gauge(n.CHECKPOINT_AGE, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    collected.gauge(n.GATE_PARKED, lambda: [(AGENT, 4)])
    with caplog.at_level(logging.WARNING, "midflight.telemetry"):
        for _ in range(3):
            assert collected.snapshot().gauges == {n.GATE_PARKED: {(("participant", "agent.main"),): 4.0}}
    [record] = caplog.records
    assert n.CHECKPOINT_AGE in record.getMessage()


def test_what_the_table_does_not_have_is_refused() -> None:
    """A name that nobody documented reaches no exporter."""
    collected = Collected()
    for record in (collected.add, collected.observe):
        with pytest.raises(KeyError):
            record("midflight.invented", 1, {})
    with pytest.raises(KeyError):
        collected.gauge("midflight.invented", list)
    assert collected.snapshot() == Snapshot()


def test_spans_are_passed_on_as_they_are() -> None:
    """To whoever wants them, and to nobody where nobody does."""
    span = Span(n.COMMIT, "a" * 32, "b" * 16, None, 1, 0.5, {}, None)
    Collected().span(span)
    seen: list[Span] = []
    Collected(seen.append).span(span)
    assert seen == [span]


def test_snapshots_while_others_count_are_whole() -> None:
    """A reader in another thread never meets a histogram whose buckets and sum are of two moments."""
    collected, done = Collected(), threading.Event()

    def count() -> None:
        while not done.is_set():
            collected.observe(n.PARTICIPANT_HOLD, 1.0, AGENT)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(300):
            for found in collected.snapshot().histograms.get(n.PARTICIPANT_HOLD, {}).values():
                assert sum(found.counts) == found.total
    finally:
        done.set()
        thread.join()


LABELS = st.dictionaries(st.sampled_from(["participant", "way"]), st.text(max_size=3), max_size=2).map(
    lambda labels: tuple(sorted(labels.items()))
)
NAMES = st.sampled_from([n.PARTICIPANT_HOLD, n.BARRIER_WAIT])
"""As histograms they have 13 buckets."""
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
DISTRIBUTIONS = st.builds(Distribution, st.lists(st.integers(0, 2**40), min_size=13, max_size=13).map(tuple), NUMBERS)


def series(values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, dict[object, object]]]:
    """Some, each with a value at least: there are no empty ones."""
    return st.dictionaries(NAMES, st.dictionaries(LABELS, values, min_size=1, max_size=2), max_size=2)


@given(st.builds(Snapshot, series(NUMBERS), series(DISTRIBUTIONS), series(NUMBERS)))
def test_a_snapshot_survives_json(snapshot: Snapshot) -> None:
    """What one worker tells another is what it has."""
    assert Snapshot.parse(json.loads(json.dumps(snapshot.document()))) == snapshot


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"counters": [], "histograms": []},
        {"counters": [["a"]], "histograms": [], "gauges": []},
        {"counters": [["a", {}, "many"]], "histograms": [], "gauges": []},
        {"counters": [["a", 1, 1]], "histograms": [], "gauges": []},
        {"counters": [], "histograms": [["a", {}, [1, 2]]], "gauges": []},
        {"counters": 3, "histograms": [], "gauges": []},
    ],
)
def test_what_is_no_snapshot_is_refused(document: object) -> None:
    """Whatever stands at the address of a sibling, its answer does no more than not count."""
    with pytest.raises(ValueError, match=r"snapshot|unpack|convert"):
        Snapshot.parse(document)
