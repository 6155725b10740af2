"""The controller cut off from one host: what it sends there vanishes, and may be sent again, late, once that is healed.

The controller gives up on a host that is silent after SILENCE_S; what a participant does then is up to its lease alone.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.to_thread

from orchestrator.links import Link
from participants import Capabilities, Finished, Message, ParticipantError, Status
from tests.scenarios.controller import Controller
from tests.support.owners import Answer

from .places import CONTROLLER, PLACES, HostPlot

SILENCE_S = 2.0


@dataclass(slots=True)
class Cut:
    """One cut, which is not made yet."""

    plot: HostPlot
    host: str
    at: float | None = None
    """When it was made."""
    lost: list[tuple[str, Message, type[Any]]] = field(default_factory=list)
    """What was sent to whom, and never answered."""
    _sending: set[anyio.CancelScope] = field(default_factory=set)

    @property
    def roles(self) -> set[str]:
        """Of the servers that are cut off."""
        return {role for role, host in PLACES.items() if host == self.host}

    def watch(self, controller: Controller) -> None:
        """From here on the controller's calls to the host are given up once it is silent."""
        controller.fleet = replace(
            controller.fleet,
            members=tuple(
                replace(m, link=WatchedLink(m.name, m.link, self)) if _role(m.name) in self.roles else m
                for m in controller.fleet.members
            ),
        )

    async def make(self) -> None:
        """Let everything between the controller and the host vanish."""
        await anyio.to_thread.run_sync(self.plot.network.cut, CONTROLLER, self.host)
        self.at = anyio.current_time()
        for scope in self._sending:
            scope.deadline = self.at + SILENCE_S

    def heal(self) -> None:
        """Let them reach each other again."""
        self.plot.network.heal()
        self.at = None

    async def send(self, name: str, link: Link, message: Message, answer: type[Answer]) -> Answer:
        """One call to a member at the host. Raises ConnectionError where the cut has it."""
        with anyio.CancelScope() as scope:
            if self.at is not None:
                scope.deadline = anyio.current_time() + SILENCE_S
            self._sending.add(scope)
            try:
                return await link.send(message, answer)
            finally:
                self._sending.discard(scope)
        self.lost.append((name, message, answer))
        raise ConnectionError("silence")

    async def send_late(self, controller: Controller) -> dict[str, str]:
        """Send again what was lost; the code of each refusal, by operation, and `""` for what is answered."""
        links = {member.name: member.link for member in controller.fleet.members}
        said = {}
        for name, message, answer in self.lost:
            try:
                await links[name].send(message, answer)
            except ParticipantError as error:
                said[type(message).__name__] = str(error.code)
            else:
                said[type(message).__name__] = ""
        return said


class WatchedLink:
    """A link to a host that may be cut off."""

    def __init__(self, name: str, inner: Link, cut: Cut) -> None:
        self._name, self._inner, self._cut = name, inner, cut

    async def capabilities(self) -> Capabilities:
        return await self._inner.capabilities()

    async def status(self, blockers: int = 20) -> Status:
        return await self._inner.status(blockers)

    def results(self, envelope: Mapping[str, Any], after: int) -> AsyncGenerator[Finished]:
        return self._inner.results(envelope, after)

    def at(self, url: str) -> Link:
        return WatchedLink(self._name, self._inner.at(url), self._cut)

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        return await self._cut.send(self._name, self._inner, message, answer)


def _role(member: str) -> str:
    return member.partition("/")[0]
