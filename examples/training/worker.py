"""The inference server of the run, as a process of the trainer's: given new weights, started again, taken over.

It outlives a trainer that is killed, and may be ahead of the checkpoint then. The next one finds it by the folder of
weights in its command line, and tells it the weights of the checkpoint.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import httpx
from anyio.to_thread import run_sync

LOOK_S = 0.1
"""Between two looks whether it lives."""
READY = "ready: "
ANSWER_S = 60.0


class Worker:
    """The worker of one folder. Calls go to `url`, also those that are made while it is being started again."""

    def __init__(self, folder: Path) -> None:
        self._weights = folder.resolve() / "weights"
        self._log = folder / "worker.log"
        self._version = ""
        self._lock = anyio.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._pid, self._port = running_worker(folder)
        self._kept = None if self._pid else self._keep_port()

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
        if self._lives():
            self._kill()
        if self._child is not None:
            self._child.wait()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    async def _told(self) -> bool:
        body = {"model_path": self._version, "weight_version": self._version}
        try:
            async with httpx.AsyncClient(timeout=ANSWER_S) as client:
                (await client.post(f"{self.url}/update_weights_from_disk", json=body)).raise_for_status()
        except httpx.TransportError:
            return False
        return True

    async def _start(self) -> None:
        while self._lives():  # One that does not answer: it may be on its way to another version.
            self._kill()
            await anyio.sleep(LOOK_S)
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
        assert self._child.stdout is not None
        if not self._child.stdout.readline().startswith(READY) and self._child.wait() != -signal.SIGKILL:
            raise RuntimeError(f"the worker did not start; {self._log} says why")

    def _lives(self) -> bool:
        """Whether the process is there, and is the worker: its pid alone may be another's by now."""
        ended = self._child is not None and self._child.poll() is not None
        return not ended and self._pid > 0 and str(self._weights) in _command(self._pid)

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


def running_worker(folder: Path) -> tuple[int, int]:
    """Pid and port of the worker of a folder, whoever has started it; 0 and 0 where there is none."""
    for process in Path("/proc").glob("[0-9]*"):
        command = _command(int(process.name))
        if str(folder.resolve() / "weights") in command:
            return int(process.name), int(command[command.index("--port") + 1])
    return 0, 0


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


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
