"""Small servers, a caller that speaks for one life, and a checkpoint and restore without a store."""

from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio

from participants.data import CallId, Reply, Request
from participants.resources import ResourcesServer
from participants.sessions import ResourcesSession
from participants.tools import ToolError, tool
from store import DEFAULT_LIMITS, CheckpointId, Life, RawRecord, Record
from store.records import encode_line
from store.values import BlobPlan

LIFE = Life("r0", 1, 0, 0)
NEXT = Life("r0", 2, 1, 0)
RESPONSE: dict[str, Any] = {"output": []}


class Notebook(ResourcesServer):
    """Keeps a list of words; its hooks can be held and made to fail."""

    checkpoint_mode = "exported"

    def __init__(self, **options: Any) -> None:
        """Hooks are not held, and everything that ran is in `log`."""
        super().__init__(**options)
        self.log: list[str] = []
        self.hold: anyio.Event | None = None

    async def _pause(self) -> None:
        if self.hold is not None:
            await self.hold.wait()

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """Begin with the row's words."""
        self.log.append("seed")
        session.state["words"] = row.get("words", [])
        await self._pause()
        return {"size": len(session.state["words"])}

    @tool
    async def add(self, session: ResourcesSession, word: str, fail: bool = False, refuse: bool = False) -> list[str]:
        """Add a word, half done if it is to fail."""
        self.log.append(f"add {word}")
        session.state["words"].append(word)
        await self._pause()
        if refuse:
            raise ToolError("no such word")
        if fail:
            raise RuntimeError("out of ink")
        words: list[str] = session.state["words"]
        return words

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """The number of words; takes them away."""
        words = session.state.pop("words")
        self.log.append(f"verify {len(words)}")
        await self._pause()
        return {"reward": len(words)}


class ReplayNotebook(Notebook):
    """A checkpoint does not wait for its verify."""

    checkpoint_verify = "replay"


class Drawer(ResourcesServer):
    """Keeps objects that are no JSON, and exports them itself."""

    checkpoint_mode = "exported"

    def __init__(self, **options: Any) -> None:
        """Nothing was closed."""
        super().__init__(**options)
        self.closed: list[str] = []
        self.exports = 0

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        """An empty drawer."""
        session.state = set()

    @tool
    async def put(self, session: ResourcesSession, thing: str, fail: bool = False) -> int:
        """Put a thing in."""
        session.state.add(thing)
        if fail:
            raise RuntimeError("stuck")
        return len(session.state)

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """The number of things."""
        return {"reward": len(session.state)}

    async def export_session(self, session: ResourcesSession) -> list[str]:
        """The things, in order."""
        self.exports += 1
        return sorted(session.state)

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        """The things again."""
        if not isinstance(exported, list):
            raise TypeError("not a list of things")
        session.state = set(exported)

    async def close_session(self, session: ResourcesSession) -> None:
        """Note it."""
        self.closed.append(session.session_id)


@dataclass(slots=True)
class Caller:
    """Makes calls of one life, each with the next id unless told otherwise."""

    server: ResourcesServer
    life: Life | None = LIFE
    session: str = "s"
    role: str = "agent.main"
    boundary: int = 0
    count: int = field(default=0)

    async def __call__(self, route: str, body: Any = None, *, call: CallId | None = None, session: str = "") -> Reply:
        """One call; a new boundary each time."""
        if call is None and self.life is not None:
            self.boundary += 1
            call = CallId(self.role, self.boundary, 0)
        headers = {"x-resources-session-id": session or self.session} if session or self.session else {}
        request = Request(route=route, body={} if body is None else body, life=self.life, call=call, headers=headers)
        return await self.server.handle(request)


async def checkpoint(server: ResourcesServer, scope: Collection[Life]) -> list[RawRecord]:
    """What a commit would write, as lines."""
    await server.freeze(scope)
    server.check_export()
    return [as_line(record) for record in (await server.export(scope)).records]


def as_line(record: Record | RawRecord) -> RawRecord:
    """As a commit writes it."""
    if isinstance(record, RawRecord):
        return record
    line = encode_line(record, BlobPlan(CheckpointId(1, 1), (), DEFAULT_LIMITS))
    return RawRecord(record.life, line.data)


async def restore(server: ResourcesServer, records: Iterable[RawRecord]) -> None:
    """Stage, activate and settle."""
    records = list(records)

    async def each() -> AsyncIterator[RawRecord]:
        for record in records:
            yield record

    await server.stage({record.life for record in records}, each(), epoch=2)
    server.activate()
    server.settle()
