"""Servers whose workers are killed while they start."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from participants.serving.supervisor import START_TRIES
from tests.support.fleet import Server

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

END_S = 90.0


@contextmanager
def mortal(folder: Path, workers: int, deaths: int) -> Iterator[Server]:
    """A server that was begun; it is killed at the end."""
    options = {"folder": str(folder), "deaths": deaths}
    server = "tests.support.mortal:MortalServer"
    served = Server("resources.mortal", {"server": server, "workers": workers, "options": options}, folder)
    served.begin()
    try:
        yield served
    finally:
        served.kill()


@pytest.mark.parametrize(("workers", "deaths"), [(1, START_TRIES), (2, 1)])
def test_a_worker_that_is_killed_before_it_serves_is_replaced(tmp_path: Path, workers: int, deaths: int) -> None:
    """Loudly; the server comes up once all of its workers serve, and none of them but the killed one is replaced."""
    with mortal(tmp_path, workers, deaths) as served:
        served.await_ready()
        died = served.events("worker_died")
        assert [(event["level"], event["signal"], event["then"]) for event in died] == [
            ("error", "SIGKILL", "retry")
        ] * deaths
        assert served.events("cannot_start") == []
        started = served.events("worker_started")
        assert sorted(event["process"] for event in started) == [f"w{number}" for number in range(workers)]
        health = httpx.get(f"{served.url}/health").json()
        assert (health["ready"], health["replaced"]) == (workers, deaths)


def test_a_server_whose_worker_is_killed_again_and_again_does_not_start(tmp_path: Path) -> None:
    """It says how often, once, with the code of what was not expected."""
    with mortal(tmp_path, 1, 100) as served:
        assert served.process is not None
        assert served.process.wait(END_S) == 70
        assert len(served.events("worker_died")) == START_TRIES
        [told] = served.events("cannot_start")
        assert told["signal"] == "SIGKILL"
        assert told["message"] == f"w0 died before it served, {START_TRIES + 1} times in a row"
