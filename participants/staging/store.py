"""The token store: packs of staged prefixes, and the pins of checkpoints that keep them. Durable, on any store backend.

    packs/<2 hex>/<pack>                     entries, see `packs`; written once under a random name, never changed
    pins/<run>/<checkpoint>/<sha256 of it>   the keys that a checkpoint needs; in as many pins as calls brought them
    swept/<pack>                             this pack is about to be removed: no pin counts on it any more

Rules.

1. A key is given out only once its pack is durable. A write that failed or whose outcome is unknown gives none; what it
   may have left has no key, and is swept.
2. A pin is durable before it is confirmed, and it is confirmed only if every pack then stands and none is marked.
3. Only `unpin` removes a pin, also one that was not confirmed.
4. A sweep first marks what is old and not pinned, then reads the pins, then removes what is still not pinned and takes
   the other marks away. With rule 2 one of the two sees the other, in whatever process and order they run: no pin that
   was confirmed loses its tokens. One sweep runs at a time, by a lock of the host; on object storage, which has none,
   that is for the operator to see to.

Crash points: in a write, a temporary file or a pack without a key; in a pin, a pin that nobody was told of; in a sweep,
marks, which the next sweep carries out or takes away, and after the removal of a pack a mark without one.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import anyio
import anyio.to_thread
import orjson

from store import Backend, CheckpointId, InvalidName, LocalBackend, NotFound, StoreError, create_once
from store.backends import FileOps

from .limits import DEFAULT_STAGING_LIMITS, StagingLimits
from .packs import Entry, Key, decode_entry, encode_pack, entry_bytes, grouped
from .refusals import Reason, StagingRefused

PACKS, PINS, MARKS, CLOCKS, LOCK = "packs/", "pins/", "swept/", "clock/", "sweep.lock"
_RUN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed."""

    packs: int = 0
    bytes: int = 0
    leftovers: int = 0
    """Temporary files of writes that died."""
    kept: int = 0
    """Packs that were old, and about to go, but are pinned."""


