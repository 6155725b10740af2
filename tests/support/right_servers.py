"""Small resources servers that keep every rule of the conformance kit, each in a way of its own."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import anyio

from participants import Case, Conformance, ResourcesServer, ResourcesSession, ToolCall, ToolError, tool


class Adder(ResourcesServer):
    """Adds; right in everything."""

    checkpoint_mode: ClassVar[Any] = "exported"
    checkpoint_verify: ClassVar[Any] = "replay"

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        session.state["total"] = row["start"]

    @tool
    async def add(self, session: ResourcesSession, n: int) -> dict[str, int]:
        """Add a number."""
        if n < 0:
            raise ToolError("only upwards")
        session.state["total"] += n
        return {"total": session.state["total"]}

    @tool
    async def look(self, session: ResourcesSession) -> dict[str, int]:
        """The total."""
        return {"total": session.state["total"]}

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        return {"reward": float(session.state["total"] == row["goal"])}

    @classmethod
    def conformance(cls) -> Conformance:
        """Some that reach their goal, and some that do not."""
        return Conformance(cases=[_case(start, right=start % 2 == 0) for start in range(1, 5)])


def _case(start: int, *, right: bool) -> Case:
    calls = [ToolCall(name="add", arguments={"n": n}) for n in (1, 2)]
    calls += [ToolCall(name="look"), ToolCall(name="add", arguments={"n": 3})]
    return Case(row={"start": start, "goal": start + (6 if right else 7)}, calls=calls, said="done")


# Right ones


@dataclass
class Sum:
    """A state that is no JSON."""

    total: int
    moves: int = 0


class OwnAdder(Adder):
    """Its state is an object, which it exports and imports."""

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        session.state = Sum(row["start"])

    @tool
    async def add(self, session: ResourcesSession, n: int) -> dict[str, int]:
        """Add a number."""
        if n < 0:
            raise ToolError("only upwards")
        session.state.total += n
        await anyio.lowlevel.checkpoint()
        session.state.moves += 1
        return {"total": session.state.total, "moves": session.state.moves}

    @tool
    async def look(self, session: ResourcesSession) -> dict[str, int]:
        """The total."""
        return {"total": session.state.total}

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        return {"reward": float(session.state.total == row["goal"])}

    async def export_session(self, session: ResourcesSession) -> Any:
        return {"total": session.state.total, "moves": session.state.moves}

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        if not isinstance(exported, dict) or exported.keys() != {"total", "moves"}:
            raise TypeError("not a sum")
        if not all(type(value) is int for value in exported.values()):
            raise TypeError("not a sum of whole numbers")
        session.state = Sum(**exported)


class ChanceAdder(Adder):
    """Begins by chance: two seeds of one row differ, and a continuation does not."""

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        session.state["total"] = random.SystemRandom().randrange(10**9)
        return {"total": session.state["total"]}


class WaitingAdder(Adder):
    """Its verify takes the total away, and so declares that it is waited for."""

    checkpoint_verify: ClassVar[Any] = "wait"

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        return {"reward": float(session.state.pop("total") == row["goal"])}


class SlowAdder(Adder):
    """Gives way in the middle of everything."""

    @tool
    async def add(self, session: ResourcesSession, n: int) -> dict[str, int]:
        """Add a number."""
        for _ in range(n):
            session.state["total"] += 1
            await anyio.lowlevel.checkpoint()
        return {"total": session.state["total"]}


class Echo(ResourcesServer):
    """Keeps nothing."""

    checkpoint_mode: ClassVar[Any] = "stateless"
    checkpoint_verify: ClassVar[Any] = "replay"

    @tool
    async def say(self, session: ResourcesSession, text: str) -> str:
        """The text."""
        return text

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        return {"reward": float(len(row["response"]["output"]) == row["wanted"])}

    @classmethod
    def conformance(cls) -> Conformance:
        calls = [ToolCall(name="say", arguments={"text": text}) for text in "ab"]
        return Conformance(cases=[Case(row={"wanted": wanted}, calls=calls) for wanted in (3, 5)])


class Undeclared(Adder):
    """Promises nothing."""

    checkpoint_mode: ClassVar[Any] = "restart"


class Meeting(Echo):
    """A verify waits until all of its cohort are there."""

    def __init__(self, name: str = "main", **options: Any) -> None:
        super().__init__(name, **options)
        self.there: dict[str, int] = {}
        self.all: dict[str, anyio.Event] = {}

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        cohort, size = row["cohort"], row["size"]
        event = self.all.setdefault(cohort, anyio.Event())
        self.there[cohort] = self.there.get(cohort, 0) + 1
        if self.there[cohort] == size:
            event.set()
            del self.there[cohort], self.all[cohort]
        await event.wait()
        return {"reward": 1.0 / size}

    @classmethod
    def conformance(cls) -> Conformance:
        sizes = {"pair": 2, "three": 3}
        rows = [{"cohort": name, "size": size} for name, size in sizes.items() for _ in range(size)]
        calls = [ToolCall(name="say", arguments={"text": "a"})]
        return Conformance(cases=[Case(row=row, calls=calls, cohort=str(row["cohort"])) for row in rows])


RIGHT: Sequence[type[ResourcesServer]] = (
    Adder,
    OwnAdder,
    ChanceAdder,
    WaitingAdder,
    SlowAdder,
    Echo,
    Undeclared,
    Meeting,
)
