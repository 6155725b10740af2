"""Reading: open a checkpoint, verify it, and hand out records. Nothing is handed out before it is verified.

`open_checkpoint` follows the digests from the chain down to every index. A record is then handed out once its frame has
the digest that the index pins. `Checkpoint.verify` reads and checks everything at once, which is what a restore does
first: it opens everything or nothing.
"""

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Literal, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from .again import damage_seen_twice
from .chain import Chain
from .commit import Parent
from .entries import Ref, require
from .errors import CorruptCheckpoint, ForeignObject, NoCheckpoint, NotFound
from .externals import check_externals
from .frames import sha256
from .index import Frame, by_part, pieces
from .layout import BlobRef, CheckpointId, Life, ProcessName, part_key
from .manifest import AggregateManifest, Part, ParticipantManifest, ParticipantRef, differing_fields
from .opened import (
    check_blob,
    check_blob_size,
    lives_by_text,
    load_aggregate,
    load_frames,
    load_participant,
    read_pinned,
)
from .records import RawRecord, Record
from .root import Store
from .statedoc import ReadBlob, StateValue, decode_state
from .tasks import map_bounded, open_group
from .unpack import as_it_is, check_piece, parse, unpack_run
from .values import resolve

Which = Literal["head"] | CheckpointId
Progress = Callable[[int], None]
"""Called with the number of bytes just dealt with."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` disjoint parts of a participant's records, which together are all of them."""

    number: int
    """From 0."""
    count: int


WHOLE = Shard(0, 1)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Process:
    """One process's share of a checkpoint."""

    manifest: ParticipantManifest
    frames: tuple[Frame, ...]

    @property
    def name(self) -> ProcessName:
        """Whose share."""
        return self.manifest.process_name

    def key_of(self, frame: Frame) -> str:
        """The object that holds a frame."""
        return part_key(self.manifest.checkpoint, self.name, self.manifest.parts[frame.part].name)

    def frames_by_part(self) -> list[list[Frame]]:
        """The frames of each part, in order."""
        return by_part(self.frames, len(self.manifest.parts))

    @property
    def blobs(self) -> Iterator[BlobRef]:
        """Every blob that its records and state name; some more than once."""
        for frame in self.frames:
            yield from frame.blobs
        yield from self.manifest.state.refs if self.manifest.state else ()


async def find_checkpoint(store: Store, which: Which = "head") -> Ref:
    """What the chain says about a checkpoint. Raises NoCheckpoint, CheckpointDeleted, CorruptChain."""
    chain = await store.chain()
    if which != "head":
        return require(chain.known, store.url, which)
    if chain.state.head is None:
        raise NoCheckpoint(store.url)
    return chain.state.head


def published(chain: Chain) -> list[Ref]:
    """All checkpoints that exist, oldest first."""
    return list(chain.known.refs.values())


async def open_checkpoint(store: Store, which: Which | Ref = "head") -> "Checkpoint":
    """Open a checkpoint down to its indexes. Raises NoCheckpoint, CheckpointDeleted, CorruptCheckpoint, ForeignObject,
    UnsupportedVersion, and never falls back to another checkpoint.
    """
    ref = which if isinstance(which, Ref) else await find_checkpoint(store, which)
    manifest = await load_aggregate(store, ref)
    known = await anyio.to_thread.run_sync(lives_by_text, manifest.scope)
    load = partial(_load_process, store, ref, known)
    processes = await map_bounded(load, manifest.participants, store.limits.requests_in_flight)
    return await anyio.to_thread.run_sync(Checkpoint, store, ref, manifest, tuple(processes))


async def load_parent(store: Store, ref: Ref, kind: str, name: str) -> Parent:
    """What a commit of one participant that continues `ref` may name again: the blobs of its own share.

    Reads no index of a process that names no blobs. Raises as `open_checkpoint`.
    """
    manifest = await load_aggregate(store, ref)
    blobs: set[BlobRef] = set()
    for participant in manifest.participants:
        if (participant.kind, participant.name) == (kind, name):
            share = await load_participant(store, ref.checkpoint, participant, ref.run_id)
            if share.blobs:
                blobs.update(Process(share, tuple(await load_frames(store, share))).blobs)
    return Parent(ref.checkpoint, frozenset(blobs))


