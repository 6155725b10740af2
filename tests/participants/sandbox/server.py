"""A process that runs a program contained: what tests kill, fork, and take rights from.

    python -m tests.participants.sandbox.server WAY MARK [forked] COMMAND...

prints how the program ended.
"""

import os
import signal
import sys

import anyio

from participants.sandbox import Program, SandboxLimits

from .ways import MARK, WAYS


async def serve(way: str, mark: str, command: list[str]) -> None:
    """Run it with much time."""
    ran = await WAYS[way]().run(
        Program(command=command, environment={MARK: mark, "TARGET_PID": str(os.getpid())}), SandboxLimits(wall_s=300.0)
    )
    print(ran.ended, ran.exit_code, ran.stdout.decode(errors="replace").strip(), flush=True)  # noqa: T201


def main() -> None:
    """As the arguments say."""
    way, mark, *command = sys.argv[1:]
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
