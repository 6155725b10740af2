"""Write the golden store of format version 1: `python -m tests.golden.make_v1 FOLDER`.

Everything random or of the moment (run id, tokens, times) is fixed, so that the same code and libraries write the
same bytes. The committed copy is written once and kept: a test reads it with whatever the code has become.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio

from bench.command_line import Command, folder
from store import (
    Chain,
    CheckpointId,
    Claim,
    Life,
    Limits,
    LocalBackend,
    ParticipantCommit,
    ProcessName,
    Publication,
    RawRecord,
    Record,
    Ref,
    Seal,
    Segment,
    Store,
    open_checkpoint,
)
from store.layout import FORMAT_KEY, aggregate_key
from store.manifest import AggregateManifest, Dropped, ParticipantRef
from store.root import Format
from store.sealed import digest_of, seal
from store.statedoc import encode_state
from store.values import BlobPlan

RUN_ID = "0123456789abcdef0123456789abcdef"
LIMITS = Limits(
    frame_bytes=256, part_bytes=300, inline_payload_bytes=64, inline_state_bytes=200, max_rollout_id_chars=200
)
AGENT = ProcessName("agent", "solver", "p0")
TOOLS = ProcessName("resources", "tools", "worker-1")
IMAGE = bytes(range(256))
ODD: dict[str, Any] = {
    "": None, "$bytes": b"\x00\xff", "$blob": "$", "order": {"z": 1, "a": 2}, "min": -(2**63), "max": 2**64 - 1,
    "floats": [-0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e22], "text": "\u00e4\u2028\U0001f4a9\x00\x7f",
    "empty": [[], {}],
}  # fmt: skip
STATE = {"cursor": 3, "seed": b"\x01\x02", "pad": "x" * 300}
FINGERPRINT = {"dataset": "sha256:1", "config": "sha256:2"}
SOFTWARE = {"midflight": "1", "orjson": "1", "zstandard": "1"}
FIRST, SECOND = CheckpointId(1, 1), CheckpointId(1, 2)
TOKENS = [f"{n:032x}" for n in range(1, 20)]


def life(rollout_id: str, n: int) -> Life:
    """Of the first epoch."""
    return Life(rollout_id, 1, 0, n)


def agent_records() -> list[Record]:
    """Plain records, one with every odd value, and one with a blob."""
    plain = [Record(life(f"task-{n}", n), {"turns": [f"turn {n}.{turn}" for turn in range(4)]}) for n in range(8)]
    return [*plain, Record(life("odd", 8), ODD), Record(life("image", 9), {"image": IMAGE, "again": [IMAGE]})]


def tools_records() -> list[Record]:
    """A share of some of the same rollouts."""
    return [Record(life("task-0", 0), {"files": {"a.txt": b"hello"}}), Record(life("empty", 10), {})]


class Writer:
    """Writes checkpoints as a controller does, without anything random."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._chain = Chain(store.backend, store.run_id, store.limits)
        self._tokens = iter(TOKENS)

    async def append(self, epoch: int | None, action: Any) -> None:
        """The next entry of the chain, with the next token."""
        await self._chain.append(epoch, lambda chain: action, next(self._tokens))

    async def publish(
        self, checkpoint: CheckpointId, parent: Ref | None, shares: dict[ProcessName, Iterable[Record | RawRecord]]
    ) -> Ref:
        """Commit the shares and publish them."""
        reused = (await open_checkpoint(self._store, parent)).as_parent() if parent else None
        receipts = [
            await ParticipantCommit(self._store, checkpoint, process, parent=reused).run(share, state={"n": 1})
            for process, share in shares.items()
        ]
        scope = {life: None for share in shares.values() for life in (record.life for record in share)}
        ref = await self._write_aggregate(checkpoint, parent, [receipt.ref for receipt in receipts], list(scope))
        await self.append(1, Publication(ref=ref))
        return ref

    async def _write_aggregate(
        self, checkpoint: CheckpointId, parent: Ref | None, participants: list[ParticipantRef], scope: list[Life]
    ) -> Ref:
        async def put(outgoing: Any) -> None:
            for blob, data in outgoing.items():
                await self._store.backend.put(blob.key, data)

        manifest = AggregateManifest(
            run_id=RUN_ID,
            checkpoint=checkpoint,
            epoch=1,
            parent=parent.checkpoint if parent else None,
            participants=tuple(participants),
            scope=tuple(scope),
            restarts=(life("restarted", 20),),
            dropped=(Dropped(life=life("dropped", 21), reason="its verifier is gone"),),
            records=sum(ref.records for ref in participants),
            size=sum(ref.bytes for ref in participants),
            state=await encode_state(STATE, BlobPlan(checkpoint, (), LIMITS), "the controller", put),
            output=(Segment(name="output-1.jsonl", length=123, digest="ab" * 32),),
            fingerprint=FINGERPRINT,
            tags=("golden",),
            created_at="2026-01-01T00:00:00+00:00",
            software=SOFTWARE,
        )
        data = seal(manifest.model_dump(mode="json"))
        await self._store.backend.create(aggregate_key(checkpoint), data)
        return Ref(checkpoint=checkpoint, digest=digest_of(data), run_id=RUN_ID)


async def make(folder: Path) -> None:
    """Write the whole store into an empty folder."""
    backend = LocalBackend(folder)
    await backend.make_root()
    await backend.create(FORMAT_KEY, seal(Format(run_id=RUN_ID).model_dump(mode="json")))
    writer = Writer(Store(backend, RUN_ID, LIMITS))
    await writer.append(None, Claim(base=None))
    await writer.append(1, Seal(segments=(Segment(name="output-0.jsonl", length=7),)))
    first = await writer.publish(FIRST, None, {AGENT: agent_records(), TOOLS: tools_records()})
    shares: dict[ProcessName, Iterable[Record | RawRecord]] = {AGENT: [Record(life("image", 9), {"image": IMAGE})]}
    await writer.publish(SECOND, first, shares)


if __name__ == "__main__":
    command = Command("tests.golden.make_v1", __doc__)
    command.add_argument("folder", type=folder, help="an empty one, for the store")
    anyio.run(make, command.parse_args().folder)
