"""Own state of a controller or participant: JSON with bytes in it, inline where small, else in a blob."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from .errors import CorruptCheckpoint, InvalidRecord
from .layout import BlobRef
from .manifest import Blob, StateDocument
from .values import BlobPlan, encode_value, parse_exactly, resolve, unescape

StateValue = Any
"""A JSON value in which bytes may stand; None for no state."""
PutBlobs = Callable[[Mapping[BlobRef, bytes]], Awaitable[None]]
ReadBlob = Callable[[BlobRef], Awaitable[bytes]]


async def encode_state(value: StateValue, plan: BlobPlan, owner: str, put: PutBlobs) -> StateDocument | None:
    """The stored form of `value`, after its blobs are written. Raises InvalidRecord, which names `owner`."""
    if value is None:
        return None
    encoded = encode_value(value, plan, owner)
    if len(encoded.data) > plan.limits.max_state_bytes:
        raise InvalidRecord(
            owner, f"its state has {len(encoded.data)} bytes, and the limit is {plan.limits.max_state_bytes}"
        )
    blobs = tuple(Blob.of(ref) for ref in encoded.blobs)
    outgoing = dict(encoded.outgoing)
    if len(encoded.data) <= plan.limits.inline_state_bytes:
        await put(outgoing)
        return StateDocument(inline=orjson.loads(encoded.data), escaped=encoded.escaped, blobs=blobs)
    ref = plan.place(encoded.data)
    if plan.owns(ref):
        outgoing[ref] = encoded.data
    await put(outgoing)
    return StateDocument(blob=Blob.of(ref), escaped=encoded.escaped, blobs=blobs)


async def decode_state(document: StateDocument | None, owner: str, read: ReadBlob) -> StateValue:
    """The value again, with its bytes filled in from blobs that `read` has checked. Raises CorruptCheckpoint."""
    if document is None:
        return None
    data = await read(document.blob.ref) if document.blob else orjson.dumps(document.inline)
    named = {blob.ref for blob in document.blobs}

    async def read_named(ref: BlobRef) -> bytes:
        if ref not in named:
            raise CorruptCheckpoint(f"the state of {owner}", f"it names blob {ref}, and its manifest does not")
        return await read(ref)

    value = parse_exactly(data, f"the state of {owner}")
    return await resolve(unescape(value, f"the state of {owner}"), read_named) if document.escaped else value
