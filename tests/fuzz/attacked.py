"""A server to be attacked: raw connections to it, and what must hold after each attack."""

import json
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from participants import CONTROL_PREFIX
from store.secrets import scan
from tests.support.fleet import Server
from tests.support.waiting import until

TOKEN = "sk-proj-0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT"
"""It looks like a key, so that the scanner of secrets knows it, too."""
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}
RUN = "0123456789abcdef" * 2
ASK_S = 20.0
SOON_S = 1.0
MAX_GROWTH = 96 * 2**20
"""Bytes of memory that an attack may cost at its height."""
MAX_LOG = 16 * 1024
SHELL_FILES = 1024


@dataclass(frozen=True, slots=True)
class Target:
    """A model server with control plane, data plane and ledger, adopted by a controller."""

    server: Server

    @property
    def pid(self) -> int:
        """Of its one worker."""
        return self.server.worker(0)

    def get(self, path: str, **more: Any) -> httpx.Response:
        """One request with the token."""
        return httpx.get(f"{self.server.url}{path}", headers=AUTHORIZED, timeout=ASK_S, **more)

    def post(self, operation: str, **fields: Any) -> httpx.Response:
        """One operation, with the envelope."""
        incarnation = self.get(f"{CONTROL_PREFIX}/capabilities").json()["incarnation"]
        body = {"run": RUN, "epoch": 1, "incarnation": incarnation, **fields}
        url = f"{self.server.url}{CONTROL_PREFIX}/{operation}"
        return httpx.post(url, json=body, headers=AUTHORIZED, timeout=ASK_S)

    def answers_in(self) -> float:
        """Seconds until it has said how it is."""
        began = time.monotonic()
        assert self.ask("GET /health") == 200
        return time.monotonic() - began

    def status(self) -> Any:
        """Where it stands."""
        return self.get(f"{CONTROL_PREFIX}/status").json()

    def connect(self) -> socket.socket:
        """A connection that has said nothing yet."""
        made = socket.create_connection(("127.0.0.1", self.server.port), ASK_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def say(self, *pieces: bytes, wait: bool = True) -> bytes:
        """What comes back for these bytes, up to when the server has closed, or said nothing for a moment."""
        with self.connect() as made:
            with suppress(ConnectionError):
                for piece in pieces:
                    made.sendall(piece)
            return heard(made) if wait else b""

    def ask(self, request: str, headers: Sequence[str] = (), body: bytes = b"") -> int:
        """The status of one request line, sent as it stands here; 0 where the connection was closed without."""
        lines = [
            f"{request} HTTP/1.1",
            "host: x",
            "connection: close",
            f"content-length: {len(body)}",
            *headers,
            "",
            "",
        ]
        return status_of(self.say("\r\n".join(lines).encode("utf-8", "surrogateescape"), body))


def channel(made: socket.socket) -> bytes:
    """Make a channel of a connection; the head of the answer."""
    lines = ["GET /midflight/v1/channel HTTP/1.1", "host: x", "upgrade: websocket", "connection: Upgrade",
             "sec-websocket-version: 13", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==", "", ""]  # fmt: skip
    made.sendall("\r\n".join(lines).encode())
    made.settimeout(ASK_S)
    return made.recv(65536)


def message_of(data: bytes, opcode: int = 2) -> bytes:
    """A message of a channel, as a client sends it."""
    return bytes([0x80 | opcode, 0x80 | 127]) + struct.pack(">Q", len(data)) + bytes(4) + data


def heard(made: socket.socket, quiet_s: float = 5.0) -> bytes:
    """Everything until the other side closes, or says nothing for so long."""
    made.settimeout(quiet_s)
    found = b""
    with suppress(ConnectionError, TimeoutError):
        while piece := made.recv(65536):
            found += piece
    return found


def flood(made: socket.socket, piece: bytes, most: int) -> int:
    """How much a server takes of a piece that is sent again and again, until it closes or reads no more."""
    sent = 0
    made.settimeout(1.0)
    with suppress(ConnectionError, TimeoutError):
        while sent < most:
            sent += made.send(piece)
    return sent


def status_of(reply: bytes) -> int:
    """Of the first reply in these bytes."""
    return int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/1.1 ") else 0


@contextmanager
def target(folder: Path) -> Iterator[Target]:
    """Start it, adopt it, and kill it at the end."""
    model = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    spec = {"model": model, "capture": str(folder / "ledger"), "store": str(folder / "store"), "token_env": "TOKEN"}
    with ExitStack() as stack:
        server = Server("model.main", spec, folder, {"TOKEN": TOKEN})
        stack.callback(server.kill)
        with few_files(SHELL_FILES):
            server.begin()
        server.await_ready()
        made = Target(server)
        run = made.get(f"{CONTROL_PREFIX}/capabilities").json()["run"] or RUN
        assert made.post("adopt", run=run).status_code == 200
        yield made


@contextmanager
def few_files(most: int) -> Iterator[None]:
    """What is started inside may have so many open at first, as a shell gives to small programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def limited(pid: int, most: int) -> Iterator[None]:
    """Inside, a process may have so many open, whatever it had asked for."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def _memory(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@contextmanager
def unharmed(of: Target, *, changed: bool = False) -> Iterator[None]:
    """Whatever is done in the block: nothing has changed after it, and the server is small, quick and discreet.

    With `changed` its status may be another one: whoever has the token may do what it allows.
    """
    pid, before = of.pid, of.status()
    log = of.server.log.stat().st_size
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # The height of its memory begins anew.
    memory = _memory(pid, "VmRSS")
    yield
    until(lambda: of.answers_in() < SOON_S, 10.0)  # A busy machine may need another try.
    assert of.pid == pid
    after = of.status()
    assert changed or {name: (before[name], value) for name, value in after.items() if value != before[name]} == {}
    height = _memory(pid, "VmHWM") - memory
    assert height < MAX_GROWTH, f"it took {height / 2**20:.0f} MiB"
    said = of.server.log.read_bytes()
    assert len(said) - log < MAX_LOG, said[log:][:2000]
    assert TOKEN.encode() not in said
    assert scan(said) == []


def descriptors() -> int:
    """How many this process may have open, after asking for all that it may ask for."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most - len(os.listdir("/proc/self/fd"))


def events(of: Target) -> list[dict[str, Any]]:
    """What it has logged."""
    return [json.loads(line) for line in of.server.log.read_text().splitlines() if line.startswith("{")]
