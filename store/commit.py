"""The participant's half of a checkpoint: parts, index and blobs first, then the manifest that names them.

Order: (1) parts, as frames are ready, and blobs; (2) the index; (3) a look at each object by name and size; (4) the
manifest, created exclusively. The names of parts and index hold their digests, so that leftovers of an earlier try are
never mixed in, and a try that comes too late overwrites nothing that the standing manifest names.

    crash or stop          what is left
    before 4               objects that no manifest names; the same commit may be tried again
    during or after 4      the manifest, or nothing of it; it counts only once an aggregate manifest names its digest

The same records give the same manifest: frame borders follow from the records alone, never from timing. Where the
manifest already stands nothing is written: the commit is worked out again and must come to the same one.
"""

from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import partial
from itertools import islice

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskGroup

from .backends.retry import create_once
from .errors import AccessDenied, CheckpointConflict, CommitStopped, NoSpace, NotFound, StoreUnavailable
from .layout import BlobRef, CheckpointId, ProcessName, participant_key
from .lazy import LazyBytes, in_groups
from .limits import MIB
from .manifest import Agreement, ParticipantManifest, ParticipantRef, software_versions
from .parts import Batch, PartWriter, encode_batch
from .records import RawRecord, Record
from .root import Store
from .sealed import digest_of, seal_within
from .statedoc import StateValue, encode_state
from .tasks import Stage, map_bounded, no_stage, open_group
from .values import BlobPlan

Records = Iterable[Record | RawRecord] | AsyncIterable[Record | RawRecord]
Take = Callable[[int], Awaitable[list[Record | RawRecord]]]
_FIRST_BATCH, _LARGEST_BATCH = 16, 256
_TURN = 64
"""Records taken before other tasks get a turn."""
_LAG = 4
"""A batch is sized after the one so many before it: fixed, so that frame borders follow from the records alone."""
_FILL = 7 / 8
"""How much of a frame a batch is meant to fill: one that comes out larger than expected should still be one frame."""
_LAZY_BYTES = 64 * MIB
"""Of payloads that are read when they are written, so many are in memory at once, or one."""


def _no_guard() -> None:
    """The default guard: nothing to check."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The head that a commit continues: its id, and its blobs, the only ones that may be named again."""

    checkpoint: CheckpointId
    blobs: Collection[BlobRef]


@dataclass(frozen=True, slots=True)
class Receipt:
    """A participant's answer to a commit."""

    ref: ParticipantRef
    manifest: ParticipantManifest


