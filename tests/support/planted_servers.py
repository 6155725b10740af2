"""Resources servers with one planted mistake each, for the conformance kit to find.

`PLANTED` has of each wrong one the rule that it breaks and the shortest sequence that shows it, as the first words of
its steps. Both were written down by hand from the mistake, and not from what the kit said.
"""

import functools
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import anyio
import anyio.lowlevel

from participants import (
    Code,
    ParticipantError,
    Reply,
    Request,
    ResourcesServer,
    ResourcesSession,
    ToolError,
    tool,
)
from store import Life

from .right_servers import Adder, Echo, OwnAdder, SlowAdder, Sum

# Wrong ones: state that is not in the export


class FailsLate(Adder):
    """Verify fails once something was added."""

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        return {"reward": float({row["start"]: 0.0}[session.state["total"]])}


class KeepsOnSelf(Adder):
    """The total is in the instance, by session."""

    def __init__(self, name: str = "main", **options: Any) -> None:
        super().__init__(name, **options)
        self.totals: dict[str, int] = {}

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        self.totals[session.session_id] = row["start"]

    @tool
    async def add(self, session: ResourcesSession, n: int) -> dict[str, int]:
        """Add a number."""
        if n < 0:
            raise ToolError("only upwards")
        total = self.totals.get(session.session_id, 0) + n
        self.totals[session.session_id] = total
        return {"total": total}

    @tool
    async def look(self, session: ResourcesSession) -> dict[str, int]:
        """The total."""
        return {"total": self.totals.get(session.session_id, 0)}

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        return {"reward": 1.0}

    async def close_session(self, session: ResourcesSession) -> None:
        self.totals.pop(session.session_id, None)


class KeepsOnClass(KeepsOnSelf):
    """The total is in the class, by session."""

    table: ClassVar[dict[str, int]] = {}

    def __init__(self, name: str = "main", **options: Any) -> None:
        super().__init__(name, **options)
        self.totals = self.table


MODULE_TABLE: dict[str, int] = {}


class KeepsInModule(KeepsOnSelf):
    """The total is in the module, by session."""

    def __init__(self, name: str = "main", **options: Any) -> None:
        super().__init__(name, **options)
        self.totals = MODULE_TABLE


class KeepsLastRow(Adder):
    """All sessions have the goal of whichever was seeded last."""

    goal = 0

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await super().seed(session, row)
        type(self).goal = row["goal"]

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        return {"reward": float(self.goal)}


class GlobalChance(Adder):
    """Adds by the generator of the module `random`, which is in no export."""

    @tool
    async def add(self, session: ResourcesSession, n: int) -> dict[str, int]:
        """Add a number."""
        session.state["total"] += random.randrange(10**9)
        return {"total": session.state["total"]}


class ForgetsField(OwnAdder):
    """The moves are not exported."""

    async def export_session(self, session: ResourcesSession) -> Any:
        return {"total": session.state.total, "moves": 0}


class IgnoresField(OwnAdder):
    """The moves are not imported."""

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        await super().import_session(session, exported)
        session.state.moves = 0


class ExportsOld(OwnAdder):
    """What was imported is exported again, whatever has changed since."""

    def __init__(self, name: str = "main", **options: Any) -> None:
        super().__init__(name, **options)
        self.kept: dict[str, Any] = {}

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        await super().import_session(session, exported)
        self.kept[session.session_id] = exported

    async def export_session(self, session: ResourcesSession) -> Any:
        return self.kept.get(session.session_id) or await super().export_session(session)


# Exports and imports


class ExportsTuple(OwnAdder):
    """After two moves the export is a tuple, which JSON does not give back."""

    async def export_session(self, session: ResourcesSession) -> Any:
        exported = await super().export_session(session)
        return (exported,) if session.state.moves > 1 else exported


class ExportsAlias(Adder):
    """The export is the state itself."""

    async def export_session(self, session: ResourcesSession) -> Any:
        return session.state


class ExportEmpties(OwnAdder):
    """An export takes something away."""

    async def export_session(self, session: ResourcesSession) -> Any:
        exported = await super().export_session(session)
        session.state.moves = 0
        return exported


class TakesGarbage(OwnAdder):
    """What it cannot read is an empty sum."""

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        try:
            await super().import_session(session, exported)
        except TypeError:
            session.state = Sum(0)


# Clocks


class ExpiresByClock(Adder):
    """A session lives for a day, by the clock on the wall."""

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await super().seed(session, row)
        session.state["began"] = time.time()

    @tool
    async def look(self, session: ResourcesSession) -> dict[str, int]:
        """The total."""
        if abs(time.time() - session.state["began"]) > 24 * 3600:
            raise ToolError("too late")
        return {"total": session.state["total"]}


