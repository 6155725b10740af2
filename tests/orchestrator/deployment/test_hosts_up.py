"""`midflight up --host` on three hosts, which are addresses of this machine: a run over all, and one of them lost."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from orchestrator.deployment.processes import kill_marked
from tests.support.backend import start_backend
from tests.support.processes import free_block
from tests.support.waiting import until

from .programs import PATIENCE_S, Program, left, running, up

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).parents[3] / "examples"
HOSTS = ("a", "b", "c")
PORTS = 9
"""Of the example: one for each server, and one for each worker."""
ROWS = 24


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example with ports, a model and rows of this test's own."""
    monkeypatch.setenv("FLEET_TOKEN", "a-token")
    with start_backend(tmp_path, "--latency-s", "0.2") as backend:
        text = (EXAMPLES / "hosts" / "run.toml").read_text(encoding="utf-8")
        text = text.replace("9100", str(free_block(PORTS))).replace("http://127.0.0.1:8000/v1", f"{backend.url}/v1")
        text = text.replace("../collect/rows.jsonl", str(EXAMPLES / "collect" / "rows.jsonl"))
        (tmp_path / "run.toml").write_text(text, encoding="utf-8")
        try:
            yield tmp_path / "run.toml"
        finally:
            for host in HOSTS:
                kill_marked(tmp_path / "fleet" / host)


@contextmanager
def hosts_up(file: Path, names: tuple[str, ...]) -> Iterator[dict[str, Program]]:
    """Each host's `up`, once all of its servers are ready."""
    with ExitStack() as stack:
        programs = {name: stack.enter_context(running(up(file, "--host", name))) for name in names}
        for program in programs.values():
            program.wait_for("up")
        yield programs


def collect(file: Path) -> "subprocess.Popen[bytes]":
    """The run, on whichever host."""
    command = [sys.executable, "-m", "midflight", "collect", str(file), "--json"]
    with (file.parent / "said").open("ab") as said:
        return subprocess.Popen(command, stdout=said, stderr=said)


def said(file: Path, event: str) -> list[dict[str, object]]:
    """What collects have said under this name."""
    lines = [line for line in (file.parent / "said").read_bytes().split(b"\n") if line.startswith(b"{")]
    return [found for found in map(json.loads, lines) if found["event"] == event]


def test_a_run_over_three_hosts_goes_on_over_the_one_that_is_left(file: Path) -> None:
    """The example: two hosts die mid-run, with the collect; they are taken out of the file; every row is there once."""
    with hosts_up(file, HOSTS) as programs:
        urls = {name: {s["role"]: s["url"] for s in programs[name].said("up")[0]["servers"]} for name in HOSTS}
        assert [len(urls[name]) for name in HOSTS] == [4, 4, 3]
        assert all(url.startswith("http://127.0.0.4:") for url in urls["c"].values())
        running_collect = collect(file)
        until(lambda: said(file, "checkpoint"), PATIENCE_S, (file.parent / "said").read_text)
        for name in ("b", "c"):
            programs[name].end(signal.SIGKILL)
            kill_marked(file.parent / "fleet" / name)
        running_collect.kill()
        running_collect.wait()
        assert programs["a"].end() == 0
        assert not any(left(file.parent / "fleet" / name) for name in HOSTS)
    text = file.read_text(encoding="utf-8")
    for line in ('b = "127.0.0.3"\n', 'c = "127.0.0.4"\n', 'hosts = ["a", "b"]\n'):
        assert line in text
        text = text.replace(line, "")
    file.write_text(text, encoding="utf-8")
    with hosts_up(file, ("a",)) as programs:
        assert collect(file).wait(PATIENCE_S) == 0
        assert programs["a"].end() == 0
    rows = [json.loads(line) for line in (file.parent / "results.jsonl").read_text().splitlines()]
    assert len(rows) == len({(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows}) == ROWS
    assert int(str(said(file, "started")[-1]["restored"])) > 0


def test_a_machine_that_is_no_host_of_the_file_starts_nothing(file: Path) -> None:
    """The address that it is to have is another one's; no process and no state is left."""
    text = file.read_text(encoding="utf-8")
    for n in (2, 3, 4):
        text = text.replace(f"127.0.0.{n}", f"203.0.113.{n}")
    file.write_text(text, encoding="utf-8")
    with running(up(file, "--host", "a")) as program:
        assert program.wait() == 2
        assert "this machine has no such address, and [fleet.hosts] says that a has it" in said_by(program)
    assert left(file.parent / "fleet" / "a") == {}


def said_by(program: Program) -> str:
    """Why it failed."""
    return str(program.said("failed")[0]["message"])
