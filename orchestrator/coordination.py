"""Coordination: the workflows a controller awaits. They hold no state between calls.

The controller's duties:
1. After `prepare` returns it takes the scope and its own state in one step, and processes no result, dispatch or retire
   from then until `renew` has succeeded or it has aborted.
2. Every dispatched, undelivered rollout is in exactly one of scope, restarts and dropped.
3. It acknowledges a result only when that survives its own crash and no higher claim stands on the chain.
4. It publishes only after one renew that succeeded everywhere after the last commit reply, and with equal tallies.
`orchestrator.rounds` wraps 1 and 4 so that they cannot be had in the wrong order.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from pydantic import BaseModel

from participants import (
    Abort,
    Activate,
    Blocker,
    Commit,
    Committed,
    Done,
    Message,
    Prepare,
    Prepared,
    Renew,
    Renewed,
    Resume,
    Retire,
    Retired,
    Stage,
    Sum,
    telemetry,
)
from participants.telemetry import Attribute, names
from participants.telemetry.operations import controlled
from participants.wire import Lives
from store import CheckpointId, Controller, Draft, Life, Ref

from .errors import (
    CommitFailed,
    ControlFailed,
    CoordinationError,
    PrepareFailed,
    RenewFailed,
    RestoreFailed,
    TalliesDiffer,
)
from .fleet import (
    CALL_TIMEOUT_S,
    PREPARE_ORDER,
    RESUME_ORDER,
    Fleet,
    Member,
    Outcome,
    ask_all,
    check_seconds,
    failures_of,
)

Answer = TypeVar("Answer", bound=BaseModel)
GRACE_S = 5.0
"""How much longer than its own timeout a participant may take to answer before it counts as hanging."""
NEXT_KIND_S = 2.0
"""How long an ending waits for the answers of one kind before it goes on to the next."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """What prepare found. Where it is not `prepared`, prepare the same round again, or resume, or resume and retire."""

    prepared: bool
    blockers: tuple[Blocker, ...]
    """The oldest few of each participant."""
    blocker_count: int
    restarts: frozenset[Life]


async def prepare(fleet: Fleet, round_: CheckpointId, *, timeout_s: float, lease_s: float) -> Standstill:
    """Close admission and park all work, kind after kind, under one deadline.

    Returns with blockers where the deadline came first, admission still closed. Raises PrepareFailed where somebody
    failed or hung. Whatever it raises, and where it is cancelled, every participant was told to abort.
    """
    check_seconds(timeout_s=timeout_s, lease_s=lease_s)
    with controlled("prepare", round=str(round_)) as found:
        try:
            standstill = await _prepare(fleet, round_, timeout_s, lease_s)
        except BaseException:
            await _abort_quietly(fleet, round_)
            raise
        found.outcome = "ok" if standstill.prepared else "blocked"
        counts = {"blockers": standstill.blocker_count, "restarts": len(standstill.restarts)}
        found.set(prepared=standstill.prepared, **counts)
        return standstill


async def _prepare(fleet: Fleet, round_: CheckpointId, timeout_s: float, lease_s: float) -> Standstill:
    deadline = anyio.current_time() + timeout_s
    blockers: list[Blocker] = []
    restarts: set[Life] = set()
    count, prepared = 0, True
    for kind in PREPARE_ORDER:
        left = _left(deadline)

        def message(member: Member, left: float = left) -> Prepare:
            return Prepare(**fleet.envelope(member), round=round_, timeout_s=left, lease_s=lease_s)

        if not (members := fleet.of_kind(kind)):
            continue
        with telemetry.span(names.PREPARE_KIND, kind=kind, members=len(members)) as span:
            answers = _all_or(PrepareFailed, await ask_all(members, message, Prepared, timeout_s=left + GRACE_S))
            span.set("blockers", sum(answer.blocker_count for answer in answers))
            span.set("restarts", sum(len(answer.restarts) for answer in answers))
        for answer in answers:
            blockers.extend(answer.blockers)
            restarts.update(answer.restarts)
            count += answer.blocker_count
            prepared = prepared and answer.prepared
    return Standstill(prepared, tuple(blockers), count, frozenset(restarts))


async def commit(
    fleet: Fleet,
    round_: CheckpointId,
    scope: Sequence[Life],
    parent: Ref | None,
    *,
    timeout_s: float,
    left_out: Sequence[Life] = (),
) -> list[Committed]:
    """Let every participant write the scope's records. Raises CommitFailed and TalliesDiffer.

    `left_out` are restarts and dropped: who has a dispatched, undelivered life that stands nowhere refuses.
    """
    check_seconds(timeout_s=timeout_s)
    lives: dict[str, Any] = {"scope": Lives(scope), "left_out": Lives(left_out)}

    def message(member: Member) -> Commit:
        return Commit(**fleet.envelope(member), round=round_, parent=parent, **lives)

    with controlled("commit", round=str(round_), rollouts=len(scope)) as found:
        outcomes = await ask_all(fleet.members, message, Committed, timeout_s=timeout_s)
        answers = _all_or(CommitFailed, outcomes)
        check_tallies(fleet, answers)
        found.set(records=sum(a.manifest.records for a in answers), bytes=sum(a.bytes_written for a in answers))
    return answers


def check_tallies(fleet: Fleet, answers: Sequence[Committed]) -> None:
    """Every pair of participants agrees on what is between them. Raises TalliesDiffer, naming each pair."""
    sums: dict[tuple[str, str], Sum] = {}
    for answer in answers:
        own = f"{answer.manifest.kind}.{answer.manifest.name}"
        for tally in answer.tallies:
            pair = (own, f"{tally.kind}.{tally.name}")
            sums[pair] = sums.get(pair, Sum()).join(Sum.parse(tally.count, tally.digest))
    known = fleet.participants
    differing = {
        f"{one} and {other}": f"{total.count} against {sums.get((other, one), Sum()).count} sessions"
        for (one, other), total in sums.items()
        if other in known and total != sums.get((other, one), Sum())
    }
    if differing:
        raise TalliesDiffer(differing)


async def renew(fleet: Fleet, round_: CheckpointId, *, lease_s: float) -> None:
    """Extend every lease: after the last commit reply, proof that all stood still together. Raises RenewFailed."""
    check_seconds(lease_s=lease_s)

    def message(member: Member) -> Renew:
        return Renew(**fleet.envelope(member), round=round_, lease_s=lease_s)

    with controlled("renew", round=str(round_)):
        _all_or(RenewFailed, await ask_all(fleet.members, message, Renewed))


async def publish(controller: Controller, draft: Draft, *, timeout_s: float) -> Ref:
    """Make the checkpoint exist; raises as `Controller.publish`, and may be repeated with the same draft like that."""
    facts = {"rollouts": len(draft.scope), "participants": len(draft.participants)}
    with controlled("publish", round=str(draft.checkpoint), **facts):
        return await controller.publish(draft, timeout_s=timeout_s, stage=_publish_stage)


def _publish_stage(what: str) -> AbstractContextManager[object]:
    return telemetry.span(names.PUBLISH_STAGES[what])


async def resume(fleet: Fleet, round_: CheckpointId) -> None:
    """Reopen admission everywhere, kind after kind. Raises ControlFailed after having tried all."""
    with controlled("resume", round=str(round_)):
        await _end(fleet, round_, Resume)


async def abort(fleet: Fleet, round_: CheckpointId) -> None:
    """Cancel the round's work everywhere. Raises ControlFailed after having tried all."""
    with controlled("abort", round=str(round_)):
        await _end(fleet, round_, Abort)


