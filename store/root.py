"""Opening a store: its backend, the probe, and format.json, which says that this is one and whose run it is."""

import os
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from .again import damage_seen_twice
from .backends.base import Backend
from .backends.counting import CountingBackend
from .backends.opening import open_backend
from .backends.retry import create_once
from .chain import Chain
from .entries import Document, Token
from .errors import CheckpointConflict, CorruptCheckpoint, NotAStore, NotFound, StoreError
from .layout import ALIVE_PREFIX, FORMAT_KEY
from .limits import DEFAULT_LIMITS, Limits
from .sealed import FORMAT_MAJOR, FORMAT_MINOR, load_model, seal

_BEFORE_FORMAT = re.compile(rf"{ALIVE_PREFIX}([1-9][0-9]{{0,17}}(\.lock)?|(probe|clock)-[0-9a-f]+)")
"""What may stand in a root before its format.json: left by a start that was killed."""


class Format(Document):
    """format.json."""

    format: Literal["midflight.store"] = "midflight.store"
    version: tuple[int, int] = (FORMAT_MAJOR, FORMAT_MINOR)
    features: tuple[str, ...] = ()
    run_id: Token
    """Random; part of every chain entry and manifest."""


@dataclass(frozen=True, slots=True)
class Store:
    """An open root."""

    backend: Backend
    run_id: str
    limits: Limits
    warnings: tuple[str, ...] = ()
    """What the probe found that works less well than it could."""

    @property
    def url(self) -> str:
        """The root, for messages."""
        return self.backend.url

    async def chain(self, read: Chain | None = None) -> Chain:
        """The chain as it stands now; `read` is one that was read before, to read on with. Raises CorruptChain."""
        chain = read or Chain(self.backend, self.run_id, self.limits)
        await chain.refresh()
        return chain

    def counted(self) -> tuple["Store", Counter[str]]:
        """The same store, and the count of the requests that it will have made of its backend, verb by verb."""
        backend = CountingBackend(self.backend)
        return replace(self, backend=backend), backend.requests


@asynccontextmanager
async def open_store(
    url: str | os.PathLike[str],
    mode: Literal["read", "write"] = "read",
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: dict[str, Any] | None = None,
    single_writer: bool = False,
    only_deletes: bool = False,
) -> AsyncIterator[Store]:
    """Open a root; for writing it is probed, and made where there is none yet.

    `single_writer` declares that no other writer can ever run beside this one, and admits stores without conditional
    create; `only_deletes` admits one without space, for pruning. Raises InvalidStoreURL, MissingExtra,
    UnsupportedStore, AccessDenied, NotAStore, UnsupportedVersion.
    """
    writable = mode == "write"
    opened = await open_backend(
        url,
        limits=limits,
        storage_options=storage_options,
        writable=writable,
        single_writer=single_writer,
        only_deletes=only_deletes,
    )
    try:
        found = await load_format(opened.backend, limits, create=writable)
        yield Store(opened.backend, found.run_id, limits, opened.report.warnings)
    finally:
        await opened.backend.aclose()


async def load_format(backend: Backend, limits: Limits, *, create: bool) -> Format:
    """What format.json says; it is made, exclusively, where `create` asks for it and the root holds nothing else."""
    try:
        return await _read_format(backend, limits)
    except NotFound as error:
        if not create:
            raise NotAStore(backend.url, "there is no format.json") from error
    await _refuse_foreign_folder(backend)
    wanted = Format(run_id=secrets.token_hex(16))
    try:
        await create_once(backend, FORMAT_KEY, seal(wanted.model_dump(mode="json")))
    except CheckpointConflict:
        return await _read_format(backend, limits)  # Another process made the store at the same moment.
    return wanted


@damage_seen_twice
async def _read_format(backend: Backend, limits: Limits) -> Format:
    return load_model(
        Format, FORMAT_KEY, await backend.get(FORMAT_KEY, max_bytes=limits.max_entry_bytes), CorruptCheckpoint
    )


async def _refuse_foreign_folder(backend: Backend) -> None:
    try:
        listed = await backend.list("")
    except StoreError:
        return  # Without permission to list nobody can tell; the conditional creates still protect what is there.
    foreign = [info.key for info in listed if not _BEFORE_FORMAT.fullmatch(info.key)]
    if foreign and FORMAT_KEY not in foreign:
        raise NotAStore(
            backend.url,
            f"it holds {len(foreign)} other objects, such as {foreign[0]!r}, and no format.json",
            hint="Give an empty folder or prefix, or the root of an existing store",
        )
