"""What a run needs of its participants, wherever they are: in the controller's process, or servers of their own.

Nothing here fails because a participant is lost: whoever asks one waits until it answers, or until `watch` has told
that it is lost, which ends the epoch and everything that waits in it.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from participants import Code, Floor, ParticipantError, Result
from participants.wire import INFRASTRUCTURE
from store import Life, Store, StoreError

from ..errors import CoordinationError
from ..fleet import Fleet
from .saved import Work

REFUSED_STAGE = "seed"
"""A dispatch that fails comes before every step of its episode."""
Lost = dict[str, str]
"""Who is lost, as `<kind>.<name>/<process>`, and what tells it."""


class World(Protocol):
    """The participants in one epoch."""

    fleet: Fleet | None
    """Through which they are controlled; None without a store."""

    def notice_s(self, error: CoordinationError) -> float:
        """How long it may take from a loss that fails a call like this until `watch` knows of it."""

    async def dispatch(self, rows: Mapping[Life, Mapping[str, Any]]) -> dict[Life, dict[str, Any]]:
        """Start episodes, or continue them after a restore; gives the failures of those that are refused."""

    async def read_results(self, send: MemoryObjectSendStream[Result]) -> None:
        """Pass on finished episodes as they come, some perhaps again; none while admission is closed. Never ends."""

    async def check(self, results: Sequence[Result]) -> None:
        """Return once it is known that no failure among these comes of a participant that is lost."""

    async def release(self, lives: Sequence[Life]) -> None:
        """Their results are durable: nobody needs anything of these lives any more."""

    async def end(self, lives: Sequence[Life], timeout_s: float) -> None:
        """Stop lives everywhere and free their state; what does not stop in time stays fenced."""

    async def saved(self, rollout_ids: Sequence[str]) -> dict[str, Work]:
        """What restored rollouts that are about to be dispatched need not do again."""

    async def work(self) -> dict[str, Work]:
        """What each rollout that is here has behind its boundary."""

    async def blocking(self) -> list[Life]:
        """Every life with a step in flight that a checkpoint waits for."""

    def undeclared(self) -> list[str]:
        """The resources servers that do not say what a checkpoint may do with their sessions."""

    def raise_floor(self, floor: Floor) -> None:
        """Forget the fences below the floor, now or with what is asked next."""

    async def watch(self) -> Lost:
        """Return once some participants are lost; never otherwise."""


class Worlds(Protocol):
    """Where the participants of a run come from, for one epoch after the other."""

    def open(self, store: Store | None) -> AbstractAsyncContextManager[None]:
        """Have them run while the context is open."""

    async def look(self) -> None:
        """Refuse what can be refused before anything is claimed. Raises ServersGone."""

    async def world(self) -> World:
        """As they are now, for a new epoch, which nobody has adopted yet. Raises ServersGone."""

    async def recover(self, lost: Lost, rows: int) -> None:
        """Return once those that were lost are there again, started anew or by somebody else. Raises ServersGone.

        `rows` is how many this start has delivered so far, which tells whether it gets on.
        """

    def die(self) -> None:
        """The process ends at once: leave nothing that can be taken along. Takes no lock, and waits for nothing."""

    async def watch_endpoint(self) -> None:
        """Tell of an endpoint that does not answer, until cancelled."""


async def never_lost() -> Lost:
    """The watch of what cannot be lost without its controller."""
    await anyio.sleep_forever()
    return {}


def failure_of_dispatch(error: ParticipantError | StoreError) -> dict[str, Any]:
    """Facts of a dispatch that failed; another try cannot mend a row that is wrong."""
    terminal = isinstance(error, ParticipantError) and error.code is Code.INVALID_REQUEST
    return refusal(str(error), terminal=terminal)


def refusal(message: str, *, terminal: bool) -> dict[str, Any]:
    """The failure of an episode that was not begun."""
    named = Code.INVALID_REQUEST if terminal else Code.STEP_FAILED
    return {"class": named.value, "message": message[:2000], "stage": REFUSED_STAGE, "terminal": terminal}


def blames_a_loss(result: Result) -> bool:
    """Whether an episode may have ended because a participant was lost, and through no fault of its own."""
    return result.failure is not None and result.failure.get("class") in INFRASTRUCTURE