async def _load_process(store: Store, ref: Ref, known: Mapping[str, Life], participant: ParticipantRef) -> Process:
    manifest = await load_participant(store, ref.checkpoint, participant, ref.run_id)
    return Process(manifest, tuple(await load_frames(store, manifest, known)))


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring frames of one part, read by one request, and the lines wanted of each."""

    process: Process
    frames: list[tuple[Frame, list[int]]]

    @property
    def key(self) -> str:
        """The object that holds them."""
        return self.process.key_of(self.frames[0][0])

    @property
    def start(self) -> int:
        """Offset of the first."""
        return self.frames[0][0].offset

    @property
    def size(self) -> int:
        """Bytes of all."""
        last = self.frames[-1][0]
        return last.offset + last.size - self.start

    def takes(self, process: Process, frame: Frame, limit: int) -> bool:
        """Whether `frame` follows at once, and fits into a run of `limit` bytes."""
        last = self.frames[-1][0]
        follows = process is self.process and frame.part == last.part and frame.offset == last.offset + last.size
        return follows and self.size + frame.size <= limit


class Checkpoint:
    """An open checkpoint."""

    def __init__(self, store: Store, ref: Ref, manifest: AggregateManifest, processes: tuple[Process, ...]) -> None:
        """Made by `open_checkpoint`."""
        self._store = store
        self.ref = ref
        self.manifest = manifest
        self.processes = processes
        documents = (manifest.state, *(process.manifest.state for process in processes))
        self._states = {ref for document in documents if document for ref in document.own_refs}
        _check_lives(manifest, processes)

    def __repr__(self) -> str:
        return (
            f"<Checkpoint {self.ref.checkpoint}, {len(self.manifest.scope)} rollouts, {self.manifest.records} records>"
        )

    @property
    def blobs(self) -> dict[BlobRef, None]:
        """Every blob that the checkpoint names, each once."""
        found = dict.fromkeys(self.manifest.state.refs if self.manifest.state else ())
        for process in self.processes:
            found.update(dict.fromkeys(process.blobs))
        return found

    def as_parent(self) -> Parent:
        """What a commit that continues this checkpoint may name again."""
        return Parent(self.ref.checkpoint, self.blobs)

    def shares(self, kind: str | None = None, name: str | None = None) -> list[Process]:
        """The processes of a participant; of all where nothing is named."""
        return [p for p in self.processes if kind in (None, p.name.kind) and name in (None, p.name.name)]

    def check_fingerprint(self, expected: Mapping[str, str], override: Collection[str] = ()) -> None:
        """Raise ForeignObject, naming each field of what the run means that differs and is not in `override`."""
        fields = [f for f in differing_fields(expected, self.manifest.fingerprint) if f not in override]
        if fields:
            reason = f"it was written by a run that differs in {', '.join(fields)}"
            raise ForeignObject(f"checkpoint {self.ref.checkpoint}", reason, fields)

    async def verify(self, progress: Progress | None = None, *, externals: Collection[str] = ()) -> None:
        """Check the digest of every part, frame and blob, and of every file referred to outside the store.

        Of those, local files may be opened and what lies below the URLs in `externals`. Raises CorruptCheckpoint, and
        InvalidInput, which names the file, where the checkpoint refers to any other.
        """
        await self.verify_shares(self.processes, progress)
        await self.verify_own(externals)

    async def verify_shares(self, processes: Iterable[Process], progress: Progress | None = None) -> None:
        """Check the digest of every part, frame and blob of some processes, as a participant does with its own.

        Raises CorruptCheckpoint.
        """
        shares = list(processes)
        jobs = [
            (share, part, frames)
            for share in shares
            for part, frames in zip(share.manifest.parts, share.frames_by_part(), strict=True)
        ]
        await map_bounded(partial(self._verify_part, progress), jobs, self._store.limits.frames_in_flight)
        blobs = dict.fromkeys(ref for share in shares for ref in share.blobs)
        await map_bounded(self._verify_blob, blobs, self._store.limits.requests_in_flight)

    async def verify_own(self, externals: Collection[str] = ()) -> None:
        """Check what is the controller's own: its state's blobs, and every file referred to outside the store.

        Raises as `verify`.
        """
        blobs = self.manifest.state.refs if self.manifest.state else ()
        await map_bounded(self._verify_blob, blobs, self._store.limits.requests_in_flight)
        await check_externals(self.manifest.externals, externals, self._store.limits)

    @damage_seen_twice
    async def _verify_part(self, progress: Progress | None, job: tuple[Process, Part, list[Frame]]) -> None:
        """Piece by piece, none of them longer than a usual part or one frame, whatever the manifest announces."""
        process, part, frames = job
        key = part_key(self.ref.checkpoint, process.name, part.name)
        digest = hashlib.sha256()
        for held in pieces(frames, self._store.limits.part_bytes):
            start, end = held[0].offset, held[-1].offset + held[-1].size
            one_more = 1 if end == part.size else 0  # It tells whether the object ends where it should.
            data = await self._read_range(key, start, end - start + one_more)
            await anyio.to_thread.run_sync(check_piece, key, data, held, digest)
        if digest.hexdigest() != part.sha256:
            raise CorruptCheckpoint(key, "its content does not match its digest")
        if progress is not None:
            progress(part.size)

    async def _verify_blob(self, ref: BlobRef) -> None:
        await check_blob(self._store, ref, self._largest(ref))

    def _largest(self, ref: BlobRef) -> int:
        """What a blob may have, for what it holds."""
        return self._store.limits.max_state_bytes if ref in self._states else self._store.limits.max_blob_bytes

    @damage_seen_twice
    async def read_blob(self, ref: BlobRef) -> bytes:
        """A payload kept in a blob, checked by its digest. Raises CorruptCheckpoint."""
        check_blob_size(ref, self._largest(ref))
        data = await read_pinned(self._store, ref.key, ref.size)
        if await anyio.to_thread.run_sync(sha256, data) != ref.sha256:
            raise CorruptCheckpoint(ref.key, "its content does not match its digest")
        return data

    def blob_reader(self, processes: Iterable[Process]) -> ReadBlob:
        """`read_blob` for what the indexes of some processes name; whoever asks for another blob has damage."""
        named = {ref for process in processes for ref in process.blobs}

        async def read(ref: BlobRef) -> bytes:
            if ref not in named:
                raise CorruptCheckpoint(f"checkpoint {self.ref.checkpoint}", f"it names blob {ref}, and no index does")
            return await self.read_blob(ref)

        return read

    async def state(self) -> StateValue:
        """The controller's own state."""
        return await decode_state(self.manifest.state, "the controller", self.read_blob)

    async def process_state(self, process: Process) -> StateValue:
        """A participant process's own state."""
        return await decode_state(process.manifest.state, str(process.name), self.read_blob)

    async def rollout(self, rollout_id: str) -> dict[ProcessName, RawRecord]:
        """The records of one rollout, from each participant that has one, reading no other frame."""
        found = {}
        for process in self.processes:
            async with self.raw_records([process], rollouts={rollout_id}) as records:
                async for record in records:
                    found[process.name] = record
        return found

    def raw_records(
        self,
        processes: Iterable[Process] | None = None,
        *,
        shard: Shard = WHOLE,
        rollouts: Collection[str] | None = None,
    ) -> AbstractAsyncContextManager[AsyncIterator[RawRecord]]:
        """Records as lines, in the order in which they were written; memory holds a few frames at a time.

        `shard` picks whole frames, `rollouts` single records. Raises CorruptCheckpoint from the iterator.
        """
        return self._stream(self._runs(processes, shard, rollouts), as_it_is)

    @asynccontextmanager
    async def records(
        self,
        processes: Iterable[Process] | None = None,
        *,
        shard: Shard = WHOLE,
        rollouts: Collection[str] | None = None,
        load_blobs: bool = True,
    ) -> AsyncIterator[AsyncIterator[Record]]:
        """As `raw_records`, parsed in worker threads; bytes come back from blobs unless `load_blobs` is False."""
        async with self._stream(self._runs(processes, shard, rollouts), parse) as parsed:
            yield self._filled(parsed) if load_blobs else parsed

    async def _filled(self, records: AsyncIterator[Record]) -> AsyncIterator[Record]:
        async for record in records:
            if record.blobs:
                yield Record(record.life, await resolve(record.payload, self.read_blob))
            else:
                yield record

    def _runs(self, processes: Iterable[Process] | None, shard: Shard, rollouts: Collection[str] | None) -> list[Run]:
        runs: list[Run] = []
        for process in self.processes if processes is None else processes:
            for position, frame in enumerate(process.frames):
                if position % shard.count == shard.number and (wanted := _wanted(frame, rollouts)):
                    if not (runs and runs[-1].takes(process, frame, self._store.limits.read_bytes)):
                        runs.append(Run(process, []))
                    runs[-1].frames.append((frame, wanted))
        return runs

    @asynccontextmanager
    async def _stream(
        self, runs: list[Run], convert: Callable[[RawRecord, Frame], Item]
    ) -> AsyncIterator[AsyncIterator[Item]]:
        async with open_group() as group:
            yield self._pump(runs, convert, group)
            group.cancel_scope.cancel()

    async def _pump(
        self, runs: list[Run], convert: Callable[[RawRecord, Frame], Item], group: TaskGroup
    ) -> AsyncIterator[Item]:
        window: deque[_Slot[Item]] = deque()
        todo = deque(runs)
        while todo or window:
            while todo and len(window) < self._store.limits.frames_in_flight:
                window.append(_Slot())
                group.start_soon(self._load, todo.popleft(), convert, window[-1])
            slot = window.popleft()
            await slot.done.wait()
            if slot.failure is not None:
                raise slot.failure
            for item in slot.items:
                yield item

    async def _load(self, run: Run, convert: Callable[[RawRecord, Frame], Item], slot: "_Slot[Item]") -> None:
        try:
            slot.items = await self._read_run(run, convert)
        except Exception as error:
            slot.failure = error
        finally:
            slot.done.set()

    @damage_seen_twice
    async def _read_run(self, run: Run, convert: Callable[[RawRecord, Frame], Item]) -> list[Item]:
        data = await self._read_range(run.key, run.start, run.size)
        return await anyio.to_thread.run_sync(unpack_run, run.key, data, run.frames, convert, self._store.limits)

    async def _read_range(self, key: str, start: int, length: int) -> bytes:
        try:
            return await self._store.backend.get_range(key, start, length)
        except NotFound as error:
            raise CorruptCheckpoint(key, "it is missing") from error