async def restore(
    fleet: Fleet, round_: CheckpointId, checkpoint: Ref, scope: Collection[Life], *, timeout_s: float
) -> None:
    """Stage on all, then activate on all, or nothing: where it fails or is cancelled, everybody was told to abort.

    Both under one deadline. Every participant that the checkpoint names must be in the fleet, or RestoreFailed names
    it; another one in the fleet is new since then and has nothing to restore.
    """
    check_seconds(timeout_s=timeout_s)
    lives, deadline = Lives(scope), anyio.current_time() + timeout_s

    def stage(member: Member) -> Stage:
        c = member.capabilities
        shares: dict[str, Any] = {"shard": (c.worker, c.workers), "participants": fleet.participants}
        return Stage(**fleet.envelope(member), round=round_, checkpoint=checkpoint, scope=lives, **shares)

    def activate(member: Member) -> Activate:
        return Activate(**fleet.envelope(member), round=round_)

    steps: dict[str, Callable[[Member], Message]] = {names.RESTORE_STAGE: stage, names.RESTORE_ACTIVATE: activate}
    facts: dict[str, Attribute] = {"checkpoint": str(checkpoint.checkpoint), "rollouts": len(lives)}
    with controlled("restore", round=str(round_), **facts):
        try:
            for name, step in steps.items():
                with telemetry.span(name):
                    _all_or(RestoreFailed, await ask_all(fleet.members, step, Done, timeout_s=_left(deadline)))
        except BaseException:
            await _abort_quietly(fleet, round_)
            raise


