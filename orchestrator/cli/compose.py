"""From what the store gives to what a command says: plain functions, no input and no output."""

from collections.abc import Iterable, Sequence

import orjson

from store import (
    AggregateManifest,
    Chain,
    Checkpoint,
    CheckpointId,
    Deletion,
    DeletionEnd,
    Entry,
    Import,
    InvalidInput,
    ProcessName,
    PruneReport,
    Publication,
    RawRecord,
    Ref,
    StoreError,
    Survey,
    VerifyReport,
)
from store.entries import require

from .documents import (
    Decided,
    DroppedRollout,
    Failure,
    File,
    Length,
    Plan,
    Pruned,
    Row,
    Share,
    Shown,
    ShownRecord,
    ShownRollout,
    Verified,
)
from .exits import Exit


def failure(error: StoreError, code: Exit) -> Failure:
    """What to say about an error."""
    return Failure(error=type(error).__name__, message=error.message, hint=error.hint, exit=code)


def made_by(chain: Chain) -> dict[CheckpointId, Entry]:
    """The entry that made each checkpoint of the chain exist."""
    found: dict[CheckpointId, Entry] = {}
    for entry in chain.entries:
        if isinstance(entry.action, Publication | Import):
            found.setdefault(entry.action.ref.checkpoint, entry)
    return found


def row(ref: Ref, chain: Chain, entry: Entry, manifest: AggregateManifest | StoreError) -> Row:
    """One line of a list."""
    place = Row(
        checkpoint=ref.checkpoint,
        head=chain.state.head == ref,
        imported=isinstance(entry.action, Import),
        entry=entry.n,
        damage=manifest.message if isinstance(manifest, StoreError) else None,
    )
    if isinstance(manifest, StoreError):
        return place
    return Row(
        checkpoint=place.checkpoint,
        head=place.head,
        imported=place.imported,
        entry=place.entry,
        rollouts=len(manifest.scope),
        restarts=len(manifest.restarts),
        dropped=len(manifest.dropped),
        records=manifest.records,
        bytes=manifest.size,
        tags=manifest.tags,
        created_at=manifest.created_at,
    )


def deletions(chain: Chain) -> tuple[Plan, ...]:
    """All deletions that the chain has planned, oldest first."""
    ended = {entry.action.plan for entry in chain.entries if isinstance(entry.action, DeletionEnd)}
    return tuple(
        Plan(entry=entry.n, checkpoints=entry.action.checkpoints, finished=entry.n in ended)
        for entry in chain.entries
        if isinstance(entry.action, Deletion)
    )


def shown(url: str, checkpoint: Checkpoint, chain: Chain, entry: Entry) -> Shown:
    """What there is to know of one checkpoint."""
    manifest = checkpoint.manifest
    blobs = checkpoint.blobs
    return Shown(
        store=url,
        checkpoint=manifest.checkpoint,
        head=chain.state.head == checkpoint.ref,
        imported=isinstance(entry.action, Import),
        entry=entry.n,
        run_id=manifest.run_id,
        epoch=manifest.epoch,
        parent=manifest.parent,
        created_at=manifest.created_at,
        tags=manifest.tags,
        scope=tuple(map(str, manifest.scope)),
        restarts=tuple(map(str, manifest.restarts)),
        dropped=tuple(DroppedRollout(life=str(one.life), reason=one.reason) for one in manifest.dropped),
        participants=tuple(
            Share(
                participant=str(process.name),
                records=process.manifest.records,
                bytes=process.manifest.size,
                blobs=len(set(process.blobs)),
            )
            for process in checkpoint.processes
        ),
        records=manifest.records,
        bytes=manifest.size,
        blobs=len(blobs),
        blob_bytes=sum(blob.size for blob in blobs),
        has_state=manifest.state is not None,
        externals=tuple(File(url=external.url, bytes=external.size) for external in manifest.externals),
        output=tuple(Length(name=segment.name, bytes=segment.length) for segment in manifest.output),
        fingerprint=manifest.fingerprint,
        software=manifest.software,
    )


def shown_rollout(
    url: str, manifest: AggregateManifest, rollout_id: str, records: dict[ProcessName, RawRecord]
) -> ShownRollout | None:
    """What a restore would do with one rollout, and its records; None where the checkpoint does not know it."""
    sets: Sequence[tuple[str, Iterable[tuple[str, str, str]]]] = (
        ("continues", ((life.rollout_id, str(life), "") for life in manifest.scope)),
        ("restarts", ((life.rollout_id, str(life), "") for life in manifest.restarts)),
        ("dropped", ((one.life.rollout_id, str(one.life), one.reason) for one in manifest.dropped)),
    )
    for becomes, members in sets:
        for member, life, reason in members:
            if member == rollout_id:
                return ShownRollout(
                    store=url,
                    checkpoint=manifest.checkpoint,
                    rollout=rollout_id,
                    becomes=becomes,
                    life=life,
                    reason=reason,
                    records=tuple(shown_record(name, record) for name, record in records.items()),
                )
    return None


def shown_record(name: ProcessName, record: RawRecord) -> ShownRecord:
    """One record, made of what its line was parsed to and never of the line. Raises CorruptCheckpoint."""
    life = record.parse().life
    return ShownRecord(participant=str(name), life=str(life), record=orjson.loads(record.line))


def verified(url: str, report: VerifyReport) -> Verified:
    """A report of `verify`."""
    return Verified(
        store=url,
        sound=report.sound,
        deep=report.deep,
        entries=report.entries,
        checkpoints=report.checkpoints,
        records=report.records,
        parts=report.parts,
        blobs=report.blobs,
        bytes=report.bytes,
        findings=report.findings,
    )


def check_drops(url: str, chain: Chain, drops: Iterable[CheckpointId]) -> None:
    """Refuse to drop what is not there, or the head. Raises NoCheckpoint, CheckpointDeleted, InvalidInput."""
    for checkpoint in drops:
        require(chain.known, url, checkpoint)
        if chain.state.head and chain.state.head.checkpoint == checkpoint:
            raise InvalidInput(
                f"checkpoint {checkpoint} is the head and is never deleted", hint="Publish or claim another one first"
            )


def pruned(url: str, found: Survey, report: PruneReport | None) -> Pruned:
    """What a prune did, or without a report would do."""
    return Pruned(
        store=url,
        dry_run=report is None,
        checkpoints=tuple(
            Decided(checkpoint=one.checkpoint, keep=one.keep, reason=one.reason) for one in found.decisions
        ),
        leftovers=found.leftovers,
        objects=len(found.doomed),
        bytes=found.size,
        deleted=report.deleted if report else 0,
        resumed=tuple(report.resumed) if report else (),
        failures=tuple(report.failures) if report else (),
    )