@dataclass(slots=True)
class _Slot(Generic[Item]):
    items: list[Item] = field(default_factory=list)
    failure: BaseException | None = None
    done: anyio.Event = field(default_factory=anyio.Event)


def _wanted(frame: Frame, rollouts: Collection[str] | None) -> list[int]:
    if rollouts is None:
        return list(range(len(frame.lives)))
    return [line for line, life in enumerate(frame.lives) if life.rollout_id in rollouts]


def _check_lives(manifest: AggregateManifest, processes: Iterable[Process]) -> None:
    """No rollout stands twice in the three sets or in one participant, and each record's life is the scope's."""
    name = f"checkpoint {manifest.checkpoint}"
    scope = {life.rollout_id: life for life in manifest.scope}
    others = [*manifest.restarts, *(dropped.life for dropped in manifest.dropped)]
    if len({*scope, *(life.rollout_id for life in others)}) != len(manifest.scope) + len(others):
        raise CorruptCheckpoint(name, "a rollout stands twice in its three sets")
    held: dict[tuple[str, str], set[str]] = {}
    for process in processes:
        holder = process.name
        rollouts = held.setdefault((holder.kind, holder.name), set())
        for life in lives_of(process):
            expected = scope.get(life.rollout_id)
            if (expected is not life and expected != life) or life.rollout_id in rollouts:
                raise CorruptCheckpoint(name, f"{holder} holds {life}, which its scope does not have so")
            rollouts.add(life.rollout_id)
    kept = set[str]().union(*held.values())
    for life in manifest.scope:
        if life.rollout_id not in kept:
            raise CorruptCheckpoint(name, f"its scope has {life}, of which no participant holds a record")


def lives_of(process: Process) -> Iterator[Life]:
    """The lives whose records a process holds, in order."""
    return (life for frame in process.frames for life in frame.lives)