async def retire(fleet: Fleet, lives: Sequence[Life], *, timeout_s: float) -> frozenset[Life]:
    """Stop lives everywhere, wait until they have stopped, free their state; returns those not stopped in time.

    One deadline for all kinds; also those that come after it are told, and fence what does not stop at once.
    """
    check_seconds(timeout_s=timeout_s)
    with controlled("retire", lives=len(lives)) as found:
        not_stopped = await _retire(fleet, lives, timeout_s)
        found.set(not_stopped=len(not_stopped))
        return not_stopped


async def _retire(fleet: Fleet, lives: Sequence[Life], timeout_s: float) -> frozenset[Life]:
    not_stopped: set[Life] = set()
    lives, deadline = Lives(lives), anyio.current_time() + timeout_s
    for kinds in (("environment",), ("agent",), ("model", "resources")):
        members = tuple(member for kind in kinds for member in fleet.of_kind(kind))
        left = _left(deadline)

        def message(member: Member, left: float = left) -> Retire:
            return Retire(**fleet.envelope(member), lives=lives, timeout_s=left)

        outcomes = await ask_all(members, message, Retired, timeout_s=left + GRACE_S)
        for answer in _all_or(ControlFailed, outcomes):
            not_stopped.update(answer.not_stopped)
    return frozenset(not_stopped)


async def _end(fleet: Fleet, round_: CheckpointId, kind_of_end: type[Resume] | type[Abort]) -> None:
    """Under one deadline for all; a kind that does not answer holds the next one up for a moment only."""
    deadline = anyio.current_time() + CALL_TIMEOUT_S
    failures: dict[str, BaseException | str] = {}

    def message(member: Member) -> Message:
        return kind_of_end(**fleet.envelope(member), round=round_)

    async def end(kind: str, answered: anyio.Event) -> None:
        failures.update(failures_of(await ask_all(fleet.of_kind(kind), message, Done, timeout_s=_left(deadline))))
        answered.set()

    async with anyio.create_task_group() as group:
        for kind in RESUME_ORDER:
            answered = anyio.Event()
            group.start_soon(end, kind, answered)
            with anyio.move_on_after(NEXT_KIND_S):
                await answered.wait()
    if failures:
        raise ControlFailed(failures)


async def _abort_quietly(fleet: Fleet, round_: CheckpointId) -> None:
    """Abort after a failure, which is the one to be reported; a lease ends what does not hear this."""
    with anyio.CancelScope(shield=True):
        try:
            await abort(fleet, round_)
        except ControlFailed:
            return


def _left(deadline: float) -> float:
    """What a message may say of it: more than nothing."""
    return max(0.001, deadline - anyio.current_time())


def _all_or(error: type[CoordinationError], outcomes: Sequence[Outcome[Answer]]) -> list[Answer]:
    if failures := failures_of(outcomes):
        raise error(failures)
    return [outcome.answer for outcome in outcomes if outcome.answer is not None]
