"""Own state of a controller or participant: JSON with bytes in it, inline where small, else in a blob."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import anyio.to_thread
import orjson

from .errors import CorruptCheckpoint, InvalidRecord
from .layout import BlobRef
from .manifest import Blob, StateDocument
from .values import BlobPlan, encode_value, parse_exactly, resolve, unescape

_INLINE_DEPTH = 64
"""Deeper state goes to a blob."""

StateValue = Any
"""A JSON value in which bytes, and where it is written LazyBytes, may stand; None for no state."""
PutBlobs = Callable[[Mapping[BlobRef, bytes]], Awaitable[None]]
ReadBlob = Callable[[BlobRef], Awaitable[bytes]]


async def encode_state(value: StateValue, plan: BlobPlan, owner: str, put: PutBlobs) -> StateDocument | None:
    """The stored form of `value`, after its blobs are written. Raises InvalidRecord, which names `owner`."""
    if value is None:
        return None
    encoded = await anyio.to_thread.run_sync(encode_value, value, plan, owner)
    if len(encoded.data) > plan.limits.max_state_bytes:
        raise InvalidRecord(
            owner, f"its state has {len(encoded.data)} bytes, and the limit is {plan.limits.max_state_bytes}"
        )
    blobs = tuple(Blob.of(ref) for ref in encoded.blobs)
    outgoing = dict(encoded.outgoing)
    for ref, lazy in encoded.lazy.items():
        outgoing[ref] = await anyio.to_thread.run_sync(lazy.load, owner)
    if len(encoded.data) <= plan.limits.inline_state_bytes:
        inline = orjson.loads(encoded.data)
        if _is_shallow(inline):
            await put(outgoing)
            return StateDocument(inline=inline, escaped=encoded.escaped, blobs=blobs)
    ref = plan.place(encoded.data)
    if plan.owns(ref):
        outgoing[ref] = encoded.data
    await put(outgoing)
    return StateDocument(blob=Blob.of(ref), escaped=encoded.escaped, blobs=blobs)


def _is_shallow(value: Any) -> bool:
    """Whether a manifest can hold it: parsers of manifests give up at a depth at which those of records do not."""
    level = [value]
    for _ in range(_INLINE_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return True
    return False


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


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

    value = await anyio.to_thread.run_sync(_parse, data, document.escaped, f"the state of {owner}")
    return await resolve(value, read_named) if document.escaped else value


def _parse(data: bytes, escaped: bool, name: str) -> Any:
    value = parse_exactly(data, name)
    return unescape(value, name) if escaped else value
