"""The process that is killed: claims, and then commits, publishes and prunes for ever, with a cursor that counts up.

Started with a URL and storage options, it forks one worker per line of its input, so that a kill costs a fork and not
the start of a Python. What a worker has done it says in lines: `pid`, `claimed <epoch>`, `published <id> <cursor>`,
`pruned`; `gone` comes from the parent of a worker that has ended.
"""

import dataclasses
import json
import os
import sys
import traceback
from typing import Any

import anyio

from store import Retention, claim, open_store, prune
from tests.support.checkpoints import SMALL_PARTS
from tests.support.rounds import Round, read_cursor

HURRIED = dataclasses.replace(SMALL_PARTS, liveness_beat_s=0.05, sweep_after_s=0.2)
"""Takes over from the dead soon, and sweeps what they left."""


def say(*words: object) -> None:
    """One line, in one write."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def work(url: str, options: dict[str, Any]) -> None:
    """Go on from the head, until killed."""
    async with open_store(url, "write", limits=HURRIED, storage_options=options) as store, claim(store) as controller:
        say("claimed", controller.epoch)
        cursor = await read_cursor(store, controller.head) if controller.head else 0
        while True:
            cursor += 1
            ref = await Round(store, controller, cursor).run()
            say("published", ref.checkpoint, cursor)
            report = await prune(store, Retention(keep_last=2))
            assert not report.failures, report.failures
            say("pruned")


def worker(url: str, options: dict[str, Any]) -> None:
    """Work; an error is said and ends the process."""
    say("pid", os.getpid())
    try:
        anyio.run(work, url, options)
    except BaseException:
        say("failed", json.dumps(traceback.format_exc()))
    os._exit(1)


def main() -> None:
    """Fork a worker for each line that comes in."""
    url, options = sys.argv[1], json.loads(sys.argv[2])
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            worker(url, options)
        os.waitpid(pid, 0)
        say("gone")


if __name__ == "__main__":
    main()
