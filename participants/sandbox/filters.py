"""The filter of system calls that every program runs under: a small program for the kernel, as bytes.

A program of classic BPF over `struct seccomp_data` (number of the call at offset 0, architecture at 4), as
linux/filter.h and linux/seccomp.h lay them out. Refused are calls that hold memory where no limit counts it, that reach
into other processes or the kernel, and, where no network namespace keeps them in, sockets.
"""

import errno
import struct

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4
_X32 = 0x40000000
"""From here on x86_64 counts the same calls once more, with short pointers."""

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""What the kernel calls them, linux/audit.h."""
_ABSENT = {"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "userfaultfd": (323, 282)}
_ABSENT |= {"io_uring_setup": (425, 425), "msgget": (68, 186)}
"""Memory that belongs to no process or file that is counted; and a way around the filter itself."""
_FORBIDDEN = {"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271)}
_FORBIDDEN |= {"bpf": (321, 280), "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217)}
_FORBIDDEN |= {"request_key": (249, 218), "kexec_load": (246, 104), "pidfd_getfd": (438, 438), "kcmp": (312, 272)}
_SOCKETS = {"socket": (41, 198)}
"""Not socketpair: that reaches nobody else."""


def call_filter(machine: str, *, sockets: bool) -> bytes:
    """The filter for a machine, as `platform.machine` names it; empty where its numbers are not known here."""
    if machine not in _MACHINES:
        return b""
    column = list(_MACHINES).index(machine)
    refused = {numbers[column]: errno.ENOSYS for numbers in _ABSENT.values()}
    refused |= {numbers[column]: errno.EPERM for numbers in _FORBIDDEN.values()}
    refused |= {} if sockets else {numbers[column]: errno.EPERM for numbers in _SOCKETS.values()}
    code = [_step(_LOAD, _ARCHITECTURE), _step(_EQUAL, _MACHINES[machine], 1, 0), _refuse(errno.ENOSYS)]
    code += [_step(_LOAD, _NUMBER)]
    code += [_step(_AT_LEAST, _X32, 0, 1), _refuse(errno.ENOSYS)] if machine == "x86_64" else []
    for number, error in refused.items():
        code += [_step(_EQUAL, number, 0, 1), _refuse(error)]
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _step(operation: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, operand)


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _ERROR | error)
