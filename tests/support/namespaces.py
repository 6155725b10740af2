"""Hosts for tests: network namespaces with addresses of their own, at one bridge, and clocks that differ.

The bridge is in a namespace too, so nothing of this machine's network is touched, two networks never meet though their
addresses are the same, and all is gone once the namespaces are. A thread is at one host at a time (`Network.at`): what
it opens or starts there is that host's. Namespaces are named by the process that made them and its start time; those
of a process that died are removed by the next `Network`.
"""

import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from .nursery import Nursery
from .waiting import until

PREFIX = "mfl"
NAMESPACES = Path("/run/netns")
SHARED_MEMORY = Path("/dev/shm")
BRIDGE = "switch"
FIRST_ADDRESS = 11
NOWHERE = "02:00:00:00:00:01"
"""A hardware address that nobody has: what is sent to it vanishes."""
CLOCKS = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1")
"""Where libfaketime may be; Debian's package is faketime."""
GONE_S = 10.0
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_numbers = itertools.count()


@cache
def why_no_hosts() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if shutil.which("ip") is None:
        return "no hosts: the program ip is missing, Debian's iproute2"
    probe = _name(next(_numbers), "probe")
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        return f"no hosts: network namespaces cannot be made: {made.stderr.strip()}"
    try:
        _ip(f"-n {probe} link add {BRIDGE} type bridge")
        _ip(f"-n {probe} link add name to-one type veth peer name to-other")
    except OSError as error:
        return f"no hosts: {error}"
    finally:
        _remove(probe)
    return ""


@cache
def clock_library() -> str:
    """The library that moves a program's clock; empty where it is not installed."""
    found = [path for pattern in CLOCKS for path in Path("/").glob(pattern[1:])]
    return str(found[0]) if found else ""


@dataclass(slots=True)
class Host:
    """One host. Servers that its nursery forks are in it, with its clock."""

    name: str
    namespace: str
    address: str
    skew_s: int
    """How far its clock is from the true one."""
    up: bool = True
    _nursery: Nursery | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What gives a program the host's clock; durations stay true, and so do the times of files of all hosts."""
        if not self.skew_s or not clock_library():
            return {}
        still = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
        return {"LD_PRELOAD": clock_library(), "FAKETIME": f"{self.skew_s:+d}s", **still}

    def nursery(self) -> Nursery:
        """That of the host."""
        if self._nursery is None:
            with _inside(self.namespace):
                self._nursery = Nursery(self.environment)
        return self._nursery

    def pids(self) -> list[int]:
        """What runs there; one that nobody has waited for yet does not."""
        return _running(self.namespace)

    def kill_all(self) -> None:
        """SIGKILL to everything that runs there; return when nothing does."""
        _kill_all(self.namespace)
        until(lambda: not self.pids(), GONE_S)
        if self._nursery is not None:
            self._nursery.end()
            self._nursery = None


