"""The collector in this process, with an upstream and a storage of the test's own: failures, and what they cost."""

import errno
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from orchestrator.collect import Config, ConfigError, Options, Segments, Summary, collect
from participants import Chunks, Code, ParticipantError, Reply
from participants.data import CallId
from participants.servers.counter import CounterServer
from participants.tools import tools_of
from store import Life, LocalBackend, NoSpace, open_checkpoint, open_store
from store.backends.files import FileOp, FileOps

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
Events = list[tuple[str, dict[str, Any]]]
TOOLS = [found.schema for found in tools_of(CounterServer).values()]
CALL = {"type": "function_call", "call_id": "c", "name": "increment_counter", "arguments": '{"count": 1}'}


class OneTool:
    """Calls the tool once, then says that it is done; `before` may raise."""

    def __init__(self, before: Callable[[int], None] = lambda call: None) -> None:
        """`before` gets the number of the call."""
        self.calls = 0
        self._before = before

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """Answer by what was said."""
        self.calls += 1
        self._before(self.calls)
        last = body["input"][-1].get("type") == "function_call_output"
        said = {"type": "message", "content": [{"type": "output_text", "text": "done"}]} if last else CALL
        usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
        return Reply(200, {"status": "completed", "output": [said], "usage": usage})

    def stream(
        self, route: str, body: Mapping[str, Any], life: Life | None = None, *, call: CallId | None = None
    ) -> AbstractAsyncContextManager[Chunks]:
        """Never asked for."""
        raise NotImplementedError

    async def models(self) -> Reply:
        """Never asked for."""
        raise NotImplementedError


def configured(folder: Path, *, checkpoints: bool = True, rows: int = 3, **run: Any) -> Config:
    """So many rows of the counter."""
    asked = [
        {"responses_create_params": {"input": [{"role": "user", "content": f"task {n}"}], "tools": TOOLS}}
        for n in range(rows)
    ]
    lines = [json.dumps({**row, "initial_count": 0, "expected_count": 1}) for row in asked]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return Config.model_validate(
        {
            "run": {"input": str(folder / "rows.jsonl"), "output": str(folder / "out.jsonl"), **run},
            "model": {"base_url": "http://localhost:1/v1", "model": "m", "dialect": "responses"},
            "resources": {"counter": {"server": "participants.servers.counter:CounterServer"}},
            "checkpoint": {"enabled": checkpoints, "url": str(folder / "store"), "interval_s": 0, "grace_s": 5.0},
        }
    )


async def run(config: Config, upstream: OneTool, events: Events | None = None, **options: Any) -> Summary:
    """One start."""
    told = events if events is not None else []
    segments = options.pop("segments", None)
    return await collect(config, Options(**options), lambda name, facts: told.append((name, facts)), upstream, segments)


def named(events: Events, name: str) -> list[dict[str, Any]]:
    """The facts of events of one name."""
    return [facts for found, facts in events if found == name]


def fail_always(call: int) -> None:
    """The backend does not come back."""
    raise ParticipantError(Code.INTERNAL, "the model is down")


async def test_failures_go_beside_the_output_and_are_tried_a_bounded_number_of_times(tmp_path: Path) -> None:
    """Each failure has its class, stage and attempt; the run ends with 1, and is not begun anew unless asked to."""
    config = configured(tmp_path, max_attempts=2)
    events = Events()
    assert (await run(config, OneTool(fail_always), events)).exit_code == 1
    failures = [json.loads(line) for line in (tmp_path / "out_failures.jsonl").read_text().splitlines()]
    assert len(failures) == 6
    [told] = named(events, "summary")
    assert told["failures_file"] == str(tmp_path / "out_failures.jsonl")
    first = failures[0]
    assert (first["_ng_failure_class"], first["_ng_failure_stage"]) == ("step_failed", "agent")
    assert "the model is down" in first["_ng_failure_message"]
    assert {failure["_ng_attempt_index"] for failure in failures} == {0, 1}
    working = OneTool()
    assert (await run(config, working)).exit_code == 1
    assert working.calls == 0
    summary = await run(config, working, retry_failed=True)
    assert (summary.exit_code, summary.rows, working.calls) == (0, 3, 6)
    assert (await run(config, working)).exit_code == 0


@pytest.mark.parametrize("option", ["fresh", "retry_failed"])
async def test_a_run_without_failures_leaves_no_failures_of_an_earlier_one(tmp_path: Path, option: str) -> None:
    """What `--fresh` or `--retry-failed` made good is no longer told of."""
    config = configured(tmp_path, max_attempts=1)
    await run(config, OneTool(fail_always))
    assert (tmp_path / "out_failures.jsonl").exists()
    assert (await run(config, OneTool(), [], **{option: True})).exit_code == 0
    assert not (tmp_path / "out_failures.jsonl").exists()


async def test_a_failure_that_passes_leaves_a_row_and_a_line_in_the_sidecar(tmp_path: Path) -> None:
    """What succeeds at a second start is a row like any other, of attempt 1."""

    def fail_first(call: int) -> None:
        if call == 1:
            fail_always(call)

    summary = await run(configured(tmp_path, checkpoints=False), OneTool(fail_first))
    assert (summary.exit_code, summary.rows, summary.failures) == (0, 3, 1)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(row["_ng_attempt_index"] for row in rows) == [0, 0, 1]


class FullDisk(FileOps):
    """A disk that is full from some write on."""

    def __init__(self, writes: int) -> None:
        """So many writes succeed."""
        super().__init__()
        self.writes = writes

    def step(self, op: FileOp) -> Any:
        """Refuse one more."""
        if op.name == "write" and self.writes == 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        self.writes -= op.name == "write"
        return super().step(op)


