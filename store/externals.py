"""Files outside the store that a checkpoint refers to: checked by size and digest when it is published and verified."""

import hashlib
from collections.abc import Iterable

from .backends.opening import open_backend
from .errors import CorruptCheckpoint, NotFound
from .limits import MIB
from .manifest import External

_CHUNK_BYTES = 8 * MIB


async def check_externals(externals: Iterable[External]) -> None:
    """Raise CorruptCheckpoint unless each file is there, with the size and sha256 that the checkpoint says.

    A `url` is a path or any URL that a store may have; credentials come from the environment.
    """
    for external in externals:
        await _check(external)


async def _check(external: External) -> None:
    root, _, name = external.url.rpartition("/")
    try:
        opened = await open_backend(root or "/", writable=False)
    except NotFound as error:
        raise CorruptCheckpoint(external.url, "the folder that it refers to is missing") from error
    try:
        if (found := (await opened.backend.stat(name)).size) != external.size:
            raise CorruptCheckpoint(external.url, f"it has {found} bytes, and the checkpoint says {external.size}")
        digest = hashlib.sha256()
        for start in range(0, external.size, _CHUNK_BYTES):
            digest.update(await opened.backend.get_range(name, start, min(_CHUNK_BYTES, external.size - start)))
    except NotFound as error:
        raise CorruptCheckpoint(external.url, "the file that it refers to is missing") from error
    finally:
        await opened.backend.aclose()
    if digest.hexdigest() != external.sha256:
        raise CorruptCheckpoint(external.url, "it has another content than the checkpoint says")
