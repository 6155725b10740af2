"""The page of metrics of a real server with two workers: whichever is asked, stopped ones, and a real Prometheus."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from participants import CONTROL_PREFIX
from tests.support.fleet import Server
from tests.support.processes import free_port, running
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

ASK_S = 20.0
WITHIN_S = 60.0
TOKEN = "a-token"
MISSING = "midflight_server_workers_missing"
Ask = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers that tell an endpoint which nobody serves, and have a page."""
    folder = tmp_path_factory.mktemp("metrics")
    counter = "participants.servers.counter:CounterServer"
    telemetry = {"prometheus": True, "otlp": f"http://127.0.0.1:{free_port()}"}
    spec = {"server": counter, "workers": 2, "token_env": "TOKEN", **telemetry}
    server = Server("resources.counter", spec, folder, {"TOKEN": TOKEN}, forked=True)
    try:
        server.begin()
        server.await_ready()
        yield server
    finally:
        server.kill()


def page(url: str) -> dict[tuple[str, str | None], float]:
    """The samples of a page, by name and process; several with the same are added up."""
    response = httpx.get(f"{url}/metrics", timeout=ASK_S)
    assert response.status_code == 200, response.text
    found: dict[tuple[str, str | None], float] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            key = sample.name, sample.labels.get("process")
            found[key] = found.get(key, 0) + sample.value
    return found


def private(served: Server) -> list[str]:
    """Where each worker is."""
    return list(httpx.get(f"{served.url}/midflight/v1/workers", timeout=ASK_S).json()["workers"])


def adopt(url: str, epoch: int) -> None:
    """Have a worker do something that it counts."""
    authorization = {"authorization": f"Bearer {TOKEN}"}
    body = {"run": "a-run", "epoch": epoch}
    answer = httpx.post(f"{url}{CONTROL_PREFIX}/adopt", json=body, headers=authorization, timeout=ASK_S)
    assert answer.status_code == 200, answer.text


def test_whichever_worker_is_asked_shows_what_both_have_counted(served: Server) -> None:
    """Each has its own series; the page says that nobody is missing."""
    workers = private(served)
    for epoch, url in enumerate((*workers, workers[1]), 1):
        adopt(url, epoch)
    for url in (served.url, *workers):
        until(lambda url=url: adopted(page(url)) == {"w0": 1, "w1": 2}, WITHIN_S)  # type: ignore[misc]
        found = page(url)
        assert found[MISSING, None] == 0
        assert found["midflight_server_workers", None] == 2


def adopted(found: dict[tuple[str, str | None], float]) -> dict[str | None, float]:
    """How many control operations each worker has counted."""
    name = "midflight_participant_duration_seconds_count"
    return {process: value for (each, process), value in found.items() if each == name}


def test_a_worker_that_hangs_is_left_out_and_counted(served: Server) -> None:
    """The page comes in bounded time all the same, and is whole again once the worker goes on."""
    first, _ = private(served)
    os.kill(served.worker(1), signal.SIGSTOP)
    try:
        lacking = page(first)
    finally:
        os.kill(served.worker(1), signal.SIGCONT)
    assert lacking[MISSING, None] == 1
    assert {process for _, process in lacking} == {"w0", None}
    assert page(first)[MISSING, None] == 0


def test_a_worker_in_the_place_of_one_that_died_is_on_the_page(served: Server) -> None:
    """Its telemetry is started in it, after the fork."""
    served.kill_worker(1)
    until(lambda: page(served.url)[MISSING, None] == 0, WITHIN_S, served.told)
    assert ("midflight_gate_closed", "w1") in page(served.url)


def test_an_endpoint_that_nobody_serves_costs_each_process_one_line(served: Server) -> None:
    """Whatever is sent in vain, it is said once for each process, and the server serves on."""

    def said_by() -> list[int]:
        lines = [event for event in served.events("log") if "telemetry does not arrive" in event["message"]]
        return [int(event["pid"]) for event in lines]

    for url in private(served):
        adopt(url, 10)
    until(lambda: {served.worker(0), served.worker(1)} <= set(said_by()), WITHIN_S, served.told)
    for url in private(served):
        adopt(url, 11)
    assert len(said_by()) == len(set(said_by()))


@pytest.mark.real
def test_a_real_prometheus_takes_the_page(served: Server) -> None:
    """It scrapes it, and answers a query over both workers."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed; Debian has it in the package of that name")
    with prometheus(program, served.url.removeprefix("http://"), Path(served.folder)) as ask:
        until(lambda: ask('up{job="midflight"} == 1'), WITHIN_S)
        found = ask("midflight_gate_closed")
    labels = {(one["metric"]["role"], one["metric"]["process"]) for one in found}
    assert labels == {("resources.counter", "w0"), ("resources.counter", "w1")}


@contextmanager
def prometheus(program: str, target: str, folder: Path) -> Iterator[Ask]:
    """A Prometheus that scrapes a server each second; gives what asks it."""
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "midflight", "static_configs": [{"targets": [target]}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(config))  # YAML has all of JSON.
    subprocess.run(["promtool", "check", "config", str(file)], check=True, capture_output=True)
    url = f"http://127.0.0.1:{free_port()}"
    command = [program, f"--config.file={file}", f"--storage.tsdb.path={folder}/tsdb"]
    command.append(f"--web.listen-address={url.removeprefix('http://')}")

    def ready() -> bool:
        try:
            return httpx.get(f"{url}/-/ready", timeout=ASK_S).status_code == 200
        except httpx.TransportError:
            return False

    def ask(query: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=ASK_S).json()
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    with running(command, folder / "prometheus.log", ready):
        yield ask
