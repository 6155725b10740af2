"""A process that runs a program contained: what tests kill, fork, and take rights from.

    python -m tests.participants.sandbox.server WAY MARK [forked | copied] COMMAND...

prints how the program ended. `forked`: it is a worker, forked from a supervisor. `copied`: once the program runs, it
forks a process that has all its descriptors, and prints the id of that one.
"""

import os
import signal
import sys

import anyio
import anyio.to_thread

from participants.sandbox import Program, SandboxLimits
from tests.support.waiting import until

from .ways import MARK, WAYS, processes_marked


async def serve(way: str, mark: str, command: list[str]) -> None:
    """Run it with much time."""
    ran = await WAYS[way]().run(
        Program(command=command, environment={MARK: mark, "TARGET_PID": str(os.getpid())}), SandboxLimits(wall_s=300.0)
    )
    print(ran.ended, ran.exit_code, ran.stdout.decode(errors="replace").strip(), flush=True)  # noqa: T201


async def serve_and_fork(way: str, mark: str, command: list[str]) -> None:
    """As a hook of an author might."""
    async with anyio.create_task_group() as group:
        group.start_soon(serve, way, mark, command)
        await anyio.to_thread.run_sync(until, lambda: processes_marked(mark))
        if (copy := os.fork()) == 0:
            signal.pause()
        print(copy, flush=True)  # noqa: T201


def main() -> None:
    """As the arguments say."""
    way, mark, *command = sys.argv[1:]
    if command[0] == "copied":
        anyio.run(serve_and_fork, way, mark, command[1:])
        return
    if command[0] == "forked":
        # As a worker of a server begins: forked with its signals held back, and with a hook for forks of its own.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
        command = command[1:]
        if (worker := os.fork()) != 0:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
        os.register_at_fork(after_in_child=lambda: os._exit(99))
    anyio.run(serve, way, mark, command)


if __name__ == "__main__":
    main()
