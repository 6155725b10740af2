"""The start of a training run: what the head has, what servers that outlived the trainer have, and what becomes of it.

In this order: discover the servers; claim an epoch; read the head and check the trainer's own state and files; adopt
the epoch everywhere; release what the head has delivered; let whole lives of undelivered rollouts go on, and end all
others; restore the rest from the head, all or nothing. Restored rollouts stay parked until the trainer asks for
something, so that it has its weights in place by then.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from participants import Adopted, Floor
from participants import Result as Finished
from participants.fences import position
from store import Controller, Fenced, Ref, Store, StoreError, claim, open_checkpoint
from store.tasks import open_group

from ..adoption import standing
from ..collect.served import ServedWorld
from ..collect.sorting import sort_out
from ..coordination import restore, resume
from ..errors import CoordinationError
from ..fleet import adopt, discover
from ..links import Link
from ..rounds import RoundLimits
from .errors import RunLeft, ServersLost
from .ledger import TrainingLedger
from .run import END_TIMEOUT_S, TrainingRun
from .saved import Head, head_of, ledger_of
from .values import text

RESTORE_TIMEOUT_S = 600.0
ASK_CHAIN_S = 5.0
"""For the chain to say whether servers are lost, or another controller has taken them."""
BUFFERED = 256


@asynccontextmanager
async def training_run(
    links: Sequence[Link],
    store: Store,
    *,
    limits: RoundLimits | None = None,
    fingerprint: Mapping[str, str] | None = None,
    adopt_running: bool = True,
    take_over: bool = False,
) -> AsyncIterator[TrainingRun]:
    """Claim the run, and begin it or go on from its head, for the time of the context.

    `fingerprint` says what the run means: a head with another one is refused by field. Without `adopt_running` servers
    that outlived their trainer end everything, and every rollout goes on exactly from the head. `take_over` claims the
    run although another trainer seems to live. On leaving, servers go on; the next start finds what they have.

    Raises UnusableState for a fingerprint that is not of texts, ControlFailed where a server does not answer,
    ControllerAlive, ForeignHead, ForeignObject for another fingerprint, CorruptCheckpoint where state or files are not
    as the head has them, and RestoreFailed: nothing is open then.
    """
    means = {
        text(key, "a key of the fingerprint"): text(value, f"fingerprint[{key!r}]")
        for key, value in (fingerprint or {}).items()
    }
    found = await discover(links, store.run_id)
    async with claim(store, take_over=take_over) as controller:
        head = await _read(store, controller.head, means)
        fleet, answers = await adopt(found, controller.epoch, Floor())
        world = ServedWorld(fleet)
        run = TrainingRun(controller, world, limits or RoundLimits(), means)
        async with open_group() as group:
            group.start_soon(_watch, run, world, controller)
            try:
                start = _Start(world, controller, head, answers, adopt_running)
                run.begin(head, await run.unless_lost(start.go_on))
                group.start_soon(_read_results, run, world)
                yield run
            finally:
                run.end(RunLeft())
                group.cancel_scope.cancel()


async def _read(store: Store, ref: Ref | None, fingerprint: Mapping[str, str]) -> Head:
    if ref is None:
        return Head()
    checkpoint = await open_checkpoint(store, ref)
    checkpoint.check_fingerprint(fingerprint)
    await checkpoint.verify_own()
    return head_of(await checkpoint.state(), checkpoint.manifest, store.url)


@dataclass(frozen=True, slots=True)
class _Start:
    """What a start knows once the epoch is adopted."""

    world: ServedWorld
    controller: Controller
    head: Head
    answers: Mapping[str, Adopted]
    adopt_running: bool

    async def go_on(self) -> TrainingLedger:
        """Bring servers to where the head is, or beyond where they go on; gives the ledger that fits."""
        world, head, fleet = self.world, self.head, self.world.fleet
        assert fleet is not None
        wanted = head.wanted if self.adopt_running else frozenset[str]()
        found = sort_out(standing(fleet, self.answers), {str(life) for life in head.delivered}, wanted)
        await world.release(head.delivered)
        await world.end(found.broken, END_TIMEOUT_S)
        floor = min(map(position, found.going_on), default=Floor(self.controller.epoch, 0))
        world.fleet = fleet.with_floor(floor)
        ledger = ledger_of(head, self.controller.epoch, found.going_on)
        ledger.released(head.delivered)
        await self._restore(ledger)
        return ledger

    async def _restore(self, ledger: TrainingLedger) -> None:
        fleet, ref, scope = self.world.fleet, self.controller.head, tuple(ledger.restored.values())
        if scope and ref is not None and fleet is not None:
            round_id = self.controller.next_round()
            await restore(fleet, round_id, ref, scope, timeout_s=RESTORE_TIMEOUT_S)
            await resume(fleet, round_id)


async def _watch(run: TrainingRun, world: ServedWorld, controller: Controller) -> None:
    """End the run once a server is lost: to another controller, or altogether."""
    lost = await world.watch()
    error: Exception = ServersLost(lost)
    with anyio.move_on_after(ASK_CHAIN_S):
        try:
            await controller.refresh()
        except Fenced as fenced:
            error = fenced
        except StoreError:
            pass  # Unreachable for now; what the servers said stands.
    run.end(error)


async def _read_results(run: TrainingRun, world: ServedWorld) -> None:
    """As they come, once it is known that no failure among them comes of a lost server."""
    send, receive = anyio.create_memory_object_stream[Finished](BUFFERED)
    try:
        async with open_group() as group, send, receive:
            group.start_soon(world.read_results, send)
            await _pass_on(run, world, receive)
    except CoordinationError as error:
        run.end(error)


async def _pass_on(run: TrainingRun, world: ServedWorld, receive: MemoryObjectReceiveStream[Finished]) -> None:
    async for finished in receive:
        await world.check([finished])
        run.arrived(finished)
