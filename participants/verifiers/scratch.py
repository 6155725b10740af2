"""Folders that are gone once they are not needed, however that comes: those of a process that is killed, with the next.

`participants.workfolder.Place` says how the two are told apart.
"""

import atexit
import functools
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from ..workfolder import Place, remove_tree


@asynccontextmanager
async def scratch_folder() -> AsyncIterator[Path]:
    """An empty folder of this process's own; removed also where its user is cancelled."""
    path = await anyio.to_thread.run_sync(_make)
    try:
        yield path
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(remove_tree, path)


def own_place() -> Place:
    """Where all scratch folders of this process are; made at first use, which blocks."""
    return _made_by(os.getpid())


def _make() -> Path:
    """Without bubblewrap a program has a user id of its own, and only passes through, to what is its own."""
    path = own_place().fresh("program")
    path.chmod(0o711)
    return path


@functools.lru_cache(maxsize=1)
def _made_by(pid: int) -> Place:
    place = Place(Path(tempfile.gettempdir(), f"midflight-verify-{os.getuid()}"))
    atexit.register(_close, place, pid)
    return place


def _close(place: Place, pid: int) -> None:
    if os.getpid() == pid:  # A fork has inherited the call, and not the place.
        place.close()
