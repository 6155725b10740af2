"""The process that a peer works in, and that is killed: `python -m bench.peers.child JSON`.

It says on stdout, a JSON object a line, how far it has come; then it goes on until it is killed, or until all episodes
have ended.
"""

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio

from .peers import PEERS
from .protocol import Peer, Place
from .worlds import LiveWorld, Mark, StandingWorld


@dataclass(frozen=True, slots=True)
class Order:
    """What a child is to do; as JSON on its command line."""

    peer: str
    folder: str
    database_url: str = ""
    durable: bool = True
    again: bool = False
    episodes: int = 0
    """Of a standing world."""
    turns: int = 0
    record_bytes: int = 0
    base_url: str = ""
    """Of the backend of a live world."""
    at_once: int = 0
    interval_s: float = 0.0

    @property
    def place(self) -> Place:
        """Where."""
        return Place(Path(self.folder), self.database_url, self.durable, self.again)


def say(name: str, mark: Mark | None = None, **facts: Any) -> None:
    """One line about a moment, by default this one."""
    print(json.dumps({"mark": name} | asdict(mark or Mark.now()) | facts), flush=True)


async def stand(peer: Peer, order: Order) -> None:
    """Until all are held; then make that restorable, and wait to be killed."""
    world = StandingWorld(order.episodes, order.turns, order.record_bytes)
    say("ready")
    async with anyio.create_task_group() as group:
        group.start_soon(peer.run, order.place, world)
        await world.all_held()
        for name, mark in world.marks.items():
            say(name, mark, calls=world.calls, digest=world.digest)
        say("seen")
        if order.durable and not order.again:
            await peer.settle()
        say("settled")
        await anyio.sleep_forever()


async def live(peer: Peer, order: Order) -> None:
    """To the end."""
    world = LiveWorld(order.base_url, Path(order.folder), order.at_once, order.interval_s)
    say("ready")
    await peer.run(order.place, world)
    say("ended")


def main() -> None:
    """Do what the command line orders."""
    order = Order(**json.loads(sys.argv[1]))
    peer = PEERS[order.peer]()
    peer.versions()
    asyncio.run((live if order.base_url else stand)(peer, order))


if __name__ == "__main__":
    main()