class ExpiresByMachine(Adder):
    """A session lives for a while, by a clock that another process does not share."""

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await super().seed(session, row)
        session.state["began"] = self.gate.active_time()

    @tool
    async def look(self, session: ResourcesSession) -> dict[str, int]:
        """The total."""
        if abs(self.gate.active_time() - session.state["began"]) > self.session_ttl_s:
            raise ToolError("too late")
        return {"total": session.state["total"]}


# Lives, seeds and closings


class SeedsApart(Adder):
    """Seeds that come at the same time get a session each."""

    seeding = 0

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await super().seed(session, row)
        return {"session": session.session_id}

    async def handle(self, request: Request) -> Reply:
        if request.route != "/seed_session" or not self.seeding:
            self.seeding += request.route == "/seed_session"
            try:
                await anyio.lowlevel.checkpoint()
                return await super().handle(request)
            finally:
                self.seeding -= request.route == "/seed_session"
        named = request.headers["x-resources-session-id"]
        return await super().handle(replace(request, headers={"x-resources-session-id": f"{named}-again"}))


class NeverRetires(Adder):
    """A retire is answered and not done."""

    async def retire(self, lives: Sequence[Life], timeout_s: float) -> list[Life]:
        return []


class ForgetsToClose(Adder):
    """Every session leaves a line."""

    def __init__(self, name: str = "main", **options: Any) -> None:
        super().__init__(name, **options)
        self.seen: dict[str, int] = {}

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await super().seed(session, row)
        self.seen[session.session_id] = row["start"]


class LeavesFolders(Adder):
    """Every session leaves a temporary folder."""

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await super().seed(session, row)
        await anyio.to_thread.run_sync(tempfile.mkdtemp)


class ClosesAll(Adder):
    """Who closes forgets all sessions, and not its own alone."""

    def __init__(self, name: str = "main", **options: Any) -> None:
        super().__init__(name, **options)
        self.known: set[str] = set()

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await super().seed(session, row)
        self.known.add(session.session_id)

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        return {"reward": float(session.session_id in self.known)}

    async def close_session(self, session: ResourcesSession) -> None:
        self.known.clear()


class LeavesThreads(Adder):
    """Each session starts a thread, which nobody ends before the process does."""

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await super().seed(session, row)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@functools.cache
def remembered(session_id: str) -> list[str]:
    """Kept for good, as everything in such a cache is."""
    return [session_id]


class LeavesCached(Adder):
    """Each session leaves an entry in the cache of a function."""

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await super().seed(session, row)
        remembered(session.session_id)


class AnswersTheDead(Adder):
    """A life that is over gets an answer."""

    async def handle(self, request: Request) -> Reply:
        try:
            return await super().handle(request)
        except ParticipantError as error:
            if error.code is Code.STALE_LIFE:
                return Reply(200, {})
            raise


class SeedsAnew(Adder):
    """A repeated seed begins the session anew."""

    async def handle(self, request: Request) -> Reply:
        if request.route == "/seed_session" and request.life is not None:
            held = await self.enter(request.life, creates=True)
            held.state.open.clear()
        return await super().handle(request)


class OpensClosed(Adder):
    """A seed opens what was closed."""

    async def handle(self, request: Request) -> Reply:
        if request.route == "/seed_session" and request.life is not None:
            (await self.enter(request.life, creates=True)).state.closed.clear()
        return await super().handle(request)


class DropsAll(Adder):
    """A restore that fails takes everything with it."""

    async def discard(self) -> None:
        await super().discard()
        for held in self.held():
            self.finish(held.life)


# Single calls


class BesideTheGate(SlowAdder):
    """Its tools are run without a step, so that no checkpoint knows of them."""

    async def handle(self, request: Request) -> Reply:
        if request.route != "/add" or request.life is None:
            return await super().handle(request)
        held = await self.enter(request.life)
        session = held.state.find(request.headers["x-resources-session-id"])
        reply = Reply(200, await self.call_tool(session, "add", request.body))
        session.changed()
        return reply


class LeavesBusy(SlowAdder):
    """A call that is cancelled leaves a mark that no later one gets past."""

    def __init__(self, name: str = "main", **options: Any) -> None:
        super().__init__(name, **options)
        self.busy: set[str] = set()

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        if session.session_id in self.busy:
            raise ToolError("busy")
        self.busy.add(session.session_id)
        given = await super().call_tool(session, name, arguments)
        self.busy.discard(session.session_id)
        return given


class RefusesHalfDone(OwnAdder):
    """A tool says no when it has already done half."""

    @tool
    async def add(self, session: ResourcesSession, n: int) -> dict[str, int]:
        """Add a number."""
        session.state.total += n
        if n < 0:
            raise ToolError("only upwards")
        session.state.moves += 1
        return {"total": session.state.total}


