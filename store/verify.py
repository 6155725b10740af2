"""Verifying a root: every entry, manifest, part, frame and blob is looked at, and everything wrong is collected.

Opening a checkpoint stops at the first damage; this goes on, so that an operator sees all of it at once. Only a store
that cannot be asked (unreachable, access denied) ends it. Order: the objects are listed first and the chain is read
after that, so that a checkpoint published meanwhile is not taken for a leftover. Where damage is found and a deletion
was planned meanwhile, everything is looked at once more.

Memory holds a few pieces of parts and blobs at a time, whatever sizes a manifest announces.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial

import anyio.to_thread

from .audit import ChainAudit, audit_chain, noting
from .backends.base import ObjectInfo
from .contents import Look, check_blob, check_part, read_blob
from .entries import Ref, require
from .errors import AccessDenied
from .externals import UNREACHABLE, check_external, may_open
from .findings import Finding, Seen, secrets_in_document
from .index import Frame, by_part
from .layout import CHAIN_PREFIX, BlobRef, CheckpointId, aggregate_key, index_key, part_key, participant_key
from .leftovers import Owned, find_leftovers
from .litter import temporary_files
from .manifest import AggregateManifest, External, ParticipantManifest, ParticipantRef, StateDocument
from .opened import load_aggregate, load_frames, load_participant
from .reader import Checkpoint, Process
from .root import Store
from .statedoc import decode_state
from .tasks import map_bounded

Progress = Callable[[int], None]
"""Called with the number of bytes just read."""
_ORDER = ("damage", "secret", "leftover", "warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What verifying found."""

    findings: tuple[Finding, ...]
    """Damage first, then secrets, leftovers and warnings."""
    checkpoints: tuple[CheckpointId, ...]
    """Those that were looked at."""
    deep: bool
    entries: int
    """Of the chain."""
    records: int
    parts: int
    blobs: int
    bytes: int
    """Read of parts and blobs."""

    @property
    def sound(self) -> bool:
        """Neither damage nor a secret was found."""
        return all(finding.severity not in ("damage", "secret") for finding in self.findings)


async def verify_store(
    store: Store,
    which: CheckpointId | None = None,
    *,
    deep: bool = False,
    progress: Progress | None = None,
    externals: Collection[str] = (),
) -> VerifyReport:
    """Look at the chain and at one checkpoint, or at everything below the root.

    `deep` also parses every record strictly, reads every blob, and looks for credentials in those. Of the files outside
    the store, local ones are checked and what lies below the URLs in `externals`; of others, and of those that cannot
    be reached, a warning says that they were not. Raises NoCheckpoint and CheckpointDeleted for a `which` that is not
    there, and the errors of a store that cannot be asked.
    """
    while True:
        inspection = _Inspection(store, Look(store, deep, Seen(), progress), externals)
        report = await inspection.run(which)
        if report.sound or not await inspection.was_overtaken():
            return report


