"""The participants of a run as servers of their own, in one epoch: see `World` for what each method is for.

A rollout belongs to one worker of each server, and only that one is asked about it; resources servers may have another
key, so all of their workers are told what ends. A call that fails for the want of its server is made again until it is
known that the server is lost. That is safe: every operation here does the same when it comes twice.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from participants import Code, Done, Floor, Message, ParticipantError, Result, Status
from participants.routing import worker_of
from participants.wire import Dispatched, Finished, Release, Submit, Submitted, Worked
from participants.wire import Work as AskWork
from participants.work import joined
from store import Life
from store.tasks import open_group

from ..coordination import retire
from ..deployment.config import MAIN_MODEL
from ..errors import ControlFailed, CoordinationError
from ..fleet import CALL_TIMEOUT_S, Fleet, Member
from .losses import Gone, Losses, notice_s
from .saved import Work
from .world import Lost, blames_a_loss, refusal

Answer = TypeVar("Answer")

RETRY_S = 0.1
"""Before a call is made again whose server is there after all."""
MOST_BLOCKERS = 100_000
OF_A_LOSS = frozenset({Code.WRONG_INCARNATION, Code.STALE_EPOCH, Code.UNAUTHORIZED})
"""What only another process than the known one answers, or one that another controller has adopted."""
PASSING = frozenset({Code.INVALID_PHASE, Code.ADMISSION_CLOSED})
"""What a member answers that has not heard of the end of a round yet; its lease ends it."""


class ServedWorld:
    """The members of one fleet."""

    def __init__(self, fleet: Fleet, gone: Gone = dict) -> None:
        """`gone` tells which processes of this host have ended."""
        self.fleet: Fleet | None = fleet
        self._losses = Losses(self._now, gone)

    def __repr__(self) -> str:
        return f"<ServedWorld of {len(self._now().members)} members, {self._losses!r}>"

    def _now(self) -> Fleet:
        assert self.fleet is not None
        return self.fleet

    def notice_s(self, error: CoordinationError) -> float:
        """Silence takes longer than a refusal."""
        return notice_s(error)

    # Episodes

    async def dispatch(self, rows: Mapping[Life, Mapping[str, Any]]) -> dict[Life, dict[str, Any]]:
        """In one batch for each environment worker."""
        refused: dict[Life, dict[str, Any]] = {}

        async def submit(member: Member, lives: Sequence[Life]) -> None:
            episodes = tuple(Dispatched(life=life, row=dict(rows[life])) for life in lives)
            answer = await self._send(member, partial(Submit, episodes=episodes), Submitted)
            refused.update({one.life: refusal(one.message, terminal=one.terminal) for one in answer.refused})

        await self._to_owners(self._now().of_kind("environment"), list(rows), submit)
        return refused

    async def read_results(self, send: MemoryObjectSendStream[Result]) -> None:
        """One stream for each environment worker."""
        async with open_group() as group:
            for member in self._now().of_kind("environment"):
                group.start_soon(self._read_results, member, send)

    async def _read_results(self, member: Member, send: MemoryObjectSendStream[Result]) -> None:
        after = 0
        while True:
            try:
                async with aclosing(member.link.results(self._now().envelope(member), after)) as stream:
                    async for finished in stream:
                        await send.send(_result(finished))
                        after = finished.n
            except ConnectionError:
                pass  # As where it ends: who is there goes on from the cursor.
            except ParticipantError as error:
                if error.code not in OF_A_LOSS:
                    raise ControlFailed({member.name: error}) from error
            await self._losses.certain(member)
            await anyio.sleep(RETRY_S)

    async def check(self, results: Sequence[Result]) -> None:
        """Ask everybody, where a failure may come of a loss; one of an earlier epoch comes of what ended that."""
        blaming = [result.life for result in results if blames_a_loss(result)]
        if blaming:
            await self._losses.certain_of_all()
        if old := [life for life in blaming if life.epoch < self._now().epoch]:
            await self._losses.tell("episodes", f"{len(old)} ended for want of what was lost before, such as {old[0]}")

    async def certain(self) -> None:
        """Return once it is known that nobody is lost."""
        await self._losses.certain_of_all()

    async def release(self, lives: Sequence[Life]) -> None:
        """Everybody who may hold something of them."""

        async def tell(member: Member, own: Sequence[Life]) -> None:
            await self._send(member, partial(Release, lives=tuple(own)), Done)

        async with open_group() as group:
            for kind, name in {(m.kind, m.capabilities.name) for m in self._now().members if m.kind != "resources"}:
                workers = [m for m in self._now().of_kind(kind) if m.capabilities.name == name]
                group.start_soon(self._to_owners, workers, lives, tell)
            for member in self._now().of_kind("resources") if lives else ():
                group.start_soon(tell, member, lives)

    async def end(self, lives: Sequence[Life], timeout_s: float) -> None:
        """By a retire everywhere; one of no lives says that all go on (see `participants.undecided`)."""
        while True:
            try:
                await retire(self._now(), lives, timeout_s=timeout_s)
                return
            except ControlFailed as error:
                if not all(_passes(failure) for failure in error.failures.values()):
                    raise
            await self._losses.certain_of_all()
            await anyio.sleep(RETRY_S)

    # What is known of them

    async def saved(self, rollout_ids: Sequence[str]) -> dict[str, Work]:
        """From what the restore has brought them."""
        return await self._work(tuple(rollout_ids))

    async def work(self) -> dict[str, Work]:
        """From all that work for the policy: no resources servers, nor models that those ask."""
        return await self._work(None)

    async def _work(self, rollouts: tuple[str, ...] | None) -> dict[str, Work]:
        answers: list[tuple[str, Worked]] = []

        async def ask(member: Member) -> None:
            with suppress(ControlFailed):  # As of a record that is malformed: its dispatch says what is wrong with it.
                answers.append((member.kind, await self._send(member, partial(AskWork, rollouts=rollouts), Worked)))

        await self._to_all([m for m in self._now().members if m.kind in ("environment", "agent") or _is_policy(m)], ask)
        return {rollout_id: Work(*count) for rollout_id, count in joined(answers).items()}

    async def blocking(self) -> list[Life]:
        """From everybody's status."""
        found: dict[Life, None] = {}

        async def ask(member: Member) -> None:
            status: Status = await self._ask(member, lambda: member.link.status(MOST_BLOCKERS))
            found.update(dict.fromkeys(blocker.life for blocker in status.blockers))

        await self._to_all(self._now().members, ask)
        return list(found)

    def undeclared(self) -> list[str]:
        """Those whose sessions start over after a crash, whether they say it or say nothing."""
        members = self._now().of_kind("resources")
        found = (m for m in members if m.capabilities.modes.checkpoint_mode == "restart")
        return list(dict.fromkeys(f"{member.kind}.{member.capabilities.name}" for member in found))

    def raise_floor(self, floor: Floor) -> None:
        """With the next call."""
        self.fleet = self._now().with_floor(floor)

    async def watch(self) -> Lost:
        """By looking."""
        return await self._losses.watch()

    # Calls

    async def _to_owners(
        self,
        members: Sequence[Member],
        lives: Sequence[Life],
        tell: Callable[[Member, Sequence[Life]], Coroutine[Any, Any, None]],
    ) -> None:
        """Tell each worker of one server of its own lives."""
        own: dict[int, list[Life]] = {}
        for life in lives:
            own.setdefault(worker_of(life.rollout_id, len(members)), []).append(life)
        async with open_group() as group:
            for member in members:
                if mine := own.get(member.capabilities.worker):
                    group.start_soon(tell, member, mine)

    async def _to_all(self, members: Sequence[Member], tell: Callable[[Member], Coroutine[Any, Any, None]]) -> None:
        async with open_group() as group:
            for member in members:
                group.start_soon(tell, member)

    async def _send(self, member: Member, message: Callable[..., Message], answer: type[Answer]) -> Answer:
        def send() -> Awaitable[Any]:
            return member.link.send(message(**self._now().envelope(member)), answer)

        return await self._ask(member, send)

    async def _ask(self, member: Member, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Until it answers. Raises ControlFailed where it refuses."""
        while True:
            try:
                with anyio.fail_after(CALL_TIMEOUT_S):
                    return await call()
            except (ConnectionError, TimeoutError, ParticipantError) as error:
                if not _passes(error):
                    raise ControlFailed({member.name: error}) from error
            await self._losses.certain(member)
            await anyio.sleep(RETRY_S)


def _passes(failure: BaseException | str) -> bool:
    """Whether a call may do better, or its server may be found to be lost."""
    if isinstance(failure, ParticipantError):
        return failure.code in OF_A_LOSS | PASSING
    return isinstance(failure, ConnectionError | TimeoutError)


def _is_policy(member: Member) -> bool:
    return f"{member.kind}.{member.capabilities.name}" == MAIN_MODEL


def _result(finished: Finished) -> Result:
    return Result(life=finished.life, row=finished.row, failure=finished.failure, active_s=finished.active_s)
