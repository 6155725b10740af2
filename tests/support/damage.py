"""Damage to a store in memory: cuts and flips that a digest must find, and forgeries that no digest can."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, cast

import orjson
import zstandard

from store import CheckpointId, MemoryBackend, ProcessName, Store
from store.frames import compress_bytes, sha256
from store.layout import aggregate_key, entry_key, index_key, part_key, participant_key
from store.sealed import digest_of

from .checkpoints import AGENT

Edit = Callable[[Any], None]
"""Changes a document, or the lines of an index, in place."""
FIRST = CheckpointId(1, 1)


def flipped(data: bytes, bit: int) -> bytes:
    """`data` with one bit the other way."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def resealed_bytes(body: bytes) -> bytes:
    """A valid seal around any bytes that end in a brace, as a hostile writer would make it."""
    return body[:-1] + b',"sha256":"' + hashlib.sha256(body[:-1]).hexdigest().encode() + b'"}\n'


def resealed(document: dict[str, Any]) -> bytes:
    """A valid seal around a document, whatever seal it had."""
    return resealed_bytes(orjson.dumps({key: value for key, value in document.items() if key != "sha256"}))


def backend_of(store: Store) -> MemoryBackend:
    """The backend of a store in memory."""
    return cast("MemoryBackend", store.backend)


def read(store: Store, key: str) -> bytes:
    """What stands under a key."""
    return backend_of(store).space.objects[key].data


def write(store: Store, key: str, data: bytes) -> None:
    """Put other bytes where an object stands, behind the back of everybody."""
    objects = backend_of(store).space.objects
    objects[key] = dataclasses.replace(objects[key], data=data)


def move(store: Store, key: str, to: str) -> None:
    """Give an object another key, behind the back of everybody."""
    objects = backend_of(store).space.objects
    objects[to] = objects.pop(key)


def remove(store: Store, key: str) -> None:
    """Take an object away, behind the back of everybody."""
    del backend_of(store).space.objects[key]


def keys(store: Store, part: str = "") -> list[str]:
    """The keys that contain `part`, sorted."""
    return sorted(key for key in backend_of(store).space.objects if part in key)


class Forger:
    """A hostile writer: changes what it likes and then makes every digest above it right again, up to the chain."""

    def __init__(self, store: Store, checkpoint: CheckpointId = FIRST, process: ProcessName = AGENT) -> None:
        """Forges what `process` wrote for `checkpoint`."""
        self._store = store
        self._checkpoint = checkpoint
        self._process = process
        self.manifest = orjson.loads(read(store, participant_key(checkpoint, process)))
        self._old_index = self._index_key()
        self.lines = [orjson.loads(line) for line in self._index().splitlines()]

    def _index_key(self) -> str:
        return index_key(self._checkpoint, self._process, self.manifest["index"]["sha256"])

    def _index(self) -> bytes:
        return zstandard.decompress(read(self._store, self._old_index))

    def part(self, position: int) -> str:
        """The key of a part."""
        return part_key(self._checkpoint, self._process, self.manifest["parts"][position]["name"])

    def frame(self, number: int) -> bytes:
        """The stored bytes of a frame."""
        line = self.lines[number]
        return read(self._store, self.part(line["part"]))[line["offset"] : line["offset"] + line["size"]]

    def put_frame(self, number: int, data: bytes, raw_size: int) -> None:
        """Replace a frame and mend the sizes, offsets and digests of its index line and part."""
        line, key = self.lines[number], self.part(self.lines[number]["part"])
        old, start = read(self._store, key), line["offset"]
        whole = old[:start] + data + old[start + line["size"] :]
        growth, raw_growth = len(data) - line["size"], raw_size - line["raw_size"]
        for later in self.lines:
            if later["part"] == line["part"] and later["offset"] > start:
                later["offset"] += growth
        line.update(size=len(data), raw_size=raw_size, sha256=sha256(data))
        part = self.manifest["parts"][line["part"]]
        part.update(size=len(whole), raw_size=part["raw_size"] + raw_growth, sha256=sha256(whole))
        self.manifest["size"] += growth
        write(self._store, key, whole)

    def save(self, *, manifest: Edit | None = None, aggregate: Edit | None = None, index: bytes | None = None) -> None:
        """Write it all; the edits are lies told last, after everything below them was made consistent."""
        self.save_index(b"".join(orjson.dumps(line) + b"\n" for line in self.lines) if index is None else index)
        if manifest:
            manifest(self.manifest)
        sealed = resealed(self.manifest)
        write(self._store, participant_key(self._checkpoint, self._process), sealed)
        forge_aggregate(self._store, lambda document: self._repin(document, sealed, aggregate), self._checkpoint)

    def save_index(self, raw: bytes) -> None:
        """Write an index of these lines and pin it."""
        data = compress_bytes(raw)
        self.manifest["index"] = {"size": len(data), "raw_size": len(raw), "sha256": sha256(data)}
        move(self._store, self._old_index, self._index_key())
        self._old_index = self._index_key()
        write(self._store, self._old_index, data)

    def _repin(self, document: dict[str, Any], sealed: bytes, edit: Edit | None) -> None:
        for ref in document["participants"]:
            if (ref["kind"], ref["name"], ref["process"]) == dataclasses.astuple(self._process):
                ref.update(digest=digest_of(sealed), size=len(sealed))
                ref.update(records=self.manifest["records"], bytes=self.manifest["size"])
        document["size"] = sum(ref["bytes"] for ref in document["participants"])
        if edit:
            edit(document)


def forge_aggregate(store: Store, edit: Edit, checkpoint: CheckpointId = FIRST) -> None:
    """Change the aggregate manifest and make the chain pin the new one."""
    key = aggregate_key(checkpoint)
    old = read(store, key)
    document = orjson.loads(old)
    edit(document)
    replace_aggregate(store, resealed(document), checkpoint)


def replace_aggregate(store: Store, data: bytes, checkpoint: CheckpointId = FIRST) -> None:
    """Put another sealed aggregate manifest there and make the chain pin it."""
    old = read(store, aggregate_key(checkpoint))
    write(store, aggregate_key(checkpoint), data)
    for n in range(1, len(keys(store, "chain/")) + 1):
        entry = read(store, entry_key(n)).replace(digest_of(old).encode(), digest_of(data).encode())
        write(store, entry_key(n), resealed(orjson.loads(entry)))
