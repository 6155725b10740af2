"""The state file, the token, the ports and the logs of a fleet."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from orchestrator.deployment import BadState, PortTaken
from orchestrator.deployment.lock import FolderLock
from orchestrator.deployment.ports import Ports
from orchestrator.deployment.standing import LogReader, told_of
from orchestrator.deployment.state import STATE, TOKEN, ServerState, kept_token, make_token, read_state, write_state
from participants.serving.addresses import split_address, url_at

SERVER = ServerState(
    role="agent.main",
    url="http://127.0.0.1:7003",
    listen="127.0.0.1:7003",
    pid=12,
    started=34,
    workers=2,
    log="agent.main.log",
    program="abc",
)
pytestmark = [pytest.mark.unit, pytest.mark.anyio]


def mode(path: Path) -> int:
    """Who may read a file."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    """What a killed controller has left is all that its follower knows; nothing else is left beside it."""
    assert read_state(tmp_path) is None
    write_state(tmp_path, (SERVER,))
    write_state(tmp_path, (SERVER,))
    found = read_state(tmp_path)
    assert found is not None
    assert found.servers == (SERVER,)
    assert found.find("agent.main") == SERVER
    assert found.find("model.main") is None
    assert [path.name for path in tmp_path.iterdir()] == [STATE]
    assert mode(tmp_path / STATE) == 0o600


@pytest.mark.parametrize("text", ["", "{", '{"version": 2, "boot": "b"}', '{"version": 1, "boot": "b", "token": "t"}'])
def test_a_state_that_is_none_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """Half a file, another version, and keys that nobody knows: the file is named, and what to do."""
    (tmp_path / STATE).write_text(text)
    with pytest.raises(BadState, match=r"fleet\.json cannot be used: it is no state .* Remove it"):
        read_state(tmp_path)


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    """Servers that outlive a controller know the token of before, so it stays."""
    assert kept_token(tmp_path) is None
    token = make_token(tmp_path)
    assert len(token) >= 40
    assert make_token(tmp_path) == kept_token(tmp_path) == token
    assert mode(tmp_path / TOKEN) == 0o600
    assert make_token(Path(tmp_path, "..").resolve()) != token


def test_one_controller_a_folder(tmp_path: Path) -> None:
    """The second one has no lock as long as the first one has it."""
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    assert first.try_to_take()
    assert not second.try_to_take()
    first.release()
    assert second.try_to_take()
    second.release()


async def test_who_waits_for_a_folder_is_told_so_at_once(tmp_path: Path) -> None:
    """Once, with who has it; and nothing where nobody has."""
    first, second, told = FolderLock(tmp_path), FolderLock(tmp_path), list[str]()
    await first.take(60.0, told.append)
    assert told == []

    def hear(holder: str) -> None:
        told.append(holder)
        first.release()

    await second.take(60.0, hear)
    assert told == [f"process {os.getpid()}"]
    second.release()


async def test_a_port_that_is_kept_is_its_servers_alone(tmp_path: Path) -> None:
    """Callers are refused, not left waiting; the server can listen there again and again; others get other ports."""
    ports = Ports()
    listen = await ports.keep("agent.main", "127.0.0.1:0")
    host, port = split_address(listen)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))
        with socket.create_server((host, port)), socket.create_connection((host, port)):
            pass
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind((host, port))  # As the kernel would for whoever asks for any port, or calls from one.
    assert await ports.keep("agent.main", listen) == listen
    assert await ports.keep("model.main", "127.0.0.1:0") != listen
    ports.close()


async def test_a_port_where_somebody_listens_is_refused_before_anything_starts() -> None:
    """Role and address are named."""
    ports = Ports(patience_s=0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PortTaken, match=f"agent.main cannot listen on {listen}: Address already in use"):
            await ports.keep("agent.main", listen)
    assert await ports.keep("agent.main", listen) == listen
    ports.close()


@pytest.mark.parametrize("listen", ["127.0.0.1:7001", "[::1]:7001", "somewhere:7001"])
def test_a_server_is_called_where_it_listens(listen: str) -> None:
    """Brackets of IPv6 stay."""
    assert url_at(listen) == f"http://{listen}"


def test_no_token_is_in_a_state() -> None:
    """The record has no place for one."""
    assert not [name for name in json.loads(SERVER.model_dump_json()) if "token" in name]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"event": "endpoint", "process": "w0", "ts": "now", "base_url": "u", "message": "silent"}', True),
        (b'{"event": "worker_started", "process": "w0", "replaced": 1}', True),
        (b'{"event": "worker_started", "process": "w0", "replaced": 0}', False),
        (b'{"event": "log", "message": "endpoint"}', False),
    ],
)
def test_a_silent_endpoint_and_a_replacement_are_told_and_a_first_start_is_not(line: bytes, told: bool) -> None:
    """The log of a start is read from its beginning, where each worker begins."""
    found = told_of(line)
    assert (found is not None) == told
    if found is not None:
        assert {"base_url": "u", "message": "silent"}.items() <= found.items() or found["replaced"] == 1


def test_what_servers_say_of_their_workers_is_relayed_and_nothing_else(tmp_path: Path) -> None:
    """Whole lines, once each, from the moment on that somebody looks; a line that is none is no harm."""
    log = tmp_path / "log"
    log.write_bytes(b'{"event": "worker_died", "process": "w0"}\n')
    reader = LogReader(log)
    assert reader.new_lines() == []
    with log.open("ab") as file:
        file.write(b'{"event": "ready"}\nTraceback of worker_died\n{"event": "worker_died", "process": "w1", ')
        file.flush()
        assert [told_of(line) for line in reader.new_lines()] == [None, None]
        file.write(b'"signal": "SIGKILL", "ts": "now"}\n')
    [line] = reader.new_lines()
    assert told_of(line) == {"event": "worker_died", "process": "w1", "signal": "SIGKILL"}
    assert reader.new_lines() == []
    first, *_, last = (told_of(line) for line in LogReader(log, 0).new_lines())
    assert (first, last) == ({"event": "worker_died", "process": "w0"}, told_of(line))
    assert LogReader(tmp_path / "none").new_lines() == []