class ParticipantCommit:
    """One process's commit for one checkpoint. `run` once; `stop` from anywhere before it is through.

    A process runs one commit of a round at a time, which the control plane sees to: two with the same records share the
    names of their parts, and one that fails deletes what it wrote unless a manifest stands already.
    """

    def __init__(
        self,
        store: Store,
        checkpoint: CheckpointId,
        process: ProcessName,
        *,
        parent: Parent | None = None,
        guard: Callable[[], None] = _no_guard,
        stage: Stage = no_stage,
    ) -> None:
        """`guard` is called right before and after the manifest is written, and raises where the lease ran out.

        `stage` gives the context for `parts` and for `manifest`.
        """
        self._store = store
        self._checkpoint = checkpoint
        self._process = process
        self._parent = parent
        self._guard = guard
        self._stage = stage
        self._stopped = False
        self._sealing = False
        self._plan = BlobPlan(checkpoint, parent.blobs if parent else (), store.limits)
        self._parts = PartWriter(store, checkpoint, process)
        self._written_blobs: set[BlobRef] = set()

    def __repr__(self) -> str:
        phase = "stopped" if self._stopped else "sealing" if self._sealing else "writing"
        return f"<Commit {self._checkpoint} of {self._process} {phase}, {len(self._parts.unique)} records>"

    def stop(self) -> None:
        """From now on this commit writes no manifest; `run` raises CommitStopped unless it was already sending it."""
        self._stopped = True

    async def run(self, records: Records, *, state: StateValue = None, agreements: Sequence[Agreement] = ()) -> Receipt:
        """Write everything and the manifest. Raises InvalidRecord, DuplicateRollout, CheckpointConflict, CommitStopped
        and the errors of the backend; after any of them no manifest of this commit stands, unless it is OutcomeUnknown.
        """
        standing = await self._standing_manifest()
        self._parts.dry = standing is not None
        try:
            with self._stage("parts"):
                manifest = await self._write_all(records, state, tuple(agreements))
            self._check_stopped()
            if standing is None:
                await self._parts.check_all_there()
            self._guard()
            self._check_stopped()
        except BaseException:
            await self._parts.discard()
            raise
        with self._stage("manifest"):
            return await self._seal(manifest, standing)

    async def _write_all(self, records: Records, state: StateValue, agreements: tuple[Agreement, ...]) -> bytes:
        async with open_group() as group:
            await self._pump(records, group)
        index = await self._parts.finish()
        document = await encode_state(state, self._plan, str(self._process), self._put_blobs)
        manifest = ParticipantManifest(
            run_id=self._store.run_id,
            checkpoint=self._checkpoint,
            parent=self._parent.checkpoint if self._parent else None,
            kind=self._process.kind,
            name=self._process.name,
            process=self._process.process,
            records=len(self._parts.unique),
            size=sum(part.size for part in self._parts.parts),
            parts=tuple(self._parts.parts),
            index=index,
            blobs=len(self._parts.blobs.union(document.refs if document else ())),
            blob_bytes=sum(ref.size for ref in self._written_blobs),
            state=document,
            agreements=agreements,
            software=software_versions(),
        )
        return seal_within(self._store.limits.max_manifest_bytes, manifest.model_dump(mode="json"))

    async def _standing_manifest(self) -> bytes | None:
        key = participant_key(self._checkpoint, self._process)
        try:
            return await self._store.backend.get(key, max_bytes=self._store.limits.max_manifest_bytes)
        except NotFound:
            return None

    async def _seal(self, data: bytes, standing: bytes | None) -> Receipt:
        key = participant_key(self._checkpoint, self._process)
        self._sealing = True
        if standing not in (None, data):
            raise CheckpointConflict(key, "an earlier commit of this round wrote other records")
        # Also where it stands: the sync of an earlier try may have failed, and this makes sure of it.
        try:
            await create_once(self._store.backend, key, data)
        except (AccessDenied, NoSpace, StoreUnavailable):  # These say that nothing was written.
            await self._parts.discard()
            raise
        self._guard()
        manifest = ParticipantManifest.model_validate_json(data)
        return Receipt(
            ParticipantRef(
                kind=manifest.kind,
                name=manifest.name,
                process=manifest.process,
                digest=digest_of(data),
                size=len(data),
                records=manifest.records,
                bytes=manifest.size,
            ),
            manifest,
        )

    def _check_stopped(self) -> None:
        if self._stopped:
            raise CommitStopped(f"{self._checkpoint} of {self._process}")

    async def _pump(self, records: Records, group: TaskGroup) -> None:
        """Keep a few batches in worker threads; place their frames in order."""
        take = _taker(records)
        window: deque[Batch] = deque()
        sizes = deque([_FIRST_BATCH] * _LAG)
        while batch := await take(sizes.popleft()):
            self._check_stopped()
            job = Batch()
            window.append(job)
            group.start_soon(self._work, batch, job)
            while window and (len(window) >= self._store.limits.frames_in_flight or not sizes):
                sizes.append(await self._land(window.popleft(), group))
        while window:
            await self._land(window.popleft(), group)
        self._parts.flush(group)

    async def _work(self, records: list[Record | RawRecord], job: Batch) -> None:
        try:
            await anyio.to_thread.run_sync(encode_batch, records, self._plan, job)
        except Exception as error:
            job.failure = error
        finally:
            job.done.set()

    async def _land(self, job: Batch, group: TaskGroup) -> int:
        """Place one finished batch; returns how many records the next one should take."""
        await job.done.wait()
        if job.failure is not None:
            raise job.failure
        if job.outgoing:
            await self._put_blobs(job.outgoing)
        if job.lazy:
            await self._put_lazy(job.lazy)
        for frame in job.frames:
            self._parts.add(frame, group)
        await self._parts.wait_for_room()
        wanted = int(_FILL * self._store.limits.frame_bytes) * job.records // max(1, job.raw_size)
        return max(1, min(_LARGEST_BATCH, wanted))

    async def _put_blobs(self, outgoing: Mapping[BlobRef, bytes]) -> None:
        async def put(item: tuple[BlobRef, bytes]) -> None:
            if not self._parts.dry:
                await self._store.backend.put(item[0].key, item[1])
            self._written_blobs.add(item[0])

        new = [(ref, data) for ref, data in outgoing.items() if ref not in self._written_blobs]
        await map_bounded(put, new, self._store.limits.requests_in_flight)

    async def _put_lazy(self, lazy: Mapping[BlobRef, LazyBytes]) -> None:
        async def put(item: tuple[BlobRef, LazyBytes]) -> None:
            if not self._parts.dry:
                data = await anyio.to_thread.run_sync(item[1].load, f"{self._process}, blob {item[0].sha256[:16]}")
                await self._store.backend.put(item[0].key, data)
            self._written_blobs.add(item[0])

        new = [(ref, data) for ref, data in lazy.items() if ref not in self._written_blobs]
        for group in in_groups(new, _LAZY_BYTES):
            await map_bounded(put, group, self._store.limits.requests_in_flight)


def _taker(records: Records) -> Take:
    """A function that takes the next so many records, or as many as are left."""
    if isinstance(records, AsyncIterable):
        return partial(_take_async, aiter(records))
    return partial(_take, iter(records))


async def _take(source: Iterator[Record | RawRecord], count: int) -> list[Record | RawRecord]:
    """With a turn for other tasks now and then: who exports makes each record when it is asked for it."""
    taken: list[Record | RawRecord] = []
    while more := list(islice(source, min(_TURN, count - len(taken)))):
        taken += more
        await anyio.lowlevel.checkpoint()
    return taken


async def _take_async(source: AsyncIterator[Record | RawRecord], count: int) -> list[Record | RawRecord]:
    taken: list[Record | RawRecord] = []
    while len(taken) < count:
        try:
            taken.append(await anext(source))
        except StopAsyncIteration:
            break
    return taken