@dataclass(slots=True)
class _Inspection:
    """One look at a root."""

    store: Store
    look: Look
    externals: Collection[str]
    blobs: dict[BlobRef, Ref] = field(default_factory=dict)
    """Every blob that a checkpoint names, with the first one that does."""
    states: set[BlobRef] = field(default_factory=set)
    """Those of them that hold a state."""
    keys: dict[CheckpointId, set[str]] = field(default_factory=dict)
    """The objects of each checkpoint of which all manifests and indexes could be read."""
    chain: ChainAudit = field(default_factory=ChainAudit)

    async def run(self, which: CheckpointId | None) -> VerifyReport:
        listed = await self._list() if which is None else None
        self.chain = await audit_chain(self.store, await self._chain_listing(listed), self.look.seen.damage)
        known = self.chain.known
        refs = list(known.refs.values()) if which is None else [require(known, self.store.url, which)]
        for ref in refs:
            await self._checkpoint(ref)
        width = self.store.limits.frames_in_flight if self.look.deep else self.store.limits.requests_in_flight
        await map_bounded(self._blob, self.blobs.items(), width)
        if listed is not None:
            self.look.seen.findings += find_leftovers(listed, self._owned())
            self.look.seen.findings += await _temporary_files(self.store)
        return self._report(refs)

    async def was_overtaken(self) -> bool:
        """Whether a deletion was planned since the chain was read: what looked damaged may be just deleted."""
        again = await audit_chain(self.store, await self._chain_listing(None), lambda where, message: None)
        return again.known.deleted.keys() != self.chain.known.deleted.keys()

    def _report(self, refs: list[Ref]) -> VerifyReport:
        seen = self.look.seen
        return VerifyReport(
            findings=tuple(sorted(seen.findings, key=lambda found: (_ORDER.index(found.severity), found.object))),
            checkpoints=tuple(ref.checkpoint for ref in refs),
            deep=self.look.deep,
            entries=self.chain.length,
            records=seen.records,
            parts=seen.parts,
            blobs=seen.blobs,
            bytes=seen.bytes,
        )

    def _owned(self) -> Owned:
        known = self.chain.known
        return Owned(
            state=self.chain.state,
            existing=known.refs,
            deleted=known.deleted,
            keys=self.keys,
            blobs={ref.key for ref in self.blobs} if self.keys.keys() >= known.refs.keys() else None,
        )

    async def _list(self) -> list[ObjectInfo] | None:
        try:
            return await self.store.backend.list("")
        except AccessDenied:
            self.look.seen.warn(self.store.url, "it may not be listed, so nobody looked for leftovers")
            return None

    async def _chain_listing(self, listed: list[ObjectInfo] | None) -> list[ObjectInfo]:
        if listed is not None:
            return [info for info in listed if info.key.startswith(CHAIN_PREFIX)]
        try:
            return await self.store.backend.list(CHAIN_PREFIX)
        except AccessDenied:
            return []

    async def _checkpoint(self, ref: Ref) -> None:
        key = aggregate_key(ref.checkpoint)
        with noting(self.look.seen.damage, key):
            manifest = await load_aggregate(self.store, ref)
            self.look.seen.findings += await anyio.to_thread.run_sync(secrets_in_document, key, manifest)
            await self._state(key, "the controller", manifest.state, ref)
            await self._externals(manifest.externals)
            await self._processes(ref, manifest)

    async def _processes(self, ref: Ref, manifest: AggregateManifest) -> None:
        keys, processes = {aggregate_key(ref.checkpoint)}, []
        for participant in manifest.participants:
            share = await self._participant(ref, participant, keys)
            if share is not None:
                processes.append(share)
                self._name_blobs(share.blobs, ref)
        if len(processes) != len(manifest.participants):
            return
        with noting(self.look.seen.damage, f"checkpoint {ref.checkpoint}"):
            await anyio.to_thread.run_sync(Checkpoint, self.store, ref, manifest, tuple(processes))
        self.keys[ref.checkpoint] = keys

    async def _participant(self, ref: Ref, named: ParticipantRef, keys: set[str]) -> Process | None:
        """Look at one process's share; None where its manifest or index could not be read."""
        process = named.process_name
        key = participant_key(ref.checkpoint, process)
        with noting(self.look.seen.damage, key):
            manifest = await load_participant(self.store, ref.checkpoint, named, ref.run_id)
            keys.update((key, index_key(ref.checkpoint, process, manifest.index.sha256)))
            keys.update(part_key(ref.checkpoint, process, part.name) for part in manifest.parts)
            self.look.seen.findings += await anyio.to_thread.run_sync(secrets_in_document, key, manifest)
            await self._state(key, str(process), manifest.state, ref)
            frames = await self._frames(manifest)
            check = partial(self._part, manifest, by_part(frames or (), len(manifest.parts)))
            await map_bounded(check, range(len(manifest.parts)), self.store.limits.frames_in_flight)
            return None if frames is None else Process(manifest, tuple(frames))
        return None

    async def _frames(self, manifest: ParticipantManifest) -> list[Frame] | None:
        key = index_key(manifest.checkpoint, manifest.process_name, manifest.index.sha256)
        with noting(self.look.seen.damage, key):
            return await load_frames(self.store, manifest)
        return None

    async def _part(self, manifest: ParticipantManifest, frames: list[list[Frame]], position: int) -> None:
        key = part_key(manifest.checkpoint, manifest.process_name, manifest.parts[position].name)
        with noting(self.look.seen.damage, key):
            await check_part(self.look, manifest, frames[position], position)

    def _name_blobs(self, blobs: Iterable[BlobRef], ref: Ref) -> None:
        for blob in blobs:
            self.blobs.setdefault(blob, ref)

    async def _blob(self, item: tuple[BlobRef, Ref]) -> None:
        blob, ref = item

        def note(where: str, message: str) -> None:
            self.look.seen.damage(where, f"{message}; named by checkpoint {ref.checkpoint}")

        with noting(note, blob.key):
            limits = self.store.limits
            is_state = blob in self.states
            await check_blob(self.look, blob, limits.max_state_bytes if is_state else limits.max_blob_bytes)

    async def _state(self, key: str, owner: str, state: StateDocument | None, ref: Ref) -> None:
        """Parse a state, which is read and scanned also where it lies in a blob; the bytes in it are blobs like any."""
        if state is None:
            return
        self._name_blobs(state.refs, ref)
        self.states.update(state.own_refs)

        async def read(blob: BlobRef) -> bytes:
            if blob not in state.own_refs:
                return b""
            return await read_blob(self.look, blob, self.store.limits.max_state_bytes, keep=True)

        with noting(self.look.seen.damage, key):
            await decode_state(state, owner, read)

    async def _externals(self, externals: Iterable[External]) -> None:
        for external in externals:
            if not may_open(external.url, self.externals):
                message = f"not checked: it is on no local disk and not allowed ({external.size} bytes expected)"
                self.look.seen.warn(external.url, message)
                continue
            with noting(self.look.seen.damage, external.url):
                try:
                    await check_external(external, self.store.limits)
                except UNREACHABLE as error:
                    self.look.seen.warn(external.url, f"not checked: {error.message}")


async def _temporary_files(store: Store) -> list[Finding]:
    message = "a temporary file of a write in progress, or of one that died"
    found = await temporary_files(store)
    return [Finding("leftover", info.key, f"1 object, {info.size} bytes: {message}") for info in found]
