"""Who of a fleet is lost: looked for all the time, and at once where a call failed.

A member is lost where another process answers in its place, where nobody does, where a higher epoch was adopted there,
or where it has been silent for long. A single broken connection says nothing: the member is asked again. One that is
only slow is waited for. What is lost is told once, to `watch`; whoever asked about it waits until that ends the epoch.
"""

from collections.abc import Callable

import anyio

from participants import Capabilities, ParticipantError

from ..errors import CoordinationError
from ..fleet import Fleet, Member
from ..links import NoAnswer
from .world import Lost

LOOK_S = 1.0
"""Between two looks at a member."""
ANSWER_S = 5.0
"""How long one look waits."""
SILENT_S = 30.0
"""Who has not answered for so long hangs."""
AGAIN_S = 0.2
"""Between two tries of one look."""
TRIES = 3
NOTICE_S = 3.0
"""After so long a dead member has been noticed; one that is silent after as long as it takes to call it so."""
Gone = Callable[[], Lost]


def notice_s(error: CoordinationError) -> float:
    """After so long it is known whether a call failed because of a loss."""
    silent = any(isinstance(why, TimeoutError | NoAnswer) for why in error.failures.values())
    return SILENT_S + 2 * ANSWER_S + LOOK_S if silent else NOTICE_S


def changed(known: Capabilities, found: Capabilities, epoch: int) -> str | None:
    """Why what answers is not the member that was adopted in this epoch; None where it is."""
    if found.incarnation != known.incarnation:
        return "its process was started anew, and has nothing of what was there"
    if found.epoch > epoch > 0:
        return f"epoch {found.epoch} was adopted there"
    return None


class Losses:
    """Looks at the members of one fleet."""

    def __init__(self, fleet: Callable[[], Fleet], gone: Gone = dict) -> None:
        """`fleet` is it in its present epoch; `gone` tells at once which processes of this host have ended."""
        self._fleet = fleet
        self._gone = gone
        self._found: Lost = {}
        self._known = anyio.Event()
        self._heard: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Losses of {len(self._fleet().members)} members: {self._found}>"

    async def watch(self) -> Lost:
        """Return once somebody is lost."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_gone)
            for member in self._fleet().members:
                group.start_soon(self._watch_one, member)
            await self._known.wait()
            group.cancel_scope.cancel()
        return self._found

    async def certain(self, *members: Member) -> None:
        """Return once these are known to be there as they were; never where one of them is lost."""
        async with anyio.create_task_group() as group:
            for member in members:
                group.start_soon(self._certain, member)

    async def certain_of_all(self) -> None:
        """The same of everybody."""
        self._look_for_gone()
        await self.certain(*self._fleet().members)

    async def tell(self, name: str, why: str) -> None:
        """Something else is lost. Never returns."""
        self._lose(name, why)
        await anyio.sleep_forever()

    async def _certain(self, member: Member) -> None:
        while True:
            if await self._look(member):
                return
            await anyio.sleep(AGAIN_S)

    async def _watch_one(self, member: Member) -> None:
        while True:
            await self._look(member)
            await anyio.sleep(LOOK_S)

    async def _watch_gone(self) -> None:
        while True:
            self._look_for_gone()
            await anyio.sleep(AGAIN_S)

    def _look_for_gone(self) -> None:
        for name, why in self._gone().items():
            self._lose(name, why)

    async def _look(self, member: Member) -> bool:
        """Whether it answers as it did; False where that is not known yet. Never returns where it is lost."""
        why = ""
        for _ in range(TRIES):
            try:
                with anyio.fail_after(ANSWER_S):
                    found = await member.link.capabilities()
            except TimeoutError:
                why = self._silent(member)
                break
            except ParticipantError as error:
                why = str(error)
                break
            except ConnectionError as error:
                why = f"it does not answer: {error.why if isinstance(error, NoAnswer) else error}"
                await anyio.sleep(AGAIN_S)
            else:
                self._heard[member.name] = anyio.current_time()
                why = changed(member.capabilities, found, self._fleet().epoch) or ""
                if not why:
                    return True
                break
        if why:
            self._lose(member.name, why)
            await anyio.sleep_forever()
        return False

    def _silent(self, member: Member) -> str:
        silent_s = anyio.current_time() - self._heard.setdefault(member.name, anyio.current_time() - ANSWER_S)
        return f"it has not answered for {silent_s:.0f} s" if silent_s > SILENT_S else ""

    def _lose(self, name: str, why: str) -> None:
        self._found.setdefault(name, why)
        self._known.set()
