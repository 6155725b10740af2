"""The inference backend for tests: a program in a process group of its own, and a typed client for control."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import httpx
import pytest

from orchestrator.cli.backend import READY
from participants.inference import DEFAULT_MODEL, REAL_MODEL

CLIENT_TIMEOUT_S = 45.0
END_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Call:
    """One call that the backend saw; the fields are those of CallRecord."""

    id: str
    number: int
    dialect: str
    stream: bool
    headers: dict[str, str]
    prompt_sha256: str
    prompt_tokens: int
    max_tokens: int
    continued: int
    state: str
    generated: int
    finish_reason: str | None
    status: int
    disconnected: bool

    @property
    def life(self) -> str | None:
        """The life that it was made for, if the caller said."""
        return self.headers.get("x-midflight-life")


def _call(document: dict[str, Any]) -> Call:
    return Call(**{field.name: document[field.name] for field in fields(Call)})


class Control:
    """The control routes of one backend. Each method is one request; `wait` returns when it is so."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=CLIENT_TIMEOUT_S)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def hold(self, *, after_tokens: int = 0, times: int | None = None, **match: Any) -> int:
        """Hold calls that match (nth, substring, dialect, headers; none: all) after so many tokens."""
        order = {"match": match, "after_tokens": after_tokens, "times": times}
        return int(self._post("holds", order)["hold"])

    def release(self, hold: int | None = None, *, call: int | None = None) -> int:
        """End a hold, free one call, or with neither end all holds; how many calls go on."""
        return int(self._post("release", {"hold": hold, "call": call})["released"])

    def fail(self, *, times: int = 1, status: int = 500, after_tokens: int | None = None, **match: Any) -> None:
        """Fail the next matching calls with a status, or break their replies off after some tokens."""
        order = {"match": match, "times": times, "status": status, "after_tokens": after_tokens}
        self._post("failures", order)

    def pace(self, **pace: float | None) -> None:
        """Set tokens_per_s, latency_s, max_concurrency; what is left out stays."""
        self._post("pace", pace)

    def wait(self, **order: float) -> dict[str, int]:
        """Until so many are total, held, finished, aborted, failed, ended; live_at_most; or call has generated."""
        return dict(self._post("wait", order))

    def reset(self) -> None:
        """Abort what is in progress, end every order, forget every call."""
        self._post("reset", {})

    def calls(self, since: int = 0) -> list[Call]:
        """Every call in order of arrival, those after `since`."""
        reply = self._http.get("/control/calls", params={"since": since}).raise_for_status()
        return [_call(document) for document in reply.json()["calls"]]

    def counts(self) -> dict[str, int]:
        """total, running, held, finished, aborted, failed; generated tokens and disconnected among those that ended."""
        return dict(self._http.get("/control/counts").raise_for_status().json())

    def _post(self, name: str, order: dict[str, Any]) -> dict[str, Any]:
        reply = self._http.post(f"/control/{name}", json=order)
        if reply.is_error:
            raise AssertionError(f"/control/{name} {order} gave {reply.status_code}: {reply.text}")
        return dict(reply.json())


@dataclass(slots=True)
class RunningBackend:
    """A backend that runs."""

    url: str
    process: subprocess.Popen[str]
    control: Control
    log: Path
    """Lines of JSON; see `logged`."""
    model: str = DEFAULT_MODEL

    @property
    def base_url(self) -> str:
        """For OpenAI clients."""
        return f"{self.url}/v1"

    @property
    def port(self) -> int:
        """To start another one in its place."""
        return int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL its process group, and wait until it is gone."""
        _kill(self.process)

    def stop(self) -> None:
        """Kill it, and close the connections to it."""
        self.control.close()
        _kill(self.process)

    def logged(self) -> list[tuple[str, Call]]:
        """(begin or end, call) in order, from the log: also after a kill."""
        return read_log(self.log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()


def read_log(path: Path) -> list[tuple[str, Call]]:
    """(begin or end, call) of each line."""
    documents = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(document["event"], _call(document)) for document in documents]


def start_backend(folder: Path, *options: str, port: int = 0, control: bool = True) -> RunningBackend:
    """Start a backend and return once it serves; leave its `with` block, or kill it, to end it."""
    log = folder / "backend.jsonl"
    command = [sys.executable, "-m", "orchestrator.cli.backend", "--port", str(port), "--log", str(log), *options]
    process = _start([*command, *(["--control"] if control else [])], folder / "backend.err")
    try:
        url = _ready_line(process.stdout, folder / "backend.err")
    except BaseException:
        _kill(process)
        raise
    return RunningBackend(url, process, Control(url), log, model_of(options))


@contextmanager
def running_backend(folder: Path, *options: str) -> Iterator[RunningBackend]:
    """A backend with control for the length of a block."""
    with start_backend(folder, *options) as backend:
        yield backend


def model_of(options: Sequence[str]) -> str:
    """The model that these options name."""
    if "--model" in options:
        return options[options.index("--model") + 1]
    return REAL_MODEL if "--real" in options else DEFAULT_MODEL


def _start(command: list[str], errors: Path) -> subprocess.Popen[str]:
    with errors.open("ab") as stderr:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True)


def _ready_line(stdout: IO[str] | None, errors: Path) -> str:
    line = stdout.readline() if stdout else ""
    if not line.startswith(READY):
        raise RuntimeError(f"the backend did not come up: {line!r} {errors.read_text(errors='replace')[-2000:]}")
    return line.removeprefix(READY).strip()


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(END_TIMEOUT_S)
    if process.stdout:
        process.stdout.close()


@pytest.fixture
def inference_backend(tmp_path: Path) -> Iterator[RunningBackend]:
    """A fresh backend with control for one test."""
    with start_backend(tmp_path) as running:
        yield running
