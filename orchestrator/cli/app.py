"""The `midflight` script: what must be in place before anything of size is imported, and what is left when all fails.

1. A Ctrl-C ends the program with one line and exit code 130 from the first statement of `main` on, whatever is being
   imported. While a command runs, `signals.interruptible` makes it a KeyboardInterrupt: the command can clean up.
   `midflight collect` has its own three signals, from the same statement to the end of the process.
2. Streams 0 to 2 are open: a file of a store that got the number of a closed stream would be printed into.
3. Commands that work, rather than look, may have as many connections as the system allows.
4. Nothing that is printed fails for its characters: what the encoding lacks comes out as an escape.
"""

import os
import resource
import sys
import traceback
from contextlib import suppress

from .signals import hold_for_a_run, stop_at_interrupt

RUN = "collect"
"""The command that has signals of its own."""
FAILED = 4
BUG = 70
MOST_FILES = 2**20
"""Where the system has no limit of its own."""
WORKERS = {"collect", "backend", "serve", "up"}
"""Commands that print as they work, so that an OSError may come from either."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:2] == [RUN]:
        hold_for_a_run()
    else:
        stop_at_interrupt()
    open_streams()
    if WORKERS & {*sys.argv[1:2]}:
        allow_files()
    try:
        from .commands import run

        run()
    except Exception as error:
        if isinstance(error, OSError) and ("--help" in sys.argv or not WORKERS & {*sys.argv[1:2]}):
            # Help, the version or a usage error on its way out: whatever else fails, a command has told itself.
            _tell(f"midflight: cannot print: {os.strerror(error.errno or 0)}\n")
            _leave(getattr(error.__context__, "exit_code", FAILED))
        _tell(traceback.format_exc())
        _leave(BUG)


def allow_files() -> None:
    """Have as many open files as the system lets anybody have, rather than what a shell gives to small programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def open_streams() -> None:
    """Put something in the place of closed streams; a write to stdout still fails, and can then be told."""
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest free number
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")


def _tell(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _leave(code: int) -> None:
    """Without the flush of streams that cannot take it."""
    os._exit(code)
