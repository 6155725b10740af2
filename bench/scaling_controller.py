"""What a checkpoint costs its controller, and every process, for each rollout and each process of the fleet.

    python -m bench.scaling_controller --rollouts 4000 --processes 4,16 --json

The processes are commits of empty records into a local store, of which each process of a server has an equal share,
and every role has every rollout. Then the controller's part runs for real: the publication, which reads every manifest
and index back, and the opening that each process does for itself in a restore. Of the control calls, the commit with
the scope is sent to every process, and read as one process reads it. Processor time, in seconds.
"""

import json
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio

from orchestrator import HttpLink, http_client
from orchestrator.fleet import PREPARE_ORDER
from participants import Done
from participants.routing import worker_of
from participants.wire import Commit, Lives
from store import (
    CheckpointId,
    Draft,
    Life,
    ParticipantCommit,
    ParticipantRef,
    ProcessName,
    Record,
    claim,
    open_checkpoint,
    open_store,
)

from . import command_line
from .command_line import count, counts

TIMEOUT_S = 600.0


def lives_of(rollouts: int) -> list[Life]:
    """With ids as long as those that a collection run derives."""
    return [Life(f"rollout-{n:016x}", 1, 0, n) for n in range(rollouts)]


async def measure(rollouts: int, processes: int, folder: Path) -> dict[str, Any]:
    """One size; of each role there are a quarter of the processes."""
    workers = processes // len(PREPARE_ORDER)
    tracemalloc.start()
    lives = lives_of(rollouts)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    found: dict[str, Any] = {"rollouts": rollouts, "processes": processes, "life_bytes": round(memory / rollouts)}
    async with open_store(str(folder / "store"), "write") as opened:
        store, requests = opened.counted()
        async with claim(store) as controller:
            checkpoint = controller.next_round()
            refs: list[ParticipantRef] = []
            for kind in PREPARE_ORDER:
                for number in range(workers):
                    own = [Record(life, {}) for life in lives if worker_of(life.rollout_id, workers) == number]
                    process = ProcessName(kind, "main", f"w{number}")
                    refs.append((await ParticipantCommit(store, checkpoint, process).run(own)).ref)
            draft = Draft(checkpoint=checkpoint, parent=None, participants=refs, scope=lives)
            before, began = requests.total(), time.process_time()
            ref = await controller.publish(draft, timeout_s=TIMEOUT_S)
            found |= {"publish_s": time.process_time() - began, "publish_requests": requests.total() - before}
        before, began = requests.total(), time.process_time()
        await open_checkpoint(store, ref)
        found |= {"open_s": time.process_time() - began, "open_requests": requests.total() - before}
        found["manifest_bytes"] = (folder / "store" / "checkpoints" / str(checkpoint) / "manifest.json").stat().st_size
        found["entry_bytes"] = max(path.stat().st_size for path in (folder / "store" / "chain").iterdir())
    return found | await calls_of(lives, checkpoint, processes)


async def calls_of(lives: Sequence[Life], round_: CheckpointId, processes: int) -> dict[str, Any]:
    """The commit calls of a checkpoint, sent over sockets to somebody who throws them away; one of them is read."""
    began = time.thread_time()
    scope = Lives(lives)
    assert scope.json
    written = time.thread_time()

    async def call(link: HttpLink) -> None:
        message = Commit(run="0" * 32, epoch=1, incarnation="0" * 32, round=round_, scope=scope, parent=None)
        await link.send(message, Done)

    with sink() as url:
        async with http_client("nobody") as http:
            await call(HttpLink(url, http))  # The first one makes what all others use.
            before = time.thread_time()
            async with anyio.create_task_group() as group:
                for _ in range(processes):
                    group.start_soon(call, HttpLink(url, http))
            sent = time.thread_time() - before
    body = b"".join(
        Commit(run="0" * 32, epoch=1, incarnation="0" * 32, round=round_, scope=scope, parent=None).written()
    )
    before = time.thread_time()
    Commit.model_validate_json(body)
    parsed = time.thread_time()
    return {
        "call_bytes": len(body),
        "scope_write_s": written - began,
        "call_send_s": sent / processes,
        "call_parse_s": parsed - before,
    }


class _Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        left = int(self.headers["content-length"])
        while left:
            left -= len(self.rfile.read(min(left, 1 << 20)))
        answer = Done(phase="idle").model_dump_json().encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing."""


@contextmanager
def sink() -> Iterator[str]:
    """The URL of a server, in threads of its own, that reads every call to its end and says that it is done."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Sink) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.scaling_controller", __doc__)
    parser.add_argument("--rollouts", type=count, default=4_000, help="in the checkpoint")
    parser.add_list(
        "--processes", counts, [4, 16], "numbers of processes of all four roles together, multiples of four"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    sizes = parsed.processes
    if any(size % 4 for size in sizes):
        parser.error("--processes: give multiples of four, as each role has as many")
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
            found.append(anyio.run(measure, parsed.rollouts, size, Path(folder)))
        print("  ".join(f"{name} {value:.4g}" for name, value in found[-1].items()))
    if parsed.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
