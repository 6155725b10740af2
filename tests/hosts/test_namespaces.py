"""The hosts themselves: what is cut off hears nothing, what is lost is gone, and nothing is left of tests that died."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.namespaces import NAMESPACES, PREFIX, Network, sweep, why_no_hosts
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
PORT = 7000
SILENT_S = 1.0
AFTER_S = 20.0
"""How long what was lost may take until it is sent once more."""
DOOMED = """
import os, subprocess, sys
from tests.support.namespaces import Network
network = Network({"a": 0})
with network.at("a"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(child.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def connection(network: Network) -> Iterator[tuple[socket.socket, socket.socket]]:
    """From a to b: both ends."""
    with network.at("b"):
        listener = socket.create_server((network.address("b"), PORT))
    with listener:
        with network.at("a"):
            ours = socket.create_connection((network.address("b"), PORT), timeout=SILENT_S)
        theirs, _ = listener.accept()
        theirs.settimeout(SILENT_S)
        with ours, theirs:
            yield ours, theirs


def reaches(network: Network, one: str, other: str) -> bool:
    """Whether a new connection comes about."""
    with network.at(other), socket.create_server((network.address(other), PORT + 1)), network.at(one):
        try:
            socket.create_connection((network.address(other), PORT + 1), timeout=SILENT_S).close()
        except TimeoutError:
            return False
        return True


def test_what_two_hosts_send_each_other_vanishes_while_they_are_cut_off(network: Network) -> None:
    """On an open connection too, in both directions, without an error; others are reached, and what was sent comes."""
    with connection(network) as (ours, theirs):
        network.cut("a", "b")
        for sender, receiver in ((ours, theirs), (theirs, ours)):
            sender.sendall(b"late")
            with pytest.raises(TimeoutError):
                receiver.recv(4)
        assert (reaches(network, "a", "b"), reaches(network, "b", "a")) == (False, False)
        assert reaches(network, "a", "c")
        assert reaches(network, "c", "b")
        network.heal()
        theirs.settimeout(AFTER_S)
        ours.settimeout(AFTER_S)
        assert (theirs.recv(4), ours.recv(4)) == (b"late", b"late")
        assert reaches(network, "a", "b")


def test_a_lost_host_is_gone_without_a_farewell(network: Network) -> None:
    """Its processes are killed, nobody is told, nobody reaches it; back again it is empty."""
    with network.at("b"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    with connection(network) as (ours, _):
        network.lose("b")
        assert child.wait() == -signal.SIGKILL
        with pytest.raises(TimeoutError):
            ours.recv(1)
        assert not reaches(network, "a", "b")
        network.bring_back("b")
        assert network.hosts["b"].pids() == []
        assert reaches(network, "a", "b")


def test_what_a_dead_test_left_is_swept_and_what_a_live_one_has_is_not() -> None:
    """Its namespaces and what runs in them; those of a process that lives stay until it has died as well."""
    if reason := why_no_hosts():
        pytest.skip(reason)
    command = [sys.executable, "-c", DOOMED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as doomed:
        assert doomed.stdout is not None
        child = int(doomed.stdout.readline())
        sweep()
        assert len(_namespaces(doomed.pid)) == 2
        assert _runs(child)
        doomed.kill()
        doomed.wait()
        sweep()
        assert _namespaces(doomed.pid) == []
        until(lambda: not _runs(child))


def test_two_networks_do_not_meet(network: Network) -> None:
    """The same addresses are different hosts in another one, so that two test processes never collide."""
    with Network({"a": 0, "b": 0}) as other:
        assert other.address("b") == network.address("b")
        with network.at("b"):
            listener = socket.create_server((network.address("b"), PORT))
        with listener, other.at("a"), pytest.raises(ConnectionRefusedError):
            socket.create_connection((other.address("b"), PORT), timeout=AFTER_S)


def _namespaces(pid: int) -> list[str]:
    return [path.name for path in NAMESPACES.glob(f"{PREFIX}-{pid}-*")]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
