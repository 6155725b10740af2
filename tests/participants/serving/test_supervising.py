"""What a supervisor decides, and what it and its workers say."""

import io
import json
import logging
import os
import signal
from itertools import product

import pytest

from participants.serving.app import health_of
from participants.serving.board import Board, Stage
from participants.serving.logs import JSONLines
from participants.serving.supervisor import START_TRIES, Then, after_death, fate_of
from participants.serving.supervisor import Stage as ServerStage

pytestmark = pytest.mark.unit

ABOUT = {"kind": "agent", "name": "main", "process": "w1", "pid": 7, "incarnation": "i"}


def test_the_table_of_deaths_is_what_is_decided() -> None:
    """Every stage, for a worker that served and one that did not, and has ended by itself."""
    table = {
        (ServerStage.STARTING, False): Then.GIVE_UP,
        (ServerStage.STARTING, True): Then.REPLACE,
        (ServerStage.SERVING, True): Then.REPLACE,
        (ServerStage.SERVING, False): Then.RETRY,
        (ServerStage.STOPPING, True): Then.LEAVE,
        (ServerStage.STOPPING, False): Then.LEAVE,
    }
    assert {key: after_death(key[0], served=key[1]) for key in product(ServerStage, (True, False))} == table


def test_a_worker_that_is_killed_before_it_served_is_replaced_a_few_times() -> None:
    """While the server starts; later as often as it takes, and never while it stops."""
    for stage, then, at_last in [
        (ServerStage.STARTING, Then.RETRY, Then.GIVE_UP),
        (ServerStage.SERVING, Then.RETRY, Then.RETRY),
        (ServerStage.STOPPING, Then.LEAVE, Then.LEAVE),
    ]:
        found = [after_death(stage, served=False, killed=times) for times in range(1, START_TRIES + 2)]
        assert found == [*[then] * START_TRIES, at_last]


def test_a_fate_is_an_exit_code_or_the_name_of_a_signal() -> None:
    """As waitpid has them."""
    assert fate_of(3 << 8) == {"exit_code": 3}
    assert fate_of(signal.SIGKILL) == {"signal": "SIGKILL"}


def test_the_board_counts_what_was_replaced_and_who_is_ready() -> None:
    """The first start of each replaces nobody, and one that is started again is not ready."""
    board = Board(3)
    for number in range(3):
        board.begin(number)
    assert (board.ready, board.replaced) == (0, 0)
    board.put(0, Stage.READY)
    board.put(2, Stage.READY)
    assert (board.ready, board.replaced) == (2, 0)
    board.begin(2)
    assert (board.ready, board.replaced, board.stage(2)) == (1, 1, Stage.STARTING)


def test_the_board_is_seen_by_other_processes() -> None:
    """What a child writes after the fork is there for its parent."""
    board = Board(1)
    pid = os.fork()
    if pid == 0:
        board.put(0, Stage.READY)
        os._exit(0)
    os.waitpid(pid, 0)
    assert board.ready == 1


def test_the_health_document_says_who_answers_and_how_the_server_stands() -> None:
    """Also that it is closing."""
    board = Board(2)
    board.begin(0)
    board.begin(1)
    board.put(1, Stage.READY)
    assert health_of(ABOUT, board, 1) == {"status": "ok", **ABOUT, "workers": 2, "ready": 1, "replaced": 0}
    board.put(1, Stage.CLOSING)
    assert health_of(ABOUT, board, 1)["status"] == "closing"


def line_of(record: logging.LogRecord) -> dict[str, object]:
    """A record as a server writes it."""
    line = JSONLines({"kind": "agent", "process": "w0"}).line(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    return dict(json.loads(line))


def test_an_event_is_a_line_with_its_facts() -> None:
    """Facts overrule who speaks: a supervisor tells of its workers."""
    record = logging.makeLogRecord({"levelname": "INFO", "event": "worker_died", "facts": {"process": "w3", "pid": 1}})
    line = line_of(record)
    assert {name: line[name] for name in ("level", "event", "kind", "process", "pid")} == {
        "level": "info", "event": "worker_died", "kind": "agent", "process": "w3", "pid": 1,
    }  # fmt: skip
    assert str(line["ts"]).endswith("+00:00")


def test_what_a_library_logs_is_a_line_too() -> None:
    """With line breaks, what is no JSON, and a traceback."""
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        given = (type(error), error, error.__traceback__)
        record = logging.LogRecord("some.library", logging.ERROR, "f.py", 1, "a\nb %s", (io,), given)
    line = line_of(record)
    assert (line["event"], line["logger"], line["level"]) == ("log", "some.library", "error")
    assert str(line["message"]).startswith("a\nb <module 'io'")
    assert "ValueError: two\nlines" in str(line["traceback"])


def test_a_log_that_nobody_reads_any_more_stops_nothing() -> None:
    """The line is lost, and no more."""
    out, into = os.pipe()
    os.close(out)
    try:
        JSONLines({}, into).emit(logging.makeLogRecord({"msg": "x"}))
    finally:
        os.close(into)
