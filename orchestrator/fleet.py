"""A fleet: the participant processes of a run as the controller knows them, and calls to all of them at once.

A participant that fails or hangs is data: `ask_all` returns an outcome a member and never cancels the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Generic, TypeVar

import anyio
from pydantic import BaseModel, ValidationError

from participants import Adopt, Adopted, Capabilities, Code, Floor, Message, ParticipantError, telemetry
from participants.telemetry import names
from participants.telemetry.operations import controlled

from .errors import ControlFailed, OtherStore
from .links import NAMES, Link

Answer = TypeVar("Answer", bound=BaseModel)

PREPARE_ORDER = ("environment", "model", "agent", "resources")
RESUME_ORDER = ("resources", "agent", "model", "environment")
CALL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Member:
    """One participant process, as discovered."""

    link: Link
    capabilities: Capabilities

    @property
    def name(self) -> str:
        """`<kind>.<name>/<process>`."""
        c = self.capabilities
        return f"{c.kind}.{c.name}/{c.process}"

    @property
    def kind(self) -> str:
        """Its kind."""
        return self.capabilities.kind


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Answer]):
    """What one member answered."""

    member: Member
    answer: Answer | None
    failure: Exception | None


@dataclass(frozen=True, slots=True)
class Fleet:
    """All members, and what every control call carries. Immutable: a new epoch or floor is a new fleet."""

    members: tuple[Member, ...]
    run: str
    epoch: int = 0
    floor: Floor = field(default_factory=Floor)

    def envelope(self, member: Member) -> dict[str, Any]:
        """Run, epoch, floor and incarnation for one member. Raises ParticipantError before an epoch is adopted."""
        if self.epoch < 1:
            problem = f"epoch {self.epoch} is none: claim one, which is 1 or higher, and adopt it before anything else"
            raise ParticipantError(Code.INVALID_REQUEST, problem)
        return {
            "run": self.run,
            "epoch": self.epoch,
            "floor": self.floor,
            "incarnation": member.capabilities.incarnation,
        }

    def of_kind(self, kind: str) -> tuple[Member, ...]:
        """The members of one kind."""
        return tuple(member for member in self.members if member.kind == kind)

    @property
    def participants(self) -> tuple[str, ...]:
        """`<kind>.<name>` of all, whatever processes serve them."""
        names = (f"{member.capabilities.kind}.{member.capabilities.name}" for member in self.members)
        return tuple(dict.fromkeys(names))

    def with_floor(self, floor: Floor) -> "Fleet":
        """The same with a raised floor."""
        return replace(self, floor=max(self.floor, floor))


async def discover(links: Sequence[Link], run: str) -> Fleet:
    """Ask every process what it is, and every other process of its server.

    Raises ControlFailed, naming those that do not answer or share a name, and servers that are not complete or do not
    agree about where their workers are; OtherStore, naming those whose store is another run's.
    """
    failures: dict[str, BaseException | str] = {}
    asked = await _ask_each(links, failures)
    alone = [member for member in asked if not member.capabilities.urls]
    served = {url: member.link.at(url) for member in asked for url in member.capabilities.urls}
    members = (*alone, *await _ask_each(list(served.values()), failures))
    names = [member.name for member in members]
    failures |= {name: "two processes have this name" for name in names if names.count(name) > 1}
    if failures := _at_odds(members) or failures or _incomplete(members):
        raise ControlFailed(failures)
    if others := {member.name: other for member in members if (other := member.capabilities.run) not in (None, run)}:
        raise OtherStore({name: f"it serves run {other}, and this is run {run}" for name, other in others.items()})
    return Fleet(members, run)


def _at_odds(members: Sequence[Member]) -> dict[str, BaseException | str]:
    """Servers whose workers hand calls on by different lists: they were started from different files.

    As many and each there once they may be nevertheless, as where hosts stand in another order.
    """
    lists: dict[str, dict[tuple[str, ...], Member]] = {}
    for member in members:
        c = member.capabilities
        if c.urls:
            lists.setdefault(f"{c.kind}.{c.name}", {}).setdefault(c.urls, member)
    return {
        role: f"{_lists_told(told)}: they were started from different files"
        for role, told in lists.items()
        if len(told) > 1
    }


def _lists_told(lists: Mapping[tuple[str, ...], Member]) -> str:
    """Who has which workers where: only what two of the lists do not have alike."""
    (urls, member), (others, other), *_ = lists.items()
    if len(urls) != len(others):
        return f"by {member.link!r} it has {len(urls)} workers, and by {other.link!r} {len(others)}"
    k = next(k for k in range(len(urls)) if urls[k] != others[k])
    return f"by {member.link!r} its w{k} is at {urls[k]}, and by {other.link!r} at {others[k]}"


def _incomplete(members: Sequence[Member]) -> dict[str, BaseException | str]:
    """Servers of which not each worker is there just once: its share of the rollouts would be nobody's, or twice."""
    servers: dict[str, list[Capabilities]] = {}
    for member in members:
        c = member.capabilities
        servers.setdefault(f"{c.kind}.{c.name}", []).append(c)
    return {
        name: f"workers {sorted(c.worker for c in found)} were found, and it has {max(c.workers for c in found)}"
        for name, found in servers.items()
        if sorted((c.worker, c.workers) for c in found) != [(k, len(found)) for k in range(len(found))]
    }


