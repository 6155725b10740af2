"""What is decided before a program starts: its order, the filter of calls, and how an end is called."""

import errno
import signal
import struct
from pathlib import Path

import pytest

from participants import Code, ParticipantError
from participants.sandbox import Program, SandboxLimits
from participants.sandbox.filters import call_filter
from participants.sandbox.order import FILTER_FD, STAGE, Order, make_order
from participants.sandbox.sandbox import ending

pytestmark = pytest.mark.unit

LIMITS = SandboxLimits(processes=7, cpu_s=1.5, folder_bytes=1 << 20)


def order(program: Program, *, bubblewrap: str = "/usr/bin/bwrap", uid: int | None = None) -> Order:
    return make_order(program, LIMITS, bubblewrap=bubblewrap, uid=uid, fresh="/tmp/fresh")


def pairs(words: list[str], option: str) -> list[list[str]]:
    """The two words after each occurrence of an option."""
    return [words[at + 1 : at + 3] for at, word in enumerate(words) if word == option]


def test_a_folder_is_bound_and_a_fresh_one_is_in_memory() -> None:
    """The one is on disk and mounted at /work; the other is a file system of limited size that is measured."""
    given, fresh = order(Program(command=["a"], folder=Path("/srv/x"))), order(Program(command=["a"]))
    assert pairs(list(given.argv), "--bind") == [["/srv/x", "/work"]]
    assert (given.folder, given.fresh, list(given.in_memory)) == ("/srv/x", False, ["/tmp", "/dev/shm"])
    assert not pairs(list(fresh.argv), "--bind")
    assert (fresh.folder, list(fresh.in_memory)) == (None, ["/work", "/tmp", "/dev/shm"])


def test_another_user_finds_mounts_where_they_are_staged() -> None:
    """Sources that it may be unable to reach are mounted before by the keeper, each under a name of its own."""
    program = Program(command=["a"], folder=Path("/srv/x"), read_only={"/data": Path("/srv/y")})
    made = order(program, uid=5)
    assert made.staged == [("/srv/y", f"{STAGE}/0"), ("/srv/x", f"{STAGE}/1")]
    assert pairs(list(made.argv), "--bind") == [[f"{STAGE}/1", "/work"]]
    assert [f"{STAGE}/0", "/data"] in pairs(list(made.argv), "--ro-bind")
    assert order(program).staged == []


def test_without_bubblewrap_the_command_is_run_as_it_is() -> None:
    """In a fresh folder on disk, with that folder as home, and the paths that it may read named."""
    made = order(Program(command=["a", "b"], read_only={"/srv/y": Path("/srv/y")}), bubblewrap="")
    assert (made.argv, made.folder, made.fresh, made.in_memory) == (["a", "b"], "/tmp/fresh", True, [])
    assert made.environment["HOME"] == made.environment["TMPDIR"] == "/tmp/fresh"
    assert {"/usr", "/srv/y"} <= set(made.readable)
    assert not {"/", "/etc", "/root", "/home", "/proc", "/tmp"} & set(made.readable)


def test_limits_become_limits_of_the_kernel() -> None:
    """Processor time is rounded up, since the keeper ends it earlier; processes are counted inside the namespace."""
    made = order(Program(command=["a"]))
    assert (made.rlimits["RLIMIT_CPU"], made.rlimits["RLIMIT_CORE"]) == (3, 0)
    assert "--nproc=7" in made.argv


def test_the_network_is_shared_only_where_it_is_asked_for() -> None:
    """And with it the settings that names are looked up by."""
    without, with_it = order(Program(command=["a"])), order(Program(command=["a"], network=True))
    assert "--share-net" not in without.argv
    assert "/etc/resolv.conf" not in without.argv
    assert {"--share-net", "/etc/resolv.conf"} <= set(with_it.argv)


@pytest.mark.parametrize(
    "program",
    [
        Program(command=[]),
        Program(command=["a\0"]),
        Program(command=["a"], environment={"A=B": "c"}),
        Program(command=["a"], environment={"A": "\0"}),
        Program(command=["a"], folder=Path("relative")),
        Program(command=["a"], read_only={"/x": Path("relative")}),
        Program(command=["a"], read_only={"relative": Path("/x")}),
    ],
    ids=["empty", "nul", "equals", "nul-value", "folder", "source", "inside"],
)
def test_what_cannot_be_run_is_refused(program: Program) -> None:
    """Before anything is started."""
    with pytest.raises(ParticipantError) as caught:
        order(program)
    assert caught.value.code == Code.INVALID_REQUEST


