"""One checkpoint as an async context manager, so that its order cannot be got wrong.

    async with checkpoint(fleet, controller, limits) as standstill:
        # Everything stands still. Take the scope and your own state here, in one step, and nothing else.
        standstill.take(scope=lives, state=my_state, output=segments)

On leaving the block: commit, renew, resume, publish. Work goes on as soon as the renew has succeeded; the checkpoint
exists once the block is left without an error. An exception in the block, or any failure before the renew, aborts the
round: everyone works on, and earlier checkpoints are intact.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio

from participants import telemetry
from participants.telemetry import Attribute, names
from participants.telemetry.operations import controlled
from store import CheckpointId, Controller, Draft, External, Life, ParticipantRef, Ref, Segment

from .coordination import Standstill, abort, commit, prepare, publish, renew, resume
from .errors import ControlFailed, CoordinationError
from .fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLimits:
    """How long the steps of a round may take, in seconds."""

    prepare_timeout_s: float = 30.0
    more_time_s: float = 30.0
    """Given once, where blockers were left at the first deadline."""
    commit_timeout_s: float = 300.0
    publish_timeout_s: float = 60.0
    lease_s: float = 120.0


class Blocked(CoordinationError):
    """Blockers were left at the deadline; the round was resumed, and nothing was written."""

    what = "blocked"
    hint = "Give more time, or retire the blockers; work goes on"

    def __init__(self, standstill: Standstill) -> None:
        """`standstill` has the blockers."""
        self.standstill = standstill
        super().__init__({f"{b.participant} {b.life}": f"{b.step}: {b.reason}" for b in standstill.blockers})


@dataclass(slots=True)
class Round:
    """An open round while everything stands still."""

    id: CheckpointId
    standstill: Standstill
    parent: Ref | None
    scope: Sequence[Life] | None = None
    taken: dict[str, Any] = field(default_factory=dict)
    delivered: Sequence[Life] = ()
    drafted: Draft | None = None
    """Set before it is published: what to publish again where nobody knows whether it was."""
    published: Ref | None = None
    """Set once the checkpoint exists."""
    held_s: float = 0.0
    """For how long admission was closed."""
    not_resumed: ControlFailed | None = None
    """Participants that did not hear the resume: they reopen when their lease runs out."""

    def take(
        self,
        *,
        scope: Sequence[Life],
        restarts: Sequence[Life] = (),
        dropped: Mapping[Life, str] | None = None,
        delivered: Sequence[Life] = (),
        state: Any = None,
        externals: Sequence[External] | Callable[[], Awaitable[Sequence[External]]] = (),
        output: Sequence[Segment] = (),
        fingerprint: Mapping[str, str] | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        """Say what the checkpoint has of the controller: every dispatched, undelivered rollout in one of three sets,
        its own state (JSON and bytes), files that it wrote itself, and the length of its output.

        `delivered` are lives whose results are in that state: in none of the sets, and released once this is published.
        `externals` may be a function, which is called after the resume: digests of large files take long.
        """
        self.scope = scope
        self.delivered = delivered
        self.taken = {
            "restarts": restarts,
            "dropped": dropped or {},
            "state": state,
            "externals": externals,
            "output": output,
            "fingerprint": fingerprint or {},
            "tags": tags,
        }

    @property
    def restarts(self) -> frozenset[Life]:
        """The lives that participants cannot capture: they start over, and belong into `take(restarts=...)`."""
        return self.standstill.restarts

    @property
    def left_out(self) -> list[Life]:
        """What was dispatched and is not in the scope, as the block has said it."""
        return [*self.taken["restarts"], *self.taken["dropped"], *self.delivered]

    async def complete(self) -> None:
        """Find out what was left for after the resume."""
        if callable(externals := self.taken["externals"]):
            self.taken["externals"] = await externals()

    def draft(self, participants: Sequence[ParticipantRef]) -> Draft:
        """What is to be published."""
        parent = self.parent.checkpoint if self.parent else None
        assert self.scope is not None
        return Draft(checkpoint=self.id, parent=parent, participants=participants, scope=self.scope, **self.taken)


def _nothing() -> None:
    """The default of `resumed`."""


@asynccontextmanager
async def checkpoint(
    fleet: Fleet, controller: Controller, limits: RoundLimits, *, resumed: Callable[[], None] = _nothing
) -> AsyncIterator[Round]:
    """Stand still, let the caller take scope and state, commit, renew, resume, publish.

    `resumed` is called as soon as the renew has succeeded: from then the caller may process results again.

    Raises Blocked where blockers are left after more time was given once, and what coordination and publish raise.
    """
    began, held_s = anyio.current_time(), 0.0
    with controlled("checkpoint") as found:
        try:
            async with _checkpoint(fleet, controller, limits, resumed) as opened:
                found.set(round=str(opened.id))
                yield opened
            held_s = opened.held_s
        except Blocked as error:
            found.outcome = "blocked"
            found.set(blockers=error.standstill.blocker_count)
            raise
        finally:  # Where it failed, until all that held work was told to let go.
            telemetry.observe(names.CHECKPOINT_HOLD, held_s or anyio.current_time() - began)
        found.set(**_facts(opened))


def _facts(opened: Round) -> dict[str, Attribute]:
    """Of a round that is published, for telemetry."""
    participants = opened.drafted.participants if opened.drafted else ()
    return {
        "rollouts": len(opened.scope or ()),
        "restarts": len(opened.taken["restarts"]),
        "dropped": len(opened.taken["dropped"]),
        "records": sum(ref.records for ref in participants),
        "bytes": sum(ref.bytes for ref in participants),
        "held_s": opened.held_s,
    }


@asynccontextmanager
async def _checkpoint(
    fleet: Fleet, controller: Controller, limits: RoundLimits, resumed: Callable[[], None]
) -> AsyncIterator[Round]:
    round_id, began = controller.next_round(), anyio.current_time()
    standstill = await _stand_still(fleet, round_id, limits)
    opened = Round(round_id, standstill, controller.head)
    try:
        yield opened
        if opened.scope is None:
            raise ControlFailed({"controller": "the block took no scope; call take()"})
        sets: dict[str, Any] = {"scope": opened.scope, "left_out": opened.left_out}
        answers = await commit(fleet, round_id, parent=opened.parent, timeout_s=limits.commit_timeout_s, **sets)
        await renew(fleet, round_id, lease_s=limits.lease_s)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _quietly_abort(fleet, round_id)
        raise
    resumed()
    try:
        await _resume(fleet, round_id)
    except ControlFailed as error:
        opened.not_resumed = error
    opened.held_s = anyio.current_time() - began
    await opened.complete()
    opened.drafted = opened.draft([answer.manifest for answer in answers])
    opened.published = await publish(controller, opened.drafted, timeout_s=limits.publish_timeout_s)


async def _stand_still(fleet: Fleet, round_id: CheckpointId, limits: RoundLimits) -> Standstill:
    standstill = await prepare(fleet, round_id, timeout_s=limits.prepare_timeout_s, lease_s=limits.lease_s)
    if not standstill.prepared and limits.more_time_s > 0:
        standstill = await prepare(fleet, round_id, timeout_s=limits.more_time_s, lease_s=limits.lease_s)
    if not standstill.prepared:
        with suppress(ControlFailed):  # The blockers are what to tell; a lease ends what does not hear this.
            await _resume(fleet, round_id)
        raise Blocked(standstill)
    return standstill


async def _resume(fleet: Fleet, round_id: CheckpointId) -> None:
    """Whoever is cancelled here is so afterwards: else participants would stand still until their leases run out."""
    with anyio.CancelScope(shield=True):
        await resume(fleet, round_id)


async def _quietly_abort(fleet: Fleet, round_id: CheckpointId) -> None:
    with suppress(ControlFailed):  # The failure that led here is the one to report; leases end what does not hear this.
        await abort(fleet, round_id)
