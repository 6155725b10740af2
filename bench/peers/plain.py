"""Peers that need no more than Python: finished rows only, and a row in SQLite for each turn."""

import importlib
import json
import platform
import sqlite3
from collections.abc import Mapping, Sequence

from .protocol import ChatMessage, Place, Saves, World, loop


class FinishedRows:
    """What most evaluation harnesses do: a line for each finished episode; the others start over."""

    title = "finished rows only"
    database = False
    by_checkpoint = False
    saves = Saves(
        restorable="never: only what has ended is kept",
        tokens="generated again",
        prefix="lost",
        effects="again, all of the episode's",
        processes="no",
        whole="no",
    )

    def versions(self) -> Mapping[str, str]:
        """Python's."""
        return {"python": platform.python_version()}

    async def run(self, place: Place, world: World) -> None:
        """The plain loop."""
        world.begin()

        async def episode(number: int) -> None:
            await loop(world, number, world.start(number))

        await world.each(episode)

    async def settle(self) -> None:
        """There is no way to."""


class SqliteRows:
    """A row a turn in SQLite, on the disk before the next turn begins."""

    title = "SQLite row per turn"
    database = False
    by_checkpoint = False
    saves = Saves(
        restorable="after every turn",
        tokens="whatever one puts into the row",
        prefix="lost",
        effects="again, those of the turn that was cut",
        processes="one process writes",
        whole="no, each episode by itself",
    )

    def versions(self) -> Mapping[str, str]:
        """SQLite's."""
        return {"sqlite": sqlite3.sqlite_version}

    async def run(self, place: Place, world: World) -> None:
        """Read what there is, then the plain loop with an insert a turn."""
        held: dict[int, list[ChatMessage]] = {}
        keep = None
        if place.durable:
            database = sqlite3.connect(place.folder / "turns.sqlite")
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS turns (id INTEGER PRIMARY KEY, episode INTEGER, messages TEXT)"
            )
            for number, text in database.execute("SELECT episode, messages FROM turns ORDER BY id"):
                held.setdefault(number, []).extend(json.loads(text))

            def keep(number: int, turn: Sequence[ChatMessage]) -> None:
                with database:
                    database.execute("INSERT INTO turns (episode, messages) VALUES (?, ?)", (number, json.dumps(turn)))

        world.begin()

        async def episode(number: int) -> None:
            messages = [*world.start(number), *held.get(number, ())]
            if messages[-1]["role"] == "assistant":  # Killed between the last turn and the finished row.
                world.finish(number, messages)
            else:
                await loop(world, number, messages, keep)

        await world.each(episode)

    async def settle(self) -> None:
        """Every turn has been."""


def imported(*names: str) -> None:
    """Import them. Raises ImportError."""
    for name in names:
        importlib.import_module(name)