class CountsInSilence(Echo):
    """Declares that it keeps nothing, and counts in the session."""

    @tool
    async def say(self, session: ResourcesSession, text: str) -> str:
        """The text."""
        session.state["said"] = text
        return text


class NumbersWords(Echo):
    """Declares that it keeps nothing, and numbers its answers."""

    def __init__(self, name: str = "main", **options: Any) -> None:
        super().__init__(name, **options)
        self.said: dict[str, int] = {}

    @tool
    async def say(self, session: ResourcesSession, text: str) -> str:
        """The text."""
        number = self.said[session.session_id] = self.said.get(session.session_id, 0) + 1
        return f"{number} {text}"

    async def close_session(self, session: ResourcesSession) -> None:
        self.said.pop(session.session_id, None)


class VerifyTakes(OwnAdder):
    """Declares that verify changes nothing, and takes the total away."""

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        total, session.state.total = session.state.total, 0
        return {"reward": float(total)}


class VerifyCounts(Adder):
    """Declares that verify may run again, and pays once."""

    def __init__(self, name: str = "main", **options: Any) -> None:
        super().__init__(name, **options)
        self.paid: set[str] = set()

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        first = session.session_id not in self.paid
        self.paid.add(session.session_id)
        return {"reward": float(first)}

    async def close_session(self, session: ResourcesSession) -> None:
        self.paid.discard(session.session_id)


@dataclass(frozen=True)
class Planted:
    """A wrong server, the rule that it breaks, and the first words of the shortest sequence that shows it."""

    server: type[ResourcesServer]
    rule: str
    steps: str


PLANTED: Sequence[Planted] = (
    Planted(FailsLate, "cases-can-be-played", "seed add verify"),
    Planted(KeepsLastRow, "sessions-do-not-meet", "one: other: one:"),
    Planted(ClosesAll, "sessions-do-not-meet", "one: other: other: other: one:"),
    Planted(SeedsApart, "concurrent-seeds-are-one", "seed"),
    Planted(NeverRetires, "retiring-leaves-nothing", "seed retire"),
    Planted(ForgetsToClose, "closing-frees-everything", "seed verify close all"),
    Planted(LeavesFolders, "closing-frees-everything", "seed verify close all"),
    Planted(LeavesThreads, "closing-frees-everything", "seed verify close all"),
    Planted(LeavesCached, "closing-frees-everything", "seed verify close all"),
    Planted(ExportsTuple, "exports-can-be-written", "seed add add"),
    Planted(ExportsAlias, "exports-are-copies", "seed export_session add"),
    Planted(ExportEmpties, "a-checkpoint-changes-nothing", "seed a add a add"),
    Planted(KeepsOnSelf, "continued-equals-uninterrupted", "seed a add"),
    Planted(GlobalChance, "continued-equals-uninterrupted", "seed a add"),
    Planted(ForgetsField, "continued-equals-uninterrupted", "seed add a add"),
    Planted(IgnoresField, "continued-equals-uninterrupted", "seed add a add"),
    Planted(ExportsOld, "restored-three-times-over", "seed a add a add"),
    Planted(KeepsOnClass, "restored-in-another-process", "seed a add"),
    Planted(KeepsInModule, "restored-in-another-process", "seed a add"),
    Planted(ExpiresByClock, "restored-after-a-month", "seed a look"),
    Planted(ExpiresByMachine, "time-down-does-not-count", "seed idle parked a parked look"),
    Planted(AnswersTheDead, "stale-attempts-change-nothing", "seed a the"),
    Planted(SeedsAnew, "seeding-twice-is-seeding-once", "seed add a seed add"),
    Planted(OpensClosed, "closed-stays-closed", "close its"),
    Planted(DropsAll, "damaged-records-activate-nothing", "seed verify a"),
    Planted(TakesGarbage, "bad-states-are-refused", "seed a"),
    Planted(BesideTheGate, "a-checkpoint-waits-for-a-call", "seed a add at"),
    Planted(LeavesBusy, "a-cancelled-call-changes-nothing", "seed a add add"),
    Planted(RefusesHalfDone, "a-refused-call-changes-nothing", "seed a add add"),
    Planted(CountsInSilence, "stateless-keeps-nothing", "seed say"),
    Planted(NumbersWords, "stateless-keeps-nothing", "seed say say the"),
    Planted(VerifyTakes, "a-replayed-verify-changes-nothing", "seed a verify verify"),
    Planted(VerifyCounts, "a-replayed-verify-changes-nothing", "seed a verify verify"),
)


def first_words(steps: Sequence[str]) -> str:
    """The first word of each step."""
    return " ".join(step.split(" ")[0] for step in steps)
