"""A process that gives up being the administrator, runs hostile programs contained, and says what each came to.

    python -m tests.participants.sandbox.unprivileged WAY

prints one line of JSON a program: its name, how it ended, what it said, what it left.
"""

import json
import os
import sys

import anyio

from participants.sandbox import Program, Sandbox, python_paths

from . import hostile, reaching
from .hostile import Hostile
from .ways import WAYS, Target, left_of, target

USER = 45_678
"""Nobody on any machine, it is hoped."""
START = {"python": [python_paths()[0], "-I", "-c"], "sh": ["sh", "-c"]}
QUICKLY = {"sleeps-for-ever", "ignores-every-signal", "stops-itself", "closes-its-output", "flood-of-both"}
"""Not once more: what rights the server has changes nothing about them."""
PROGRAMS = [one for one in (*hostile.ALL, *reaching.ALL) if one.language in START and one.name not in QUICKLY]


async def run_all(sandbox: Sandbox, aim: Target) -> None:
    """One after the other."""
    for program in PROGRAMS:
        await _run(sandbox, aim, program)


async def _run(sandbox: Sandbox, aim: Target, program: Hostile) -> None:
    command = [*START[program.language], program.source]
    ran = await sandbox.run(Program(command=command, environment=aim.environment), program.limits)
    said = ran.stdout.decode(errors="replace")[:2000] + ran.stderr.decode(errors="replace")[:500]
    left = left_of(aim.mark, os.getpid())
    print(json.dumps({"name": str(program), "ended": ran.ended, "said": said, "left": left}), flush=True)  # noqa: T201


async def _import_the_rest() -> None:
    """What is imported at first use must be there before the rights are gone."""
    await anyio.to_thread.run_sync(os.getpid)


def main() -> None:
    """Run them."""
    anyio.run(_import_the_rest)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    os.environ.clear()
    if not os.access(sys.executable, os.X_OK):
        sys.executable = python_paths()[0]
    with target() as aim:
        anyio.run(run_all, WAYS[sys.argv[1]](), aim)


if __name__ == "__main__":
    main()
