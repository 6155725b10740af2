"""What may stand where a chain entry belongs and is none: seen as what it is, and not as a slot that is free.

A backend says that a folder is no object; yet no entry can be created in its place. Only a local disk has such things.
"""

import os
import stat

import anyio.to_thread

from .backends.base import Backend
from .backends.local import LocalBackend
from .backends.retry import Retrying
from .errors import CorruptChain


async def refuse_folder(backend: Backend, key: str) -> None:
    """Raise CorruptChain where a folder keeps the slot of an entry that was not found."""
    bare = backend.inner if isinstance(backend, Retrying) else backend
    if isinstance(bare, LocalBackend) and await anyio.to_thread.run_sync(_is_folder, os.path.join(bare.root, key)):
        raise CorruptChain(key, "a folder stands in the place of the entry, so that none can be written there")


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
