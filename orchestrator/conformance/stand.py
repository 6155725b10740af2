"""One process of the server that is tried: an instance under its control plane, at a store in memory.

Everything goes through what a run uses: data calls through `handle`, checkpoints and restores through coordination,
over a link to the real control plane, into records of the real store. Leaving a stand is a crash.
"""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio

from participants import CallId, ControlPlane, ParticipantError, Reply, Request, ResourcesServer
from participants.sessions import SESSION_HEADER
from store import DEFAULT_LIMITS, Controller, Draft, Life, MemoryBackend, Ref, Store, claim
from store.backends import MemorySpace

from ..coordination import commit, prepare, renew, restore, resume
from ..fleet import Fleet, adopt, discover
from ..links import LocalLink
from .answers import Answer

LEASE_S = 60.0
STANDSTILL_S = 10.0
"""How long a checkpoint waits for what a server has in flight."""
WORK_S = 30.0
CALL_S = 60.0
"""After which a call counts as hanging."""


class NotExported(Exception):
    """A checkpoint holds no record of a life; the message says why."""


@dataclass(slots=True)
class Stand:
    """A server that takes part in a run."""

    server: ResourcesServer
    controller: Controller
    fleet: Fleet
    store: Store

    @property
    def space(self) -> MemorySpace:
        """What the store holds."""
        assert isinstance(self.store.backend, MemoryBackend)
        return self.store.backend.space

    async def call(self, life: Life, route: str, body: object, call: CallId, *, session: str = "") -> Answer:
        """One data call, and what became of it."""
        headers = {SESSION_HEADER: session or session_of(life)}
        request = Request(route=route, body=body, life=life, call=call, headers=headers)
        with anyio.move_on_after(CALL_S):
            try:
                return answer_of(await self.server.handle(request))
            except ParticipantError as error:
                return Answer(error.status, error.message, error.code.value)
        return Answer(504, f"it did not come to an end within {CALL_S:g} s", "hangs")

    async def checkpoint(self, lives: Sequence[Life]) -> Ref:
        """Stand still, write, go on, publish. Raises NotExported, and what coordination raises."""
        round_ = self.controller.next_round()
        found = await prepare(self.fleet, round_, timeout_s=STANDSTILL_S, lease_s=LEASE_S)
        if not found.prepared or found.restarts.intersection(lives):
            await resume(self.fleet, round_)
            steps = [f"{blocker.step} is still in flight: {blocker.reason}" for blocker in found.blockers]
            raise NotExported("; ".join(steps) or self._why_not(lives))
        parent = self.controller.head
        answers = await commit(self.fleet, round_, lives, parent, timeout_s=WORK_S)
        await renew(self.fleet, round_, lease_s=LEASE_S)
        await resume(self.fleet, round_)
        manifests = [answer.manifest for answer in answers]
        before = parent.checkpoint if parent else None
        draft = Draft(checkpoint=round_, parent=before, participants=manifests, scope=lives)
        return await self.controller.publish(draft, timeout_s=WORK_S)

    def _why_not(self, lives: Sequence[Life]) -> str:
        sessions = [s for held in self.server.held() if held.life in lives for s in held.state.open.values()]
        reasons = [session.unexportable or session.lost for session in sessions]
        return next(filter(None, reasons), "it declares no checkpoint_mode")

    async def restore(self, ref: Ref, lives: Sequence[Life]) -> None:
        """Bring these lives back. Raises RestoreFailed."""
        round_ = self.controller.next_round()
        await restore(self.fleet, round_, ref, lives, timeout_s=WORK_S)
        await resume(self.fleet, round_)

    def next_lives(self, lives: Sequence[Life]) -> list[Life]:
        """Those that continue these, under this stand's epoch."""
        return [Life(life.rollout_id, self.controller.epoch, life.attempt + 1, life.n) for life in lives]


def session_of(life: Life) -> str:
    """The session that a rollout uses; the same whatever its attempt."""
    return f"session-of-{life.rollout_id}"


def answer_of(reply: Reply) -> Answer:
    """A reply as it is compared."""
    return Answer(reply.status, reply.body)


@asynccontextmanager
async def stand(server: ResourcesServer, space: MemorySpace | None = None, run: str = "") -> AsyncIterator[Stand]:
    """A server in a new epoch of a run, at a store with a copy of these objects."""
    own = MemorySpace(dict(space.objects)) if space is not None else MemorySpace()
    store = Store(MemoryBackend(space=own), run or secrets.token_hex(16), DEFAULT_LIMITS)
    try:
        async with AsyncExitStack() as stack:
            controller = await stack.enter_async_context(claim(store, take_over=True))
            plane = await stack.enter_async_context(ControlPlane(server, store).run())
            fleet, _ = await adopt(await discover([LocalLink(plane)], store.run_id), controller.epoch)
            yield Stand(server, controller, fleet, store)
    except BaseExceptionGroup as errors:  # Of the tasks around the block: what the block raised is what counts.
        raise first_of(errors) from None


def first_of(error: BaseException) -> BaseException:
    """The first error in groups of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
