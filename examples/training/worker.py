"""The inference server of the run, as a process of the trainer's: given new weights, started again, taken over.

It outlives a trainer that is killed, and may be ahead of the checkpoint then. The next one finds it by its file, checks
that it is the same program, and tells it the weights of the checkpoint.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import orjson
from anyio.to_thread import run_sync

LOOK_S = 0.1
"""Between two looks whether it lives."""
READY = "ready: "
ANSWER_S = 60.0


class Worker:
    """The worker of one folder. Calls go to `url`, also those that are made while it is being started again."""

    def __init__(self, folder: Path) -> None:
        self._weights, self._file = folder / "weights", folder / "worker.json"
        self._log = folder / "worker.log"
        self._version = ""
        self._lock = anyio.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._pid, self._port = self._left()
        self._kept = None if self._lives() else self._keep_port()

    @property
    def url(self) -> str:
        """Where it is, or will be."""
        return f"http://127.0.0.1:{self._port}"

    async def load(self, version: str) -> None:
        """From now on every token is made with these weights; gives back when that is so."""
        async with self._lock:
            self._version = version
            if not self._lives() or not await self._told():
                await self._start()

    async def keep(self) -> None:
        """Start it again whenever it dies, with the weights that it had. Calls in progress are made again, or go on."""
        while True:
            await anyio.sleep(LOOK_S)
            async with self._lock:
                if self._version and not self._lives():
                    await self._start()

    def end(self) -> None:
        """Kill it: it has nothing to lose."""
        if self._pid and self._lives():
            os.kill(self._pid, signal.SIGKILL)
        if self._child is not None:
            self._child.wait()
        self._file.unlink(missing_ok=True)

    async def _told(self) -> bool:
        body = {"model_path": self._version, "weight_version": self._version}
        try:
            async with httpx.AsyncClient(timeout=ANSWER_S) as client:
                (await client.post(f"{self.url}/update_weights_from_disk", json=body)).raise_for_status()
        except httpx.TransportError:
            return False
        return True

    async def _start(self) -> None:
        if self._kept is None:
            self._kept = self._keep_port()
        await run_sync(self._run)

    def _run(self) -> None:
        weights = str(self._weights)
        command = [
            *(sys.executable, "-m", "midflight", "backend", "--real", "--port", str(self._port)),
            *("--weights-root", weights, "--weights", f"{weights}/{self._version}", "--weight-version", self._version),
        ]
        with self._log.open("a") as log:
            self._child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self._pid = self._child.pid
        self._file.write_bytes(orjson.dumps({"pid": self._pid, "port": self._port}))
        assert self._child.stdout is not None
        if not self._child.stdout.readline().startswith(READY) and self._child.wait() != -signal.SIGKILL:
            raise RuntimeError(f"the worker did not start; {self._log} says why")

    def _lives(self) -> bool:
        """Whether the process is there, and is the one that was started: a pid alone may be another's by now."""
        try:
            command = Path(f"/proc/{self._pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        if self._child is not None and self._child.poll() is not None:
            return False
        return str(self._weights).encode() in command

    def _left(self) -> tuple[int, int]:
        """What an earlier trainer left: pid and port, or 0."""
        try:
            known = orjson.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return 0, 0
        return int(known["pid"]), int(known["port"])

    def _keep_port(self) -> socket.socket:
        """A socket that is bound and does not listen: nobody else gets the port, and callers are refused meanwhile."""
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            kept.bind(("127.0.0.1", self._port))
        except OSError:
            kept.bind(("127.0.0.1", 0))
        self._port = kept.getsockname()[1]
        return kept


@asynccontextmanager
async def worker_of(folder: Path) -> AsyncIterator[Worker]:
    """The worker, watched for the time of a block and ended with it."""
    worker = await run_sync(Worker, folder)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(worker.keep)
            yield worker
            tasks.cancel_scope.cancel()
    finally:
        worker.end()