async def _ask_each(links: Sequence[Link], failures: dict[str, BaseException | str]) -> list[Member]:
    """Those that answered, in order; why the others did not goes to `failures`."""
    found: list[Member | None] = [None] * len(links)

    async def ask(position: int) -> None:
        try:
            with anyio.fail_after(CALL_TIMEOUT_S):
                found[position] = Member(links[position], await links[position].capabilities())
        except Exception as error:  # A bad participant is data: whatever it raised is reported, by name.
            failures[repr(links[position])] = error

    async with anyio.create_task_group() as group:
        for position in range(len(links)):
            group.start_soon(ask, position)
    return [member for member in found if member is not None]


async def ask_all(
    members: Sequence[Member],
    message: Callable[[Member], Message],
    answer: type[Answer],
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> list[Outcome[Answer]]:
    """Send each member its message, all at once, under one deadline; an outcome for each, in order."""
    outcomes: list[Outcome[Answer]] = [Outcome(member, None, _late(member, timeout_s)) for member in members]

    async def ask(position: int, member: Member) -> None:
        try:
            outcomes[position] = Outcome(member, await _asked(member, message(member), answer), None)
        except ValidationError as error:
            outcomes[position] = Outcome(member, None, _translated(error))
        except Exception as error:  # A bad participant is data: whatever it raised is reported, by name.
            outcomes[position] = Outcome(member, None, error)

    with anyio.move_on_after(timeout_s):
        async with anyio.create_task_group() as group:
            for position, member in enumerate(members):
                group.start_soon(ask, position, member)
    return outcomes


async def _asked(member: Member, message: Message, answer: type[Answer]) -> Answer:
    c = member.capabilities
    who = {"participant": f"{c.kind}.{c.name}", "process": c.process}
    with telemetry.span(names.CALL, operation=NAMES[type(message)], **who):
        return await member.link.send(message, answer)


def _late(member: Member, timeout_s: float) -> TimeoutError:
    return TimeoutError(f"no answer of {member.link!r} in {timeout_s:.3g} s")


def _translated(error: ValidationError) -> ParticipantError:
    """What is wrong with a message, as the participant would have said it."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"]) or error.title
    return ParticipantError(Code.INVALID_REQUEST, f"{where}: {first['msg']}")


def check_seconds(**given: float) -> None:
    """Raises ControlFailed for what is no time: NaN, endless or negative."""
    wrong = {name: f"{seconds!r} is no number of seconds" for name, seconds in given.items() if not 0 <= seconds < inf}
    if wrong:
        raise ControlFailed(wrong)


def failures_of(outcomes: Sequence[Outcome[Any]]) -> dict[str, BaseException | str]:
    """The failed ones, by name."""
    return {outcome.member.name: outcome.failure for outcome in outcomes if outcome.failure is not None}


async def adopt(fleet: Fleet, epoch: int, floor: Floor | None = None) -> tuple[Fleet, dict[str, Adopted]]:
    """Make a newly claimed epoch known everywhere, before anything else. Raises ControlFailed.

    Without a floor every older life ends. With `Floor()` all go on: `orchestrator.adoption` says from the answers which
    of them are whole, and the floor that the fleet should have then. A `retire` of the others comes next, even of none:
    until it does, their calls wait at processes that were started anew.
    """
    lifted = replace(fleet, epoch=epoch, floor=max(fleet.floor, floor or Floor(epoch, 0)))

    def message(member: Member) -> Adopt:
        return Adopt(**lifted.envelope(member))

    with controlled("adopt", epoch=epoch, members=len(fleet.members)):
        outcomes = await ask_all(fleet.members, message, Adopted)
        if failures := failures_of(outcomes):
            raise ControlFailed(failures)
    return lifted, {o.member.name: o.answer for o in outcomes if o.answer is not None}
