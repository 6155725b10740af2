"""The process that is killed: continues each rollout with a new life, and appends rows to it for ever.

One worker runs per line of input, as `tests.support.children` starts it. What is durable it says in lines:
`begun <life> <rows>`, `row <life> <index> <chain>`, `frozen <life> <rows>`, `ended <life>`, `deleted <life>`.
"""

import json
import os
import sys
import traceback

import anyio
import anyio.to_thread

from participants.ledger import CaptureKey, Ledger
from participants.ledger.files import Disk, Layout
from store import Life
from tests.support.ledgers import entry, record

ROLLOUTS = tuple(f"r{n}" for n in range(6))


def say(*words: object) -> None:
    """One line, in one write."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def lives_of(root: str, rollout: str) -> list[Life]:
    """The lives of a rollout that have a ledger, oldest first."""
    return await anyio.to_thread.run_sync(Layout(root, Disk()).lives, rollout)


async def episode(ledger: Ledger, root: str, rollout: str) -> None:
    """Go on from what the life before has left, as a restore would."""
    lives = await lives_of(root, rollout)
    source = lives[-1] if lives else None
    carried = [row.to_json() for row in await ledger.rows(str(CaptureKey.of(source)))] if source else []
    life = Life(rollout, source.epoch + 1, source.attempt + 1, 0) if source else Life(rollout, 1, 0, 0)
    await ledger.begin(life, carried, source, clear=True)
    say("begun", life, len(carried))
    for old in lives[:-1]:
        await ledger.delete(old)
        say("deleted", old)
    context: list[int] = []
    for k in range(len(carried), 10**6):
        prompt = [*context, k]
        row = await ledger.append(life, entry(k, prompt, [k + 1, k + 2]), record(k) if k % 3 else None)
        say("row", life, row.index, row.chain)
        context = [*prompt, k + 1, k + 2] if k % 7 else []
        if k % 10 == 9:
            receipt = await ledger.freeze(str(CaptureKey.of(life)), f"v{k}")
            say("frozen", life, receipt.rows)


async def work(root: str) -> None:
    """All rollouts at once, until killed."""
    ledger = Ledger(root)
    async with anyio.create_task_group() as group:
        for rollout in ROLLOUTS:
            group.start_soon(episode, ledger, root, rollout)


def worker(root: str) -> None:
    """Work; an error is said and ends the process."""
    say("pid", os.getpid())
    try:
        anyio.run(work, root)
    except BaseException:
        say("failed", json.dumps(traceback.format_exc()))
    os._exit(1)


def main() -> None:
    """Fork a worker for each line that comes in."""
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            worker(sys.argv[1])
        os.waitpid(pid, 0)
        say("gone")


if __name__ == "__main__":
    main()