class TokenStore:
    """Staged tokens behind one store backend. Raises `StoreError`s of the backend, and `StagingRefused`."""

    def __init__(self, backend: Backend, limits: StagingLimits = DEFAULT_STAGING_LIMITS) -> None:
        """`backend` is the store's own: nothing else writes there."""
        self._backend = backend
        self.limits = limits

    @classmethod
    def on_disk(
        cls, folder: str | os.PathLike[str], limits: StagingLimits = DEFAULT_STAGING_LIMITS, ops: FileOps | None = None
    ) -> Self:
        """In a folder of this host, made durably if it is missing. Blocks. Raises OSError."""
        root = Path(folder).absolute()
        ops = ops or FileOps()
        ops.make_root(str(root))
        return cls(LocalBackend(root, ops), limits)

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        return self._backend.url

    # Tokens

    async def write(self, counts: Sequence[int], entry: Callable[[int], Entry]) -> list[Key | StoreError]:
        """Write one entry for each count of tokens; for each its key, durable, or why its pack could not be written.

        `entry` gives the entry at a position; it is called in a worker thread.
        """
        found: dict[int, Key | StoreError] = {}
        places = anyio.CapacityLimiter(self.limits.packs_in_flight)

        async def write_group(group: list[int]) -> None:
            async with places:
                try:
                    keys: Iterable[Key | StoreError] = await self._write_pack(entry(position) for position in group)
                except StoreError as error:
                    keys = [error] * len(group)
                found.update(zip(group, keys, strict=True))

        async with anyio.create_task_group() as tasks:
            for group in grouped(counts, self.limits):
                tasks.start_soon(write_group, group)
        return [found[position] for position in range(len(counts))]

    async def _write_pack(self, entries: Iterable[Entry]) -> list[Key]:
        pack = secrets.token_hex(16)
        data, keys = await anyio.to_thread.run_sync(encode_pack, pack, entries)
        await self._backend.create(_pack_key(pack), data)
        return keys

    async def read(self, key: Key) -> Entry:
        """One entry. Raises `unknown_key`, `damaged`, `too_long`."""
        if key.length > entry_bytes(self.limits.max_prefix_tokens):
            raise StagingRefused(Reason.TOO_LONG, f"{key} has more than {self.limits.max_prefix_tokens} tokens")
        try:
            data = await self._backend.get_range(_pack_key(key.pack), key.offset, key.length)
        except NotFound as error:
            raise StagingRefused(Reason.UNKNOWN_KEY, f"no tokens are staged under {key}") from error
        return await anyio.to_thread.run_sync(decode_entry, data)

    async def standing(self, packs: Iterable[str]) -> set[str]:
        """Which of these packs stand, and are not marked."""
        return {pack for pack in set(packs) if await self._size(pack) is not None and not await self._is_marked(pack)}

    async def _size(self, pack: str) -> int | None:
        try:
            return (await self._backend.stat(_pack_key(pack))).size
        except NotFound:
            return None

    async def _is_marked(self, pack: str) -> bool:
        try:
            await self._backend.stat(MARKS + pack)
        except NotFound:
            return False
        return True

    # Pins

    async def pin(self, run: str, checkpoint: CheckpointId, keys: Iterable[Key]) -> int:
        """Keep these keys until the checkpoint is unpinned; how many they are. Repeating it changes nothing.

        Raises `unknown_key` or `swept`; what a pin that is refused leaves goes with the checkpoint's others.
        """
        kept = sorted(set(map(str, keys)))
        if not kept:
            return 0
        body = orjson.dumps({"keys": kept})
        name = f"{_pins_of(run, checkpoint)}{hashlib.sha256(body).hexdigest()}"
        await create_once(self._backend, name, body, max_bytes=self.limits.max_body_bytes)
        await self._check_pinned([Key.parse(key) for key in kept])
        return len(kept)

    async def _check_pinned(self, keys: Sequence[Key]) -> None:
        ends: dict[str, int] = {}
        for key in keys:
            ends[key.pack] = max(ends.get(key.pack, 0), key.offset + key.length)
        for pack, end in ends.items():
            if await self._is_marked(pack):
                raise StagingRefused(Reason.SWEPT, f"pack {pack} is being swept: stage the tokens again")
            size = await self._size(pack)
            if size is None or end > size:
                raise StagingRefused(Reason.UNKNOWN_KEY, f"no tokens are staged under a key of pack {pack}")

    async def unpin(self, run: str, checkpoint: CheckpointId) -> int:
        """Remove every pin of a checkpoint that is gone; how many there were. Repeating it changes nothing."""
        names = [info.key for info in await self._backend.list(_pins_of(run, checkpoint))]
        await self._backend.delete(names)
        return len(names)

    async def pinned(self, run: str) -> list[CheckpointId]:
        """The checkpoints of a run that have pins, in order; more than are published, where a commit has failed."""
        prefix = f"{PINS}{_run(run)}/"
        names = {info.key.removeprefix(prefix).partition("/")[0] for info in await self._backend.list(prefix)}
        found = []
        for name in names:
            with suppress(InvalidName):
                found.append(CheckpointId.parse(name))
        return sorted(found)

    async def pinned_packs(self) -> set[str]:
        """Every pack that some checkpoint needs."""
        packs: set[str] = set()
        for info in await self._backend.list(PINS):
            packs.update(Key.parse(key).pack for key in await self._keys_of(info.key))
        return packs

    async def _keys_of(self, name: str) -> list[str]:
        """What a pin keeps; nothing where it was removed meanwhile. Raises `damaged`: then nothing may be swept."""
        try:
            data = await self._backend.get(name, max_bytes=self.limits.max_body_bytes)
            if hashlib.sha256(data).hexdigest() != name.rpartition("/")[2]:
                raise StagingRefused(Reason.DAMAGED, f"the pin {name} is not what was written")
            keys: list[str] = orjson.loads(data)["keys"]
        except NotFound:
            return []
        return keys

    # Sweeping

    async def sweep(self, older_than_s: float | None = None) -> Swept:
        """Remove packs that nothing pins, and leftovers, once they are old; nothing while another sweep does that.

        Safe beside everything else here. Raises `damaged` where a pin cannot be read.
        """
        after = self.limits.sweep_after_s if older_than_s is None else older_than_s
        async with self._backend.lock(LOCK) as free:
            return await self._sweep(after) if free else Swept()

    async def _sweep(self, after_s: float) -> Swept:
        before_s = await self._clock() - after_s
        pinned = await self.pinned_packs()
        packs = {_pack_of(info.key): info for info in await self._backend.list(PACKS)}
        for pack, info in packs.items():
            if info.modified_s <= before_s and pack not in pinned:
                await create_once(self._backend, MARKS + pack, b"{}")
        marked = {info.key.removeprefix(MARKS) for info in await self._backend.list(MARKS)}
        pinned = await self.pinned_packs()
        doomed = sorted(marked - pinned)
        await self._backend.delete([_pack_key(pack) for pack in doomed])
        await self._backend.delete([MARKS + pack for pack in sorted(marked)])
        removed = [packs[pack].size for pack in doomed if pack in packs]
        return Swept(len(removed), sum(removed), await self._sweep_leftovers(before_s), len(marked & pinned))

    async def _sweep_leftovers(self, before_s: float) -> int:
        """Temporary files of writes that died, and clocks of sweeps that did."""
        found = await self._backend.list(CLOCKS)
        if isinstance(self._backend, LocalBackend):
            found = [*found, *await self._backend.list_leftovers()]
        dead = [info.key for info in found if info.modified_s <= before_s]
        await self._backend.delete(dead)
        return len(dead)

    async def _clock(self) -> float:
        """Now, by the clock that dates the packs, in seconds."""
        key = CLOCKS + secrets.token_hex(8)
        await self._backend.put(key, b"{}")
        now = (await self._backend.stat(key)).modified_s
        await self._backend.delete([key])
        return now


def _pack_key(pack: str) -> str:
    return f"{PACKS}{pack[:2]}/{pack}"


def _pack_of(key: str) -> str:
    return key.rpartition("/")[2]


def _run(run: str) -> str:
    if not _RUN.fullmatch(run):
        raise InvalidName("run", run, _RUN.pattern)
    return run


def _pins_of(run: str, checkpoint: CheckpointId) -> str:
    return f"{PINS}{_run(run)}/{checkpoint}/"
