"""The state file of a fleet, `fleet.json`: what runs where.

It is replaced whole, so that a reader finds one state or the next. No secret is in it: the control
token has a file of its own.
"""

import os
import secrets
import socket
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from participants.serving.settings import Table

from .failures import BadState

STATE, TOKEN, LOCK = "fleet.json", "token", "lock"
"""Names of files in the folder of a fleet."""
_TOKEN_BYTES = 32
_PRIVATE = 0o600


class ServerState(Table):
    """One server that was started."""

    role: str
    url: str
    listen: str
    """Host and port of the url: a server that is started again has the same."""
    pid: int
    """Of its first process, and of its session and process group."""
    started: int
    """When that process began, in clock ticks since the boot: with the pid this names one process only."""
    workers: int
    log: str
    program: str
    """Digest of what it was started from."""


class FleetState(Table):
    """Everything that was started, in the order of the roles."""

    version: Literal[1] = 1
    boot: str
    """Of the kernel that counts the pids: on another host, and after a reboot, all of them are gone."""
    host: str = ""
    controller: int = 0
    """The process that started them."""
    servers: tuple[ServerState, ...] = ()

    def find(self, role: str) -> ServerState | None:
        """What was started as a role."""
        return next((server for server in self.servers if server.role == role), None)


def read_state(folder: Path) -> FleetState | None:
    """The state of a folder's fleet; None where there is none. Raises BadState."""
    path = folder / STATE
    try:
        return FleetState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        why = str(error) if isinstance(error, OSError) else "it is no state of a fleet that this version writes"
        raise BadState(path, why) from error


def write_state(folder: Path, servers: tuple[ServerState, ...]) -> None:
    """Replace the state file. Raises OSError."""
    state = FleetState(boot=boot_id(), host=socket.gethostname(), controller=os.getpid(), servers=servers)
    replace_file(folder / STATE, state.model_dump_json(indent=2).encode() + b"\n")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file for its owner alone, in one step. Raises OSError."""
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE), "wb") as file:
            file.write(content)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)  # Half a file on a full disk helps nobody.
        raise


def boot_id() -> str:
    """Which start of which kernel this is."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def kept_token(folder: Path) -> str | None:
    """The token that an earlier start has made."""
    try:
        return (folder / TOKEN).read_text(encoding="ascii").strip() or None
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def make_token(folder: Path) -> str:
    """The token of an earlier start, whose servers may live, or a new one, in a file for its owner alone."""
    token = kept_token(folder)
    if token is None:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        replace_file(folder / TOKEN, f"{token}\n".encode())
    return token