def verdict(code: bytes, architecture: int, number: int) -> int:
    """What a kernel would answer: a small machine for the operations that the filter uses."""
    steps, at, held = list(struct.iter_unpack("=HBBI", code)), 0, 0
    while True:
        operation, if_true, if_false, operand = steps[at]
        at += 1
        if operation == 0x20:
            held = {0: number, 4: architecture}[operand]
        elif operation == 0x06:
            return int(operand)
        else:
            at += if_true if (held == operand if operation == 0x15 else held >= operand) else if_false


ALLOW, ERROR = 0x7FFF0000, 0x00050000
X86_64, AARCH64 = 0xC000003E, 0xC00000B7


@pytest.mark.parametrize(
    ("machine", "architecture", "number", "sockets", "expected"),
    [
        ("x86_64", X86_64, 0, False, ALLOW),  # read
        ("x86_64", X86_64, 41, False, ERROR | errno.EPERM),  # socket
        ("x86_64", X86_64, 41, True, ALLOW),
        ("x86_64", X86_64, 53, False, ALLOW),  # socketpair
        ("x86_64", X86_64, 319, True, ERROR | errno.ENOSYS),  # memfd_create
        ("x86_64", X86_64, 101, True, ERROR | errno.EPERM),  # ptrace
        ("x86_64", X86_64, 425, True, ERROR | errno.ENOSYS),  # io_uring_setup
        ("x86_64", X86_64, 0x40000000, True, ERROR | errno.ENOSYS),  # the same calls with short pointers
        ("x86_64", 0x40000003, 359, True, ERROR | errno.ENOSYS),  # those of a 32-bit program
        ("aarch64", AARCH64, 63, False, ALLOW),  # read
        ("aarch64", AARCH64, 198, False, ERROR | errno.EPERM),  # socket
        ("aarch64", AARCH64, 117, True, ERROR | errno.EPERM),  # ptrace
        ("aarch64", AARCH64, 279, True, ERROR | errno.ENOSYS),  # memfd_create
    ],
)
def test_the_filter_refuses_calls(machine: str, architecture: int, number: int, sockets: bool, expected: int) -> None:
    """Numbers are those of the kernel's headers asm/unistd_64.h and asm-generic/unistd.h."""
    assert verdict(call_filter(machine, sockets=sockets), architecture, number) == expected


def test_there_is_no_filter_for_machines_whose_numbers_are_unknown() -> None:
    """And bubblewrap is not told to read one."""
    assert call_filter("riscv64", sockets=False) == b""
    assert pairs(list(order(Program(command=["a"])).argv), "--seccomp")[0][0] == str(FILTER_FD)


@pytest.mark.parametrize(
    ("cause", "status", "shell_codes", "expected"),
    [
        ("over", 0, False, ("exited", 0, None)),
        ("over", 3 << 8, False, ("exited", 3, None)),
        ("over", signal.SIGKILL, False, ("signalled", None, signal.SIGKILL)),
        ("over", signal.SIGXCPU, False, ("timed_out", None, None)),
        ("over", (128 + signal.SIGSEGV) << 8, True, ("signalled", None, signal.SIGSEGV)),
        ("over", (128 + signal.SIGSEGV) << 8, False, ("exited", 128 + signal.SIGSEGV, None)),
        ("over", 200 << 8, True, ("exited", 200, None)),
        ("time", signal.SIGKILL, False, ("timed_out", None, None)),
        ("memory", signal.SIGKILL, False, ("stopped", None, None)),
        ("files", signal.SIGKILL, True, ("stopped", None, None)),
        ("told", signal.SIGKILL, True, ("output_limit", None, None)),
    ],
)
def test_an_end_has_a_name(cause: str, status: int, shell_codes: bool, expected: tuple[object, ...]) -> None:
    """Wait statuses are those of wait(2): the exit code in the second byte, or else the signal."""
    assert ending(cause, status, shell_codes=shell_codes) == expected
