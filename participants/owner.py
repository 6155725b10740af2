"""What a participant gives the control plane: the owner of state, with the few hooks that a checkpoint needs."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from store import CheckpointId, Life, RawRecord, ReadBlob, Record

from .fences import Floor
from .gate import Gate
from .hooks import Hooks
from .wire import Blocker, Dispatched, Modes, PairTally, Refused, Worked


@dataclass(frozen=True, slots=True)
class Export:
    """What one commit writes of one process."""

    records: Iterable[Record | RawRecord]
    """One a rollout; immutable, so that they can be read while work goes on."""
    tallies: Sequence[PairTally] = ()
    state: Any = None
    """Own state beside the records: JSON and bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of an episode; exactly one of `row` and `failure`."""

    life: Life
    row: Mapping[str, Any] | None
    failure: Mapping[str, Any] | None
    """`class`, `message`, `stage`, `terminal`."""
    active_s: float
    n: int = 0
    """Its number at its environment server, from 1 in each process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What goes on at one participant, for a controller that has just come; `wire.Adopted` says what each field is."""

    lives: Sequence[Life]
    dispatched: Sequence[Life]
    needs: Mapping[str, Sequence[Life]]
    brought: Sequence[Life]
    lost: Sequence[Life]


class Owner(Protocol):
    """Owns the state of one participant process. What is not `async` must be quick for all of its lives."""

    @property
    def kind(self) -> str:
        """`environment`, `model`, `agent` or `resources`."""

    @property
    def name(self) -> str:
        """The participant's name."""

    @property
    def modes(self) -> Modes:
        """What its code declares."""

    @property
    def gate(self) -> Gate:
        """Its admission."""

    @property
    def author_hooks(self) -> Hooks:
        """Where its author's hooks run; the control plane opens it."""

    def blockers(self, limit: int) -> tuple[list[Blocker], int]:
        """The oldest `limit` of what a prepare waits for, `freeze` included, and the number of all."""

    def restarts(self) -> Collection[Life]:
        """Live lives that cannot be captured; complete."""

    def adoption(self) -> Adoption:
        """What goes on here, and what it needs elsewhere."""

    async def submit(self, episodes: Sequence[Dispatched], epoch: int) -> Sequence[Refused]:
        """Begin these episodes; those that cannot be begun are named, and hold up no other."""

    def check_after(self, after: int) -> None:
        """Refuse a reader of results that has more than there were; every reader where no episode is submitted."""

    async def next_result(self, after: int, epoch: int | None = None) -> Result | None:
        """The first result behind a number, while admission is open; None once the epoch is another one."""

    async def finish_all(self, lives: Sequence[Life]) -> None:
        """The results of these lives are durable elsewhere: free and fence them."""

    async def work(self, rollouts: Collection[str] | None) -> Worked:
        """What is behind the boundary of each life, and of each restored record."""

    def counts(self) -> dict[str, int]:
        """For the status."""

    def adopted(self, epoch: int) -> None:
        """The epoch that the control plane knows from here on."""

    def decided(self) -> None:
        """The controller of this epoch has ended what is not whole, and lets everything else go on."""

    def raise_floor(self, floor: Floor) -> None:
        """End everything below the floor, and forget its fences."""

    async def unnamed(self, named: Collection[Life]) -> Sequence[Life]:
        """What was dispatched here, whose result nobody has for good, and which is not among `named`."""

    def check_export(self) -> None:
        """Refuse a commit that cannot be exact now, as while a model call inside a waited-for step is in flight."""

    async def freeze(self, scope: Collection[Life] | None = None) -> None:
        """Make ready what `export` is to write, where that takes long or needs an author's async hook.

        A prepare asks for it once all stands still, of every life, so that `restarts` can name what has no export. A
        commit asks again for its scope: what is ready already is not made twice. May be cancelled at any time.
        """

    def thaw(self) -> None:
        """The round is over: let go of what was made ready."""

    async def export(self, scope: Collection[Life]) -> Export:
        """The scope's state. All stands still, so that it is that of one point in time."""

    async def pin(self, run: str, checkpoint: CheckpointId) -> None:
        """Keep what this commit needs and others hold, such as tokens in a worker's store; durable when it returns."""

    async def release(self, run: str, standing: Collection[CheckpointId], now: CheckpointId) -> None:
        """A commit for `now` is written: let go of what was pinned for earlier checkpoints that no longer stand."""

    @property
    def pins(self) -> bool:
        """Whether it pins anything at all."""

    async def stage(
        self,
        scope: Collection[Life],
        records: AsyncIterator[RawRecord],
        *,
        epoch: int,
        read_blob: ReadBlob,
    ) -> int:
        """Read, check and import the scope's records beside what is live; returns how many there were.

        `epoch` is that of the restore, and `read_blob` gives, checked, what large bytes of a record stand for.
        """

    def import_own(self, states: Sequence[Any], scope: Collection[Life], epoch: int) -> None:
        """Read the own state of every process that wrote the checkpoint, beside what is live.

        Called after `stage`, and with the scope of the restore at all workers. Raises `corrupt_checkpoint`.
        """

    def activate(self) -> None:
        """Install what was staged, all of it, in one piece without await. Must not fail on what `stage` let pass."""

    def settle(self) -> None:
        """The restore succeeded everywhere: what it brought is now simply live, parked until it is dispatched."""

    async def discard(self) -> None:
        """Drop what was staged, or what an open restore has installed, and put back what it had replaced."""

    async def retire(self, lives: Sequence[Life], timeout_s: float) -> list[Life]:
        """Fence and stop these lives, wait until they have stopped, free their state; returns those not stopped."""
