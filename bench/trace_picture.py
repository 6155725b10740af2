"""A picture of one checkpoint and one restore, as telemetry tells of them: a real fleet, under load.

    python -m bench.trace_picture docs/checkpoint-trace.svg

A collection run over four servers, the model with two workers, before the deterministic backend. All rollouts are in
flight when it is told to take a checkpoint; then it is killed with its servers, and the same command restores. Spans
come over OTLP. That the controller waits for an answer (`midflight.call`) is not drawn.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from orchestrator.deployment.processes import kill_marked
from participants.inference import DEFAULT_MODEL
from participants.telemetry import names

from . import command_line
from .command_line import count
from .endpoint import endpoint, write_rows
from .otlp_sink import SeenSpan, Sink, otlp_sink
from .timeline import Panel, draw

PATIENCE_S = 120.0
LOOK_S = 0.05
ORDER = (
    "controller main",
    "environment.main w0",
    "agent.main w0",
    "model.main w0",
    "model.main w1",
    "resources.counter w0",
)
RUN = """
[run]
input = "rows.jsonl"
output = "results.jsonl"
concurrency = {rollouts}
[model]
base_url = "{base_url}"
model = "{model}"
backend = "midflight"
[resources.counter]
server = "participants.servers.counter:CounterServer"
[checkpoint]
enabled = true
url = "checkpoints"
interval_s = 0
[capture]
folder = "ledger"
[telemetry]
otlp = "{otlp}"
[fleet]
[fleet.servers."model.main"]
workers = 2
"""


@contextmanager
def collecting(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], bool]]]:
    """The run, and whether it has told of an event; leaving it kills the run and its servers."""
    out = folder / "events.jsonl"
    command = [sys.executable, "-m", "midflight", "collect", str(folder / "run.toml"), "--json"]
    with out.open("wb") as stdout, (folder / "errors").open("ab") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, start_new_session=True)
    try:
        yield process, lambda name: any(f'"event":"{name}"' in line for line in out.read_text().splitlines())
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kill_marked(Path(os.path.realpath(folder / "fleet")))


def wait(so: Callable[[], object], what: str) -> None:
    """Until it is so. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while not so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {PATIENCE_S:g} s")
        time.sleep(LOOK_S)


def trace_of(sink: Sink, root: str, number: int = 0) -> list[SeenSpan]:
    """The spans of this one, counted from 0, of the traces that begin with a span; empty where there is none yet."""
    ids = [span.trace_id for span in sink.spans if span.name == root and span.parent_id is None]
    return [span for span in sink.spans if span.trace_id == ids[number]] if len(ids) > number else []


def whole(trace: Sequence[SeenSpan]) -> bool:
    """Whether everything of it has come: each process sends its own."""
    ids = {span.span_id for span in trace}
    calls = {span.span_id for span in trace if span.name == names.CALL}
    answered = {span.parent_id for span in trace if span.name.startswith(names.OPERATION)}
    return bool(trace) and calls <= answered and all(span.parent_id in ids for span in trace if span.parent_id)


def record(folder: Path, rollouts: int) -> list[Panel]:
    """Run it, and give what was seen."""
    write_rows(folder / "rows.jsonl", rollouts, turns=4, filler=60)
    with otlp_sink() as sink, endpoint(folder, tokens_per_s=40) as backend:
        facts = {"rollouts": rollouts, "base_url": backend.base_url, "model": DEFAULT_MODEL, "otlp": sink.url}
        (folder / "run.toml").write_text(RUN.format(**facts))
        with collecting(folder) as (process, told):
            wait(lambda: told("started"), "start")
            wait(lambda: backend.generated()[0] >= 2 * rollouts, "load")
            process.send_signal(signal.SIGUSR1)
            wait(lambda: whole(trace_of(sink, names.COLLECT_CHECKPOINT)), "checkpoint")
            checkpoint = trace_of(sink, names.COLLECT_CHECKPOINT)
        with collecting(folder) as (_, told):
            wait(lambda: told("started"), "second start")
            wait(lambda: whole(trace_of(sink, names.COLLECT_BEGIN, 1)), "restore")
            begin = trace_of(sink, names.COLLECT_BEGIN, 1)
    return [
        Panel(f"One checkpoint of {rollouts} rollouts in flight, at five processes", drawn(checkpoint)),
        Panel("After SIGKILL of everything: the restore, at five new processes", drawn(begin)),
    ]


def drawn(trace: Sequence[SeenSpan]) -> list[SeenSpan]:
    """Without what only waits."""
    return [span for span in trace if span.name != names.CALL]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.trace_picture", __doc__)
    parser.add_argument("picture", type=command_line.to_write, help="where the SVG goes")
    parser.add_argument("--rollouts", type=count, default=256, help="in flight at the checkpoint")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        panels = record(Path(name), parsed.rollouts)
    parsed.picture.write_text(draw(panels, ORDER), encoding="utf-8")
    if parsed.json:
        print(json.dumps({panel.title: len(panel.spans) for panel in panels}))


if __name__ == "__main__":
    main()
