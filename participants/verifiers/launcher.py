"""Stands where the program of a submission was: gives up all files but the program's own, and becomes the program.

A problem's run script starts the submission beside the expected output and the checker. With this in its place, what
the submission can open is the system's libraries, `input.txt`, the named pipes among its arguments, and nothing else;
where the script leaves it the stdout that the score is read from, it gets stderr instead.

A script may hide how it went, so it is written down, as one letter of `TRACE` for each start.

It runs inside the sandbox by itself, with `kernel.py` of the sandbox beside it, and imports nothing else of ours.
"""

import importlib
import os
import resource
import stat
import sys

UNABLE = 126
KEPT = ".kept"
"""Ends the name of the program itself."""
SCORE, MEMORY = "MIDFLIGHT_SCORE", "MIDFLIGHT_MEMORY"
TRACE, STARTED, FAILED = ".midflight/trace", b"s", b"f"
READABLE = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def is_pipe(path: str) -> bool:
    """Whether it is a named pipe."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def identity(descriptor: int) -> str:
    """What tells one open file from others."""
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


def keep_off_score(channel: str) -> None:
    """Nothing that the program writes may be taken for its score."""
    if identity(2) == channel:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if identity(1) == channel:
        os.dup2(2, 1)


def main(kept: str, root: str, arguments: list[str]) -> None:
    """Become the program at `kept`, with the arguments of this one; returns only where that cannot be."""
    os.closerange(3, 65_536)
    trace = os.open(os.path.join(root, TRACE), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        become(kept, root, arguments, trace)
    except Exception as error:
        os.write(trace, FAILED)
        os.write(2, f"the submission was not started: {error!r}\n".encode())


def become(kept: str, root: str, arguments: list[str], trace: int) -> None:
    """As `main`, and raise what goes wrong."""
    sys.path.insert(0, os.path.join(root, ".midflight"))
    restrict_files = importlib.import_module("kernel").restrict_files
    keep_off_score(os.environ.pop(SCORE))
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (most, most))  # As deep as its memory allows.
    if memory := int(os.environ.pop(MEMORY, "0")):
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    pipes = [path for path in arguments if is_pipe(path)]
    readable = [*READABLE, kept, os.path.join(root, "input.txt")]
    if not restrict_files(readable, [*DEVICES, *pipes], network=False):
        raise OSError("this kernel has no Landlock")
    os.write(trace, STARTED)
    os.execv(kept, [sys.argv[0], *arguments])


if __name__ == "__main__":
    own = os.path.abspath(__file__)
    main(own + KEPT, os.path.join(os.path.dirname(own), globals()["ROOT"]), sys.argv[1:])
    os._exit(UNABLE)
