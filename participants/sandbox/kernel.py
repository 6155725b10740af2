"""Calls of the Linux kernel that Python has no name for: private mounts, the filter of calls, Landlock.

Run by the keeper alone, which starts without the rest of the project.
"""

import ctypes
import os
import stat
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_NS, _NEW_NET = 0x00020000, 0x40000000
_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x40000
_SET_PDEATHSIG, _SET_SECCOMP, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 1, 22, 36, 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ = 0b1101
"""Of Landlock: execute, read a file, read a folder."""
_FOLDER_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights about files each version of Landlock knows; later ones know no more."""


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _prctl(option: int, value: int, pointer: object = None) -> None:
    _checked(_LIBC.prctl(option, ctypes.c_ulong(value), pointer, None, None))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent is gone."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal: int) -> None:
    """Get this signal when the thread that forked this process ends; a change of user forgets it."""
    _prctl(_SET_PDEATHSIG, signal)


def no_new_privileges() -> None:
    """No program that this process starts gets more rights than it has."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def install_filter(code: bytes) -> None:
    """Refuse system calls from here on, in this process and all that it starts."""
    buffer = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    _prctl(_SET_SECCOMP, 2, head)


def leave_network() -> None:
    """Have a network namespace of one's own, with nothing in it; needs rights."""
    _checked(_LIBC.unshare(_NEW_NET))


def stage(mounts: list[list[str]], at: str) -> None:
    """Mount each source at its target below `at`, in a mount namespace of this process alone; needs rights."""
    _checked(_LIBC.unshare(_NEW_NS))
    _checked(_LIBC.mount(b"none", b"/", None, _REC | _PRIVATE, None))
    sources = [os.open(source, os.O_PATH) for source, _ in mounts]
    _checked(_LIBC.mount(b"tmpfs", at.encode(), b"tmpfs", 0, b"mode=755,size=1m"))
    for source, (_, target) in zip(sources, mounts, strict=True):
        if stat.S_ISDIR(os.fstat(source).st_mode):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        _checked(_LIBC.mount(f"/proc/self/fd/{source}".encode(), os.fsencode(target), None, _BIND | _REC, None))
        os.close(source)


def landlock_version() -> int:
    """0 where the kernel has none, or it is off."""
    return max(0, int(_LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))))


def restrict_files(readable: list[str], writable: list[str], *, network: bool) -> bool:
    """Let this process and all that it starts see only these paths, and signal only each other; whether that can be.

    Layouts and numbers: linux/landlock.h.
    """
    version = landlock_version()
    if not version:
        return False
    every = (1 << _FOLDER_RIGHTS.get(version, 16)) - 1
    tcp = 0b11 if version >= 4 and not network else 0
    scoped = (0b10 if network else 0b11) if version >= 6 else 0
    rules = struct.pack("=QQQ", every, tcp, scoped)
    rules = rules[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _checked(_LIBC.syscall(_LANDLOCK_CREATE, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint(0)))
    for paths, rights in ((readable, _READ), (writable, every)):
        for path in paths:
            _allow(ruleset, path, rights & every)
    _checked(_LIBC.syscall(_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0)))
    os.close(ruleset)
    return True


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH)
    except FileNotFoundError:
        return
    # On a file only: execute, write, read, truncate, control of devices.
    of_file = 0b1100_0000_0000_0111
    allowed = rights if stat.S_ISDIR(os.fstat(opened).st_mode) else rights & of_file
    rule = struct.pack("=Qi", allowed, opened)
    _checked(_LIBC.syscall(_LANDLOCK_ADD, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0)))
    os.close(opened)