class Network:
    """So many hosts, which reach each other until they are cut off; `close`, or its `with` block, removes it."""

    def __init__(self, skews_s: dict[str, int]) -> None:
        """Hosts and how far their clocks are from the true one, in seconds. Raises OSError; see `why_no_hosts`."""
        sweep()
        self._number = next(_numbers)
        self._switch = _name(self._number, BRIDGE)
        self._cuts: list[tuple[Host, Host]] = []
        self.hosts: dict[str, Host] = {}
        try:
            self._make(skews_s)
        except BaseException:
            self.close()
            raise

    def _make(self, skews_s: dict[str, int]) -> None:
        _ip(f"netns add {self._switch}")
        _ip(f"-n {self._switch} link add {BRIDGE} type bridge")
        _ip(f"-n {self._switch} link set {BRIDGE} up")
        for position, (name, skew_s) in enumerate(skews_s.items()):
            host = Host(name, _name(self._number, name), f"10.77.0.{FIRST_ADDRESS + position}", skew_s)
            self.hosts[name] = host
            _ip(f"netns add {host.namespace}")
            _ip(f"-n {self._switch} link add name to-{name} type veth peer name eth0 netns {host.namespace}")
            _ip(f"-n {self._switch} link set to-{name} master {BRIDGE} up")
            _ip(f"-n {host.namespace} link set lo up")
            _ip(f"-n {host.namespace} link set eth0 up")
            _ip(f"-n {host.namespace} addr add {host.address}/24 dev eth0")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill what runs at the hosts, and remove them; twice is fine."""
        for host in self.hosts.values():
            host.kill_all()
            _remove(host.namespace)
        _remove(self._switch)
        self.hosts = {}
        _sweep_clocks()

    def address(self, name: str) -> str:
        """The one at which all others reach a host."""
        return self.hosts[name].address

    @contextmanager
    def at(self, name: str) -> Iterator[Host]:
        """This thread is at a host for the length of the block: what it opens, starts or forks is there."""
        host = self.hosts[name]
        with _inside(host.namespace):
            yield host

    # Faults

    def cut(self, one: str, other: str) -> None:
        """From here on what these two send each other vanishes, in both directions, on open connections too."""
        pair = self.hosts[one], self.hosts[other]
        self._cuts.append(pair)
        for here, there in (pair, pair[::-1]):
            _ip(f"-n {here.namespace} neigh replace {there.address} lladdr {NOWHERE} dev eth0 nud permanent")

    @property
    def is_cut(self) -> bool:
        """Whether anybody is."""
        return bool(self._cuts)

    def heal(self) -> None:
        """Everybody reaches everybody again; what was sent meanwhile may still come."""
        while self._cuts:
            pair = self._cuts.pop()
            for here, there in (pair, pair[::-1]):
                _ip(f"-n {here.namespace} neigh del {there.address} dev eth0")

    def lose(self, name: str) -> None:
        """The host's power fails: first nobody hears it any more, not even a farewell, then nothing runs there."""
        host = self.hosts[name]
        host.up = False
        _ip(f"-n {self._switch} link set to-{name} down")
        host.kill_all()

    def bring_back(self, name: str) -> None:
        """The host is up again, and nothing runs there."""
        self.hosts[name].up = True
        _ip(f"-n {self._switch} link set to-{name} up")

    def mend(self) -> None:
        """Heal it, bring back all hosts, and leave nothing that runs there but nurseries."""
        self.heal()
        for name, host in self.hosts.items():
            if not host.up:
                self.bring_back(name)


def sweep() -> None:
    """Remove what is left of networks whose process has died."""
    if not NAMESPACES.is_dir():
        return
    for path in NAMESPACES.glob(f"{PREFIX}-*-*-*"):
        _, pid, started, _ = path.name.split("-", 3)
        if _started(int(pid)) != started:
            _kill_all(path.name)
            _remove(path.name)
    _sweep_clocks()


def _sweep_clocks() -> None:
    """libfaketime leaves its shared memory behind where its program is killed."""
    for path in SHARED_MEMORY.glob("*faketime_s*"):
        found = re.fullmatch(r"(?:sem\.faketime_sem|faketime_shm)_(\d+)", path.name)
        if found and not _started(int(found[1])):
            path.unlink(missing_ok=True)


def _name(number: int, host: str) -> str:
    return f"{PREFIX}-{os.getpid()}-{_started(os.getpid())}-{number}.{host}"


def _stat(pid: int) -> Sequence[str]:
    """The fields after a process's name; none where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ()


def _started(pid: int) -> str:
    """When a process has started; empty where there is none."""
    fields = _stat(pid)
    return fields[19] if fields else ""


def _state(pid: int) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


def _ip(arguments: str) -> str:
    """Raises OSError with what `ip` says."""
    done = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {arguments}: {done.stderr.strip()}")
    return done.stdout


def _running(namespace: str) -> list[int]:
    """What runs there, without this process, which may be there on a visit."""
    pids = [int(pid) for pid in _ip(f"netns pids {namespace}").split()]
    return [pid for pid in pids if pid != os.getpid() and _state(pid) not in ("Z", "X", "")]


def _kill_all(namespace: str) -> None:
    """Again, until none is born any more."""
    with suppress(OSError):  # There is no such namespace: two have swept it at once.
        while pids := _running(namespace):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _remove(namespace: str) -> None:
    with suppress(OSError):  # It was never made, or is removed already.
        _ip(f"netns del {namespace}")


@contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """This thread is in a namespace."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_namespace(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _set_namespace(before)
    finally:
        os.close(before)


def _set_namespace(opened: int) -> None:
    if _libc.setns(opened, _CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