async def test_a_full_disk_under_the_output_stops_the_run_and_loses_nothing(tmp_path: Path) -> None:
    """The error is clear; what was finished is in a last checkpoint, and the next start delivers it without a call."""
    events: Events = []
    config, upstream = configured(tmp_path), OneTool()
    folder = tmp_path / "out.jsonl.segments"
    folder.mkdir()
    async with open_store(str(tmp_path / "store"), "write") as store:
        run_id = store.run_id
    full = Segments(LocalBackend(folder, FullDisk(writes=2)), run_id)
    with pytest.raises(NoSpace, match="no space left"):
        await run(config, upstream, events, segments=full)
    assert named(events, "output_failed")
    assert len(named(events, "checkpoint")) == 1
    calls = upstream.calls
    summary = await run(config, upstream)
    assert (summary.rows, summary.continued, summary.saved_calls) == (3, 3, calls)
    assert upstream.calls == 6


async def test_a_checkpoint_that_fails_costs_itself_alone(tmp_path: Path) -> None:
    """With the store gone from under it, a checkpoint is reported as failed, and the run delivers every row."""
    config = configured(tmp_path)
    config = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"interval_s": 0.05})})
    events: Events = []
    checkpoints = tmp_path / "store" / "checkpoints"

    def block(call: int) -> None:
        if call == 1:
            checkpoints.write_text("a file where a folder should be")

    summary = await run(config, Slow(block, events), events)
    assert (summary.exit_code, summary.rows) == (0, 3)
    assert named(events, "checkpoint_failed")


class Slow(OneTool):
    """Answers once a checkpoint was tried."""

    def __init__(self, before: Callable[[int], None], events: Events) -> None:
        """`events` are looked at."""
        super().__init__(before)
        self._events = events

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """Wait for the event."""
        reply = await super().complete(route, body, life)
        while not named(self._events, "checkpoint_failed"):
            await anyio.lowlevel.checkpoint()
        return reply


async def test_a_field_that_only_the_earlier_run_had_can_be_accepted(tmp_path: Path) -> None:
    """A resources server that was taken out of the configuration is a difference like any other."""
    config = configured(tmp_path)
    two = config.model_copy(update={"resources": {**config.resources, "old": config.resources["counter"]}})
    await run(two, OneTool(fail_always), retry_failed=True)
    with pytest.raises(ConfigError, match=r"--accept resources\.old"):
        await run(config, OneTool())
    assert (await run(config, OneTool(), accept=("resources.old",), retry_failed=True)).exit_code == 0


async def test_a_checkpoint_has_the_fingerprint_and_the_segment_as_they_were(tmp_path: Path) -> None:
    """What a later start compares is in the manifest: fields by name, and this epoch's length of the output."""
    events: Events = []
    config = configured(tmp_path)
    full = tmp_path / "out.jsonl.segments"
    full.mkdir()
    async with open_store(str(tmp_path / "store"), "write") as store:
        segments = Segments(LocalBackend(full, FullDisk(writes=2)), store.run_id)
        with pytest.raises(NoSpace):
            await run(config, OneTool(), events, segments=segments)
        manifest = (await open_checkpoint(store)).manifest
    assert set(manifest.fingerprint) == {
        "dataset",
        "repeats",
        "model",
        "dialect",
        "parameters",
        "agent",
        "resources.counter",
    }
    [segment] = manifest.output
    assert (segment.name, segment.length > 0, len(manifest.scope)) == ("1", True, 3)


class Recording(OneTool):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        """Nothing yet."""
        super().__init__()
        self.asked: list[Mapping[str, Any]] = []

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """As ever."""
        self.asked.append(body)
        return await super().complete(route, body, life)


@pytest.mark.parametrize("typed", [False, True])
async def test_parameters_of_the_configuration_reach_every_kind_of_row_and_its_own_win(
    tmp_path: Path, typed: bool
) -> None:
    """Flat and typed rows alike; only the model is always the configuration's."""
    config = configured(tmp_path)
    own = {"input": [{"role": "user", "content": "go"}], "tools": TOOLS, "top_p": 0.5, "model": "of the row"}
    task = {"initial_count": 0, "expected_count": 1}
    row: dict[str, Any] = {"responses_create_params": own, **task}
    if typed:
        task_id = {"taskset": "counter", "task_id": "1"}
        row = {"task_id": task_id, "task_input": {"responses_create_params": own, "task_data": task}}
    await anyio.Path(tmp_path / "rows.jsonl").write_text(json.dumps(row))
    parameters = {"temperature": 0.25, "top_p": 0.9}
    model, upstream = config.model.model_copy(update={"parameters": parameters}), Recording()
    assert (await run(config.model_copy(update={"model": model}), upstream)).rows == 1
    found = [{name: body.get(name) for name in ("temperature", "top_p", "model")} for body in upstream.asked]
    assert found == [{"temperature": 0.25, "top_p": 0.5, "model": "m"}] * 2


async def test_an_endpoint_that_refuses_connections_is_told_of(tmp_path: Path) -> None:
    """In the events of the run, while its calls are still tried."""
    config, events = configured(tmp_path, max_attempts=1), Events()
    model = config.model.model_copy(update={"retry_for_s": 0.2})
    summary = await collect(
        config.model_copy(update={"model": model}), Options(), lambda name, facts: events.append((name, facts))
    )
    assert summary.failed_for_good == 3
    [told] = named(events, "endpoint")
    assert "http://localhost:1/v1 does not answer: " in told["message"]
    names = [name for name, _ in events]
    assert names.index("endpoint") < names.index("failure")
    assert names[-1] == "summary"
