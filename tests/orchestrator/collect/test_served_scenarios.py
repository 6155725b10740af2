"""Scenarios 33, 34 and 36 over servers, where `test_served` and `test_served_kill` lack them; and tools that ask."""

import json
import signal

import pytest

from store import Life
from tests.support.backend import start_backend
from tests.support.seaweed import S3Server
from tests.support.waiting import until

from .harness import Run, counter_row, read_rows
from .test_kill import fetch, s3_environment
from .test_served import PATIENCE_S, all_held, over_servers, rewards
from .test_stopping import hold_second_calls, repeated_prompts

pytestmark = pytest.mark.timeout(300)


def stop_in_the_middle(run: Run) -> None:
    """A start over servers that leaves a checkpoint with four rollouts after their first tool call."""
    hold_second_calls(run)
    with run.start() as start:
        all_held(run, start)
        start.signal(signal.SIGTERM)
        start.wait(75)
    run.backend.control.release()


@pytest.mark.real
def test_33_on_s3_the_command_that_sigterm_stopped_continues(run: Run, seaweed: S3Server) -> None:
    """Each row is written once, with its next life, and no call but the one in flight is made again."""
    over_servers(run).checkpoint_url = f"{seaweed.url}/sigterm/checkpoints"
    run.output, run.environment = f"{seaweed.url}/sigterm/out.jsonl", s3_environment(seaweed)
    stop_in_the_middle(run)
    summary = run.finish().summary
    assert (summary["continued"], summary["saved_calls"], summary["rows"]) == (4, 4, 4)
    assert len(repeated_prompts(run)) == 4
    found = fetch(seaweed, "sigterm/out.jsonl", run.folder / "got").read_text().splitlines()
    lives = [Life.parse(json.loads(line)["_midflight_life"]) for line in found]
    assert [(life.epoch, life.attempt) for life in lives] == [(2, 1)] * 4


@pytest.mark.process
def test_34_a_timer_reports_a_tool_call_that_does_not_end_and_goes_on(run: Run) -> None:
    """Each checkpoint that it holds back is reported with its name; once it ends, the next one is taken."""
    over_servers(run).checkpoint = {"interval_s": 0.2, "prepare_timeout_s": 0.5, "more_time_s": 0.2}
    run.hold.touch()
    hold_second_calls(run)
    with run.start() as start:
        until(lambda: len(start.events("blocked")) >= 2 or not start.lives(), PATIENCE_S, start.told)
        run.hold.unlink()
        until(lambda: start.events("checkpoint") or not start.lives(), PATIENCE_S, start.told)
        run.backend.control.release()
        start.wait(0)
    first, second = start.events("blocked")[:2]
    assert (first["times"], second["times"]) == (1, 2)
    assert "tool call increment_counter" in str(first["blockers"])
    assert repeated_prompts(run) == []
    assert rewards(run) == [1.0] * 4


@pytest.mark.process
def test_34_at_the_grace_of_sigterm_a_tool_call_that_does_not_end_is_retired(run: Run) -> None:
    """The rest is saved: three rollouts continue, and the one of the tool call starts over from its input."""
    over_servers(run).rows = [counter_row(0, adds=4), *(counter_row(number) for number in range(1, 4))]
    run.checkpoint |= {"grace_s": 2.0}
    for number in range(1, 4):
        run.backend.control.hold(substring=f"Task {number}")
    run.hold.touch()
    with run.start() as start:
        until(lambda: len(run.seen_tools()) == 1 or not start.lives(), PATIENCE_S, start.told)
        run.backend.control.wait(held=3)
        start.signal(signal.SIGTERM)
        start.wait(75)
    [retired] = start.events("retired")
    assert [Life.parse(life).n for life in retired["lives"]] == [0]
    assert start.summary["checkpoints"] == 1
    run.hold.unlink()
    run.backend.control.release()
    summary = run.finish().summary
    assert (summary["continued"], summary["restarted"], summary["rows"]) == (3, 1, 4)
    assert [line["what"] for line in run.seen_tools() if line["life"] == retired["lives"][0]] == [1]
    assert rewards(run) == [1.0] * 4


@pytest.mark.process
def test_36_another_dataset_or_model_is_refused_by_name_before_any_server_starts(run: Run) -> None:
    """Each field is named, nothing is claimed, and another port, another host and less at once continue."""
    stop_in_the_middle(over_servers(run))
    rows, run.rows = run.rows, [*run.rows, counter_row(9)]
    run.parameters = {"temperature": 0.5}
    with run.start() as start:
        start.wait(2)
    [failed] = start.events("failed")
    assert "--accept dataset --accept parameters" in failed["message"]
    assert start.events("server_started") == []
    run.rows, run.parameters, run.run = rows, {}, {"concurrency": 2}
    other = run.folder / "other"
    other.mkdir()
    with start_backend(other) as backend:
        run.backend = backend
        start = over_servers(run, 2).finish()
        assert start.events("started")[0]["epoch"] == 2
        assert start.summary["continued"] == 4
        assert {life.attempt for life, _ in run.seen_calls()} == {1}
    assert len(read_rows(run.folder / "out.jsonl")) == 4


@pytest.mark.process
@pytest.mark.parametrize("servers", [False, True])
def test_a_resources_server_of_a_run_is_given_the_model(run: Run, servers: bool) -> None:
    """In the collector's own process and in one of its own: each of three additions asks the model first."""
    run.server = "tests.support.odd_counters:AskingCounter"
    if servers:
        over_servers(run)
    run.finish()
    assert rewards(run) == [1.0] * 4
    assert len(run.seen_calls()) == 4 * (5 + 3)
