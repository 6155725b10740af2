"""What a peer is: something that takes episodes to their ends, and goes on with them after its process was killed.

A peer sees a `World`: where the model's replies and the tools come from. It is the same one for every peer, so what
differs between two figures is the peer. There are two kinds of world:

    standing    replies are made up at once; after so many turns every episode is held in its next model call
    live        replies come over HTTP from the deterministic backend, token by token, until the episode's end
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ChatMessage = dict[str, Any]
"""One of OpenAI's chat API."""


class Missing(RuntimeError):
    """A peer cannot run here."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer keeps what must survive."""

    folder: Path
    database_url: str = ""
    """Of a server that runs, for a peer that needs one."""
    durable: bool = True
    """False for the same work with nothing made durable, which is what the cost is compared with."""
    again: bool = False
    """Whether an earlier process was killed here."""


class World(Protocol):
    """Where episodes come from, and what they do."""

    base_url: str
    """Of the backend of a live world; empty in a standing one."""
    interval_s: float
    """Between two checkpoints of a peer that takes them by the clock."""
    at_once: int
    """Episodes in flight at most."""

    def begin(self) -> None:
        """The peer is open: from now on it works."""

    async def each(self, run: Callable[[int], Awaitable[None]]) -> None:
        """Run every episode that has not ended yet, so many at a time as the world allows."""

    async def ended(self, episode: int) -> None:
        """Wait until that episode has been given to `finish`, by whatever task or thread."""

    def start(self, episode: int) -> list[ChatMessage]:
        """How it begins."""

    async def model(self, episode: int, messages: Sequence[ChatMessage]) -> ChatMessage:
        """The model's next message; without `tool_calls` the episode is at its end."""

    async def tool(self, episode: int, message: ChatMessage) -> ChatMessage:
        """What the tool that the message calls says."""

    def finish(self, episode: int, messages: Sequence[ChatMessage]) -> None:
        """Write the finished row, durably; a second one of the same episode does nothing."""


@dataclass(frozen=True, slots=True)
class Saves:
    """What a peer does and does not save, for people."""

    restorable: str
    """When what is in flight can be restored."""
    tokens: str
    """Whether the exact tokens of a turn are restored, or generated again."""
    prefix: str
    """What becomes of the generation that is under way."""
    effects: str
    """How often a tool takes effect."""
    processes: str
    """Whether state in several processes is saved together."""
    whole: str
    """Whether all episodes are restored as of one moment, or none."""


class Peer(Protocol):
    """One way to make episodes durable."""

    title: str
    saves: Saves
    database: bool
    """Whether it needs a PostgreSQL server."""
    by_checkpoint: bool
    """Whether `settle` makes all that is in flight restorable, rather than each turn itself."""

    def versions(self) -> Mapping[str, str]:
        """Of the libraries that do the work, which are imported here. Raises ImportError where one is missing."""

    async def run(self, place: Place, world: World) -> None:
        """Start every episode, or go on with it from what is in the place, until all have ended."""

    async def settle(self) -> None:
        """Make what is in flight restorable, where that has not been done by now. Called once all are held."""


async def loop(
    world: World,
    episode: int,
    messages: list[ChatMessage],
    keep: Callable[[int, Sequence[ChatMessage]], None] | None = None,
) -> None:
    """The plain loop of an agent, from these messages to the end; `keep` gets the messages of each turn."""
    while True:
        said = await world.model(episode, messages)
        turn = [said]
        if said.get("tool_calls"):
            turn.append(await world.tool(episode, said))
        messages += turn
        if keep is not None:
            keep(episode, turn)
        if len(turn) == 1:
            world.finish(episode, messages)
            return
