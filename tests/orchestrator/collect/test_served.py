"""A run over servers in processes of their own: the same rows, signals, lost servers, and who may have them."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.backend import start_backend
from tests.support.processes import program
from tests.support.waiting import until

from .harness import ROOT, Run, Start, read_rows
from .test_stopping import hold_second_calls, repeated_prompts

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PATIENCE_S = 90.0
ROLES = ("environment.main", "agent.main", "model.main", "resources.counter")


def over_servers(run: Run, workers: int = 1, mode: str = "start", **fleet: Any) -> Run:
    """The same run with a server for each role."""
    run.fleet = {"mode": mode, "workers": dict.fromkeys(ROLES, workers), **fleet}
    return run


def all_held(run: Run, start: Start) -> None:
    """Until the second call of each of the four rollouts is held; servers take long to come up on a busy machine."""
    until(lambda: start.events("started") or not start.lives(), PATIENCE_S, start.told)
    until(lambda: run.backend.control.counts()["held"] == 4, PATIENCE_S, start.told)


def rewards(run: Run) -> list[float]:
    """Of the merged output."""
    return [json.loads(line)["reward"] for line in (run.folder / "out.jsonl").read_text().splitlines()]


def lost(start: Start) -> list[str]:
    """Who was lost, as the events have it."""
    return [str(event["server"]) for event in start.events("server_lost")]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_over_servers_gives_the_rows_of_an_embedded_one(run: Run, workers: int) -> None:
    """Byte for byte, apart from lives; it stops its servers in the end, and nothing of them is left."""
    alone = run.folder / "alone"
    alone.mkdir()
    with start_backend(alone) as backend:
        Run(alone, backend, run.rows).finish()
    start = over_servers(run, workers).finish()
    assert read_rows(run.folder / "out.jsonl") == read_rows(alone / "out.jsonl")
    assert len(run.seen_calls()) == 4 * 5
    assert {event["role"] for event in start.events("server_started")} == set(ROLES)
    assert (start.summary["rows"], start.summary["servers_lost"]) == (4, 0)
    assert run.end_servers() == {}


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_checkpoints_and_stops_the_servers_and_the_same_command_continues(run: Run, workers: int) -> None:
    """It ends with 75; the next start, with another number of workers, repeats no completed call."""
    hold_second_calls(over_servers(run, workers))
    with run.start() as start:
        all_held(run, start)
        start.signal(signal.SIGTERM)
        start.wait(75)
    assert start.summary["checkpoints"] == 1
    assert run.end_servers() == {}
    run.backend.control.release()
    summary = over_servers(run, 3 - workers).finish().summary
    assert (summary["continued"], summary["saved_calls"], summary["rows"]) == (4, 4, 4)
    assert len(repeated_prompts(run)) == 4
    assert rewards(run) == [1.0] * 4


def test_sigusr1_takes_a_checkpoint_and_the_run_goes_on(run: Run) -> None:
    """It has every rollout, and no call is made twice."""
    hold_second_calls(over_servers(run))
    with run.start() as start:
        all_held(run, start)
        start.signal(signal.SIGUSR1)
        until(lambda: start.events("checkpoint"), within_s=PATIENCE_S, told=start.told)
        run.backend.control.release()
        start.wait(0)
    assert start.events("checkpoint")[0]["rollouts"] == 4
    assert repeated_prompts(run) == []
    assert rewards(run) == [1.0] * 4


@pytest.mark.parametrize("role", ROLES)
def test_a_server_that_dies_is_started_again_and_its_episodes_go_on_from_the_checkpoint(run: Run, role: str) -> None:
    """Loudly, in the same process; nothing before the checkpoint is done again, and no attempt is counted as failed."""
    hold_second_calls(over_servers(run))
    with run.start() as start:
        all_held(run, start)
        start.signal(signal.SIGUSR1)
        until(lambda: start.events("checkpoint"), within_s=PATIENCE_S, told=start.told)
        os.killpg(run.servers()[role], signal.SIGKILL)
        until(lambda: start.events("went_on"), within_s=PATIENCE_S, told=start.told)
        run.backend.control.release()
        start.wait(0)
    assert any(name.startswith(role) for name in lost(start))
    assert start.events("server_started")[-1]["role"] == role
    assert start.events("went_on")[0]["restored"] == 4
    summary = start.summary
    assert (summary["rows"], summary["failures"], summary["continued"], summary["saved_calls"]) == (4, 0, 4, 4)
    assert len(repeated_prompts(run)) == 4
    assert rewards(run) == [1.0] * 4


@pytest.mark.parametrize("role", ["environment.main", "model.main"])
def test_a_worker_that_dies_costs_its_own_episodes_alone(run: Run, role: str) -> None:
    """Those of the other worker are adopted and go on as they are; its own are restored."""
    hold_second_calls(over_servers(run, 2))
    with run.start() as start:
        all_held(run, start)
        start.signal(signal.SIGUSR1)
        until(lambda: start.events("checkpoint"), within_s=PATIENCE_S, told=start.told)
        os.kill(run.workers(role)[0], signal.SIGKILL)
        until(lambda: start.events("went_on"), within_s=PATIENCE_S, told=start.told)
        run.backend.control.release()
        start.wait(0)
    [went_on] = start.events("went_on")
    assert went_on["restored"] + went_on.get("adopted", 0) == 4
    assert all(name.startswith(f"{role}/") for name in lost(start))
    summary = start.summary
    assert (summary["rows"], summary["failures"]) == (4, 0)
    assert (summary["continued"], summary["adopted"]) == (went_on["restored"], went_on.get("adopted", 0))
    assert rewards(run) == [1.0] * 4


def test_a_controller_that_adopts_goes_on_with_what_its_servers_do(run: Run) -> None:
    """After SIGKILL of the collector alone nothing is restored or done again, and each row is written once."""
    hold_second_calls(over_servers(run, mode="adopt"))
    with run.start() as start:
        all_held(run, start)
        before = run.servers()
    with run.start() as again:
        until(lambda: again.events("started"), within_s=PATIENCE_S, told=again.told)
        run.backend.control.release()
        again.wait(0)
    assert {event["role"] for event in again.events("server_adopted")} == set(ROLES)
    assert before.keys() == set(ROLES)
    assert again.events("started")[0]["adopted"] == 4
    assert (again.summary["adopted"], again.summary["continued"], again.summary["rows"]) == (4, 0, 4)
    assert repeated_prompts(run) == []
    assert rewards(run) == [1.0] * 4


def test_results_that_came_while_nobody_collected_are_delivered_once(run: Run) -> None:
    """They are kept by the environment server until the next controller has them."""
    hold_second_calls(over_servers(run, mode="adopt"))
    with run.start() as start:
        all_held(run, start)
    run.backend.control.release()
    until(lambda: sum(line["kind"] == "verify" for line in run.seen_tools()) == 4)
    again = run.finish()
    assert (again.summary["rows"], again.summary["adopted"]) == (4, 4)
    assert repeated_prompts(run) == []
    assert rewards(run) == [1.0] * 4


def test_attaching_to_servers_that_do_not_answer_is_refused_before_anything_is_claimed(run: Run) -> None:
    """It ends with 2, naming the server; with nobody to attach to it says what to run first."""
    over_servers(run, mode="attach", start_s=0.5)
    with run.start() as start:
        start.wait(2)
    assert "midflight up" in start.events("failed")[0]["message"]
    over_servers(run, mode="start", start_s=60.0)
    hold_second_calls(run)
    with run.start() as first:
        all_held(run, first)
    run.end_servers()
    over_servers(run, mode="attach", start_s=0.5)
    with run.start() as start:
        start.wait(2)
    told = start.events("failed")[0]["message"]
    assert all(role in told for role in ROLES)
    assert "cannot be reached" in told
    run.backend.control.release()
    assert over_servers(run, start_s=60.0).finish().events("started")[0]["epoch"] == 2


def test_a_run_attaches_to_servers_of_up_and_ends_loudly_where_one_stays_away(run: Run) -> None:
    """It leaves them running; where one is lost and does not come back it ends with 77, and the next start goes on."""
    hold_second_calls(over_servers(run, mode="attach", start_s=90.0))
    with running_up(run):
        with run.start() as start:
            all_held(run, start)
            start.signal(signal.SIGTERM)
            start.wait(75)
        over_servers(run, mode="attach", start_s=2.0)
        with run.start() as start:
            all_held(run, start)
            os.killpg(run.servers()["agent.main"], signal.SIGKILL)
            start.wait(77)
            assert "end `midflight up`" in start.events("failed")[0]["message"]
        assert "agent.main" in start.events("failed")[0]["message"]
        assert any(name.startswith("agent.main") for name in lost(start))
    run.backend.control.release()
    summary = over_servers(run).finish().summary
    assert (summary["rows"], summary["continued"], summary["saved_calls"]) == (4, 4, 4)
    assert rewards(run) == [1.0] * 4


@contextmanager
def running_up(run: Run) -> Iterator[None]:
    """`midflight up` with the file of the run, for the length of a block."""
    command = [str(program("midflight")), "up", str(run.write())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (run.folder / "up").open("wb") as told:
        up = subprocess.Popen(command, stdout=told, stderr=told, cwd=run.folder, env=environment)
    try:
        until(lambda: b"SERVER" in (run.folder / "up").read_bytes() or up.poll() is not None, PATIENCE_S)
        assert up.poll() is None, (run.folder / "up").read_text()
        yield
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(PATIENCE_S)


def test_a_second_collector_touches_no_server_of_a_live_one(run: Run) -> None:
    """It is refused with 2 before it would end what it might take for leftovers; the first one is not disturbed."""
    hold_second_calls(over_servers(run))
    with run.start() as first:
        all_held(run, first)
        before = run.servers()
        with run.start() as second:
            second.wait(2)
        assert "--take-over" in second.events("failed")[0]["message"]
        assert run.servers() == before
        run.backend.control.release()
        first.wait(0)
    assert (first.summary["rows"], first.summary["servers_lost"]) == (4, 0)


def test_a_collector_that_takes_over_waits_for_the_servers_of_the_first(run: Run) -> None:
    """The first one hears that it is fenced, stops its servers and ends with 76; each row is there once."""
    hold_second_calls(over_servers(run))
    with run.start() as first:
        all_held(run, first)
        first.signal(signal.SIGUSR1)
        until(lambda: first.events("checkpoint"), within_s=PATIENCE_S, told=first.told)
        with run.start("--take-over") as second:
            first.wait(76)
            until(lambda: second.events("started"), within_s=PATIENCE_S, told=second.told)
            run.backend.control.release()
            second.wait(0)
    assert (second.summary["continued"], second.summary["rows"]) == (4, 4)
    assert rewards(run) == [1.0] * 4


def test_a_server_that_dies_each_time_ends_the_run_loudly(run: Run) -> None:
    """After `max_restarts` losses without a row it ends with 77 and names the server; without the cause it goes on."""
    over_servers(run, max_restarts=1)
    run.server, run.options = "tests.support.doomed_counter:DoomedCounter", {"doom": str(run.folder / "doom")}
    (run.folder / "doom").touch()
    with run.start() as start:
        start.wait(77)
    [failed] = start.events("failed")
    assert "resources.counter" in failed["message"]
    assert "max_restarts" in failed["message"]
    assert len(lost(start)) >= 2
    assert not start.events("row")
    assert run.end_servers() == {}
    (run.folder / "doom").unlink()
    assert run.finish().summary["rows"] == 4


def test_a_second_signal_ends_the_servers_too(run: Run) -> None:
    """The process ends at once while a tool call hangs, and takes its servers with it."""
    run.hold.touch()
    over_servers(run)
    with run.start() as start:
        until(lambda: len(run.seen_tools()) == 4, within_s=PATIENCE_S, told=start.told)
        start.signal(signal.SIGTERM)
        until(lambda: start.events("stopping"), within_s=PATIENCE_S, told=start.told)
        start.signal(signal.SIGTERM)
        start.wait(75)
    assert not start.events("retired")
    until(lambda: run.end_servers() == {})


def test_a_server_that_cannot_be_made_ends_the_run_with_what_to_correct(run: Run) -> None:
    """With 2 and its own words: nothing was lost, and the same command fails again. Corrected, the run is whole."""
    over_servers(run).options = {"sizee": 5}
    with run.start() as start:
        start.wait(2)
    [failed] = start.events("failed")
    assert failed["error"] == "CannotBe"
    assert "does not take these options" in failed["message"]
    assert failed["message"].endswith("Correct what is said there; the same command fails again until then")
    assert run.end_servers() == {}
    run.options = {}
    assert run.finish().summary["rows"] == 4


def test_servers_need_a_store(run: Run) -> None:
    """A fleet without checkpoints is refused, with what to write instead."""
    over_servers(run).checkpoint_url = None
    with run.start() as start:
        start.wait(2)
    assert "[fleet] needs [checkpoint]" in start.events("failed")[0]["message"]
    assert not Path(run.folder / "fleet").exists()
