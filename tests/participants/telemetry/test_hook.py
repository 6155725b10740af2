"""The hook: spans of one trace, values with labels, and recorders that change nothing."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping

import anyio
import pytest

from participants import telemetry
from participants.telemetry import NO_SPAN, Readings, Recorder, Span, hook, names
from tests.support.recording import Recording

pytestmark = [pytest.mark.unit]

OUTER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def recording() -> Iterator[Recording]:
    """Installed; `drain` before looking."""
    found = Recording()
    telemetry.install(found)
    yield found
    telemetry.uninstall(found)


class Failing:
    """Raises from every method."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def span(self, span: Span) -> None:
        self._fail("span")

    def add(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._fail("add")

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._fail("observe")

    def gauge(self, name: str, read: Callable[[], Readings]) -> None:
        self._fail("gauge")

    def _fail(self, method: str) -> None:
        self.calls.append(method)
        raise RuntimeError(f"planted in {method}")


class Blocking(Failing):
    """Does not return until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.let_go = threading.Event(), threading.Event()

    def _fail(self, method: str) -> None:
        self.calls.append(method)
        self.entered.set()
        self.let_go.wait()


def say_all() -> None:
    """One call of each kind."""
    with telemetry.span(names.COMMIT, rollouts=1):
        telemetry.add(names.RETIRED, participant="agent.main")
        telemetry.observe(names.BARRIER_WAIT, 0.5, participant="agent.main")


def test_a_span_has_its_time_and_attributes(recording: Recording) -> None:
    """Those of its beginning, and those that were set before its end; none is emitted before it ends."""
    with telemetry.span(names.COMMIT, rollouts=2) as span:
        telemetry.drain()
        assert recording.spans == []
        span.set("bytes", 7)
    telemetry.drain()
    [found] = recording.spans
    assert (found.name, dict(found.attributes), found.error) == (names.COMMIT, {"rollouts": 2, "bytes": 7}, None)
    assert found.duration_s >= 0
    assert found.start_unix_ns > 1_600_000_000 * 10**9
    assert recording.problems() == []


def test_spans_inside_one_another_are_one_trace(recording: Recording) -> None:
    """A child names its parent, siblings share it, and what comes after is a trace of its own."""
    with telemetry.span(names.CHECKPOINT):
        with telemetry.span(names.PREPARE), telemetry.span(names.PREPARE_KIND):
            pass
        with telemetry.span(names.COMMIT):
            pass
    with telemetry.span(names.ADOPT):
        pass
    telemetry.drain()
    kind, prepare, commit, root, other = recording.spans
    assert {span.trace_id for span in (kind, prepare, commit)} == {root.trace_id}
    assert (kind.parent_id, prepare.parent_id, commit.parent_id) == (prepare.span_id, root.span_id, root.span_id)
    assert (root.parent_id, other.parent_id) == (None, None)
    assert other.trace_id != root.trace_id


@pytest.mark.anyio
async def test_tasks_are_inside_the_span_that_they_were_started_in() -> None:
    """Each of several at once has its own children, whatever the order in which they end."""
    recording = Recording()
    first, second = anyio.Event(), anyio.Event()

    async def call(name: str, mine: anyio.Event, other: anyio.Event) -> None:
        with telemetry.span(names.CALL, operation=name):
            mine.set()
            await other.wait()
            with telemetry.span(f"{names.OPERATION}{name}"):
                pass

    telemetry.install(recording)
    with telemetry.span(names.COMMIT):
        async with anyio.create_task_group() as group:
            group.start_soon(call, "commit", first, second)
            group.start_soon(call, "renew", second, first)
    await anyio.to_thread.run_sync(telemetry.uninstall, recording)
    calls = {span.attributes["operation"]: span for span in recording.named(names.CALL)}
    [root] = recording.named(names.COMMIT)
    for name in ("commit", "renew"):
        [child] = recording.named(f"{names.OPERATION}{name}")
        assert child.parent_id == calls[name].span_id
        assert calls[name].parent_id == root.span_id


def test_an_error_is_named_and_goes_on(recording: Recording) -> None:
    """In one line of limited length, at every span that it ends; the place in the trace is as before."""
    with pytest.raises(ValueError, match="two"), telemetry.span(names.COMMIT), telemetry.span(names.CALL):
        raise ValueError("two\nlines" + "x" * 1000)
    assert telemetry.traceparent() is None
    telemetry.drain()
    for span in recording.spans:
        assert span.error is not None
        assert span.error.startswith("ValueError: two linesx")
        assert len(span.error) == hook.MAX_ERROR_LENGTH


def test_a_caller_in_another_process_is_continued(recording: Recording) -> None:
    """What is sent inside a span, and received elsewhere, makes that span the parent there."""
    with telemetry.span(names.CALL):
        header = telemetry.traceparent()
    assert telemetry.traceparent() is None
    with telemetry.continuing(header), telemetry.span(names.COMMIT):
        pass
    with telemetry.span(names.ADOPT):
        pass
    telemetry.drain()
    call, commit, other = recording.spans
    assert header == f"00-{call.trace_id}-{call.span_id}-01"
    assert (commit.trace_id, commit.parent_id) == (call.trace_id, call.span_id)
    assert other.parent_id is None


NO_TRACE, NO_SPAN_ID, NO_VERSION = f"00-{'0' * 32}{OUTER[35:]}", f"{OUTER[:36]}{'0' * 16}-01", f"ff{OUTER[2:]}"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "junk",
        OUTER[:-3],
        OUTER.upper(),
        OUTER + "\n",
        f" {OUTER}",
        "0" * 9999,
        NO_TRACE,
        NO_SPAN_ID,
        NO_VERSION,
    ],
)
def test_a_header_that_is_none_is_ignored(recording: Recording, header: str | None) -> None:
    """Anybody may send one: it begins a trace of its own."""
    with telemetry.continuing(header), telemetry.span(names.COMMIT):
        pass
    telemetry.drain()
    assert recording.spans[0].parent_id is None
    with telemetry.continuing(OUTER), telemetry.span(names.COMMIT):
        pass
    telemetry.drain()
    assert recording.spans[1].parent_id == OUTER.split("-")[2]


def test_without_a_recorder_nothing_happens() -> None:
    """The one span that there is then is shared, and says nothing to anybody."""
    assert not telemetry.active()
    with telemetry.span(names.COMMIT, rollouts=1) as span, telemetry.continuing(OUTER):
        assert span is NO_SPAN
        span.set("bytes", 7)
        assert telemetry.traceparent() is None
    say_all()
    assert telemetry.drain()


def test_several_recorders_each_get_everything(recording: Recording) -> None:
    """One that is taken away has had what came before, and gets nothing more."""
    second = Recording()
    telemetry.install(second)
    say_all()
    telemetry.uninstall(second)
    say_all()
    telemetry.drain()
    assert (len(second.spans), len(second.values)) == (1, 2)
    assert (len(recording.spans), len(recording.values)) == (2, 4)


def test_a_recorder_that_raises_is_logged_once_for_each_method(caplog: pytest.LogCaptureFixture) -> None:
    """It goes on being called, and nobody else notices."""
    failing = Failing()
    with telemetry.gauge(names.HEAD_EPOCH, lambda: [({}, 1)]):
        telemetry.install(failing)
        with caplog.at_level(logging.WARNING, "midflight.telemetry"):
            for _ in range(3):
                say_all()
            telemetry.uninstall(failing)
    assert sorted(call for call in failing.calls if call != "gauge") == ["add"] * 3 + ["observe"] * 3 + ["span"] * 3
    assert "gauge" in failing.calls
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert all("planted in" in str(record.exc_info) for record in caplog.records)


class Leaving(Failing):
    """Raises what ends a thread that does not catch it."""

    def _fail(self, method: str) -> None:
        self.calls.append(method)
        raise SystemExit


def test_a_recorder_that_wants_to_exit_goes_on_being_called(recording: Recording) -> None:
    """Else its queue would fill, and its uninstall wait for a thread that is gone."""
    leaving = Leaving()
    telemetry.install(leaving)
    say_all()
    assert telemetry.drain(timeout_s=2)
    assert [call for call in leaving.calls if call != "gauge"] == ["add", "observe", "span"]
    telemetry.uninstall(leaving)


class Changing(Failing):
    """Wants to make what it is given its own."""

    def add(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        labels.clear()  # type: ignore[attr-defined]  # As one that is not type-checked.

    def span(self, span: Span) -> None:
        span.attributes.clear()  # type: ignore[attr-defined]


def test_a_recorder_cannot_change_what_others_are_given() -> None:
    """Labels and attributes are the same objects for all, and can only be read."""
    changing, other = Changing(), Recording()
    telemetry.install(changing)
    telemetry.install(other)
    say_all()
    telemetry.drain()
    for recorder in (changing, other):
        telemetry.uninstall(recorder)
    assert other.total(names.RETIRED, participant="agent.main") == 1
    assert other.spans[0].attributes == {"rollouts": 1}


def test_what_a_slow_recorder_cannot_take_is_dropped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever measures never waits, and what waits for the recorder is bounded; it is said once."""
    monkeypatch.setattr(hook, "MAX_QUEUED", 5)
    blocking = Blocking()
    telemetry.install(blocking)
    try:
        telemetry.add(names.RETIRED, participant="agent.main")
        assert blocking.entered.wait(10)
        with caplog.at_level(logging.WARNING, "midflight.telemetry"):
            for _ in range(20):
                telemetry.add(names.RETIRED, participant="agent.main")
        assert not telemetry.drain(timeout_s=0.01)
    finally:
        blocking.let_go.set()
        telemetry.uninstall(blocking)
    assert len(blocking.calls) == 6
    [record] = caplog.records
    assert "too slow" in record.getMessage()


def test_a_gauge_is_what_its_readers_add_up_to(recording: Recording) -> None:
    """Several of the same labels are one value, and one that has ended has none any more; each name is told once."""
    agent, model = {"participant": "agent.main"}, {"participant": "model.main"}
    late = Recording()
    with telemetry.gauge(names.GATE_PARKED, lambda: [(agent, 2)]):
        telemetry.install(late)
        with telemetry.gauge(names.GATE_PARKED, lambda: [(agent, 3), (model, 1)]):
            telemetry.drain()
            for one in (recording, late):
                assert list(one.gauges[names.GATE_PARKED]()) == [(agent, 5), (model, 1)]
        assert list(recording.gauges[names.GATE_PARKED]()) == [(agent, 2)]
    assert list(recording.gauges[names.GATE_PARKED]()) == []
    telemetry.uninstall(late)


def test_a_forked_child_records_nothing_until_it_is_told_to(recording: Recording) -> None:
    """The threads of its parent do not run there: it would only fill queues. Nor are its ids those of another child."""
    ends, begins = os.pipe()
    for _ in range(2):
        child = os.fork()
        if child == 0:
            quiet = not telemetry.active()
            os.write(begins, b"%016x" % hook._ids.getrandbits(64))
            os._exit(0 if quiet else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ids = os.read(ends, 32)
    assert ids[:16] != ids[16:]
    assert telemetry.active()
    os.close(ends)
    os.close(begins)


def test_the_recorders_of_these_tests_are_recorders() -> None:
    """As the protocol has them."""
    recorders: list[Recorder] = [Recording(), Failing(), Blocking()]
    assert all(callable(recorder.gauge) for recorder in recorders)
