"""State of a controller or participant: inline where small and shallow, in blobs otherwise, read back exactly."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given

from store import CheckpointId, ParticipantManifest, open_checkpoint
from store.errors import CorruptCheckpoint, InvalidRecord
from store.layout import BlobRef
from store.limits import DEFAULT_LIMITS, Limits
from store.manifest import StateDocument
from store.sealed import load_model, seal
from store.statedoc import decode_state, encode_state
from store.values import BlobPlan
from tests.store.test_values import ODD, WITH_BYTES, same
from tests.support.checkpoints import AGENT, publish_rounds, records, store_with

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIMITS = Limits(inline_payload_bytes=32, inline_state_bytes=200, max_state_bytes=2000)


class Blobs(dict[BlobRef, bytes]):
    """Blobs kept in a dict."""

    async def put(self, outgoing: Mapping[BlobRef, bytes]) -> None:
        self.update(outgoing)

    async def read(self, ref: BlobRef) -> bytes:
        return self[ref]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


async def through_a_manifest(value: Any, blobs: Blobs, limits: Limits = LIMITS) -> tuple[StateDocument | None, Any]:
    """Encode, seal into a document, read that back with all its checks, decode."""
    plan = BlobPlan(CheckpointId(1, 1), (), limits)
    document = await encode_state(value, plan, "solver", blobs.put)
    fields = {
        "format": "midflight.participant", "version": [1, 0], "run_id": "0" * 32, "checkpoint": "1.1", "parent": None,
        "kind": "agent", "name": "solver", "process": "p0", "codec": "zstd", "records": 0, "size": 0, "parts": [],
        "index": {"size": 1, "raw_size": 0, "sha256": "0" * 64}, "blob_bytes": 0, "blobs": 0, "software": {},
        "state": document.model_dump(mode="json") if document else None,
    }  # fmt: skip
    read = load_model(ParticipantManifest, "manifest.json", seal(fields), CorruptCheckpoint).state
    return read, await decode_state(read, "solver", blobs.read)


@given(value=WITH_BYTES)
async def test_any_state_is_read_back_exactly(value: Any) -> None:
    """State takes the way of a manifest, another parser than that of records, and comes back the same."""
    _, found = await through_a_manifest(value, Blobs())
    assert same(found, value)


@pytest.mark.parametrize("value", ODD, ids=repr)
async def test_odd_state_is_read_back_exactly(value: Any) -> None:
    """The edges of integers and floats, odd text and keys that look like escapes."""
    for state in (value, {"k": [value]}, [value, b"x"]):
        _, found = await through_a_manifest(state, Blobs())
        assert same(found, state)


async def test_no_state_is_none() -> None:
    """None is no state and stays None."""
    assert await through_a_manifest(None, Blobs()) == (None, None)


@pytest.mark.parametrize(("size", "inline"), [(198, True), (199, False), (1998, False)])
async def test_large_state_goes_to_a_blob(size: int, inline: bool) -> None:
    """Up to the limit the manifest holds it; above, a blob does."""
    blobs = Blobs()
    document, found = await through_a_manifest("x" * size, blobs)
    assert found == "x" * size
    assert document is not None
    assert (document.blob is None) == inline == (not blobs)


async def test_state_above_the_limit_is_refused_by_name() -> None:
    """The owner, the size and the limit are named, and nothing is written."""
    blobs = Blobs()
    with pytest.raises(InvalidRecord, match=r"solver.*2001 bytes, and the limit is 2000"):
        await through_a_manifest("x" * 1999, blobs)
    assert not blobs


@pytest.mark.parametrize("depth", [1, 63, 64, 65, 100, 198, 199, 200, 230, 254])
async def test_deep_state_is_read_back_although_manifests_are_shallow(depth: int) -> None:
    """A parser of manifests gives up earlier than one of records, so deep state goes to a blob."""
    _, found = await through_a_manifest(nested(depth), Blobs(), DEFAULT_LIMITS)
    assert found == nested(depth)


@pytest.mark.parametrize(
    "value", [float("nan"), 2**64, "\ud800", {1: 2}, {1, 2}, nested(300)], ids=lambda v: repr(v)[:20]
)
async def test_state_that_could_not_be_read_back_is_refused_by_name(value: Any) -> None:
    """State obeys the rules of records."""
    with pytest.raises(InvalidRecord, match="solver"):
        await through_a_manifest([value, b"x"], Blobs())


async def test_state_naming_a_blob_that_its_manifest_does_not_list_is_damage() -> None:
    """The list in the manifest is what keeps blobs alive, so state may name no other."""
    blobs = Blobs()
    plan = BlobPlan(CheckpointId(1, 1), (), LIMITS)
    document = await encode_state({"b": bytes(100)}, plan, "solver", blobs.put)
    assert document is not None
    with pytest.raises(CorruptCheckpoint, match="solver"):
        await decode_state(document.model_copy(update={"blobs": ()}), "solver", blobs.read)


async def test_the_states_of_controller_and_participants_are_read_from_a_checkpoint() -> None:
    """Small state with bytes inline and large state with bytes in blobs both come back from an open checkpoint."""
    state = {"cursor": 7, "rng": bytes(range(256)), "seen": [f"r{n}" for n in range(100_000)]}
    store = await store_with({AGENT: records(3)}, state=state)
    checkpoint = await open_checkpoint(store)
    await checkpoint.verify()
    assert await checkpoint.state() == state
    assert await checkpoint.process_state(checkpoint.processes[0]) is None


async def test_large_state_is_written_again_only_when_it_changed() -> None:
    """Two checkpoints in a row: each keeps the state that it was published with."""
    store = await store_with({AGENT: records(2)}, state={"k": 1})
    await publish_rounds(store, [{AGENT: records(2)}], state={"k": 2})
    assert await (await open_checkpoint(store, CheckpointId(1, 1))).state() == {"k": 1}
    assert await (await open_checkpoint(store)).state() == {"k": 2}
