"""Files outside the store that a checkpoint refers to: checked by size and digest when it is published and verified.

Whoever publishes names files of its own, and all of them are looked at. Whoever reads has the names from a manifest,
which is untrusted: it opens files of the local disk, where its own permissions hold, and below the URLs that its caller
allows. No other URL is ever opened: to ask a host tells that host something, and may use this machine's credentials.

A file that is not as it is said, or whose name can be none, is damage. One that cannot be asked for is not.
"""

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from .backends.base import Backend
from .backends.opening import open_backend
from .errors import (
    AccessDenied,
    CorruptCheckpoint,
    InvalidInput,
    InvalidName,
    InvalidStoreURL,
    IOFailed,
    MissingExtra,
    NotFound,
    ObjectTooLarge,
    RootMissing,
    StoreUnavailable,
    TransientError,
    UnsafeObject,
)
from .limits import DEFAULT_LIMITS, MIB, Limits
from .manifest import External

UNREACHABLE = (AccessDenied, IOFailed, MissingExtra, StoreUnavailable, TransientError)
"""What checking an external raises where the file could not be looked at: no statement about the file."""

_CHUNK_BYTES = 8 * MIB
_LOCAL_SCHEMES = ("", "file", "local")


async def check_externals(
    externals: Iterable[External], allowed: Collection[str] | None, limits: Limits = DEFAULT_LIMITS
) -> None:
    """Raise CorruptCheckpoint unless each file is there, with the size and sha256 that the checkpoint says.

    A `url` is an absolute path or any URL that a store may have; credentials come from the environment. `allowed` are
    the URLs below which files may be opened, besides local ones, or None for all: InvalidInput names one that is not.
    """
    found = list(externals)
    for external in found:
        if not may_open(external.url, allowed):
            raise InvalidInput(
                f"the checkpoint refers to {external.url!r:.200}, which is neither on a local disk nor allowed",
                hint="Where you trust whoever wrote it, allow this URL or one above it",
            )
    for external in found:
        await check_external(external, limits)


def may_open(url: str, allowed: Collection[str] | None) -> bool:
    """Whether a manifest may make us open this: a local file, or one below an allowed URL."""
    return allowed is None or _is_local(url) or any(_is_below(url, root) for root in allowed)


async def check_external(external: External, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise CorruptCheckpoint unless the file is as it is said to be, and one of UNREACHABLE where nobody can say."""
    with _as_damage(external.url):
        folder, name = _split(external.url)
        opened = await open_backend(folder, limits=limits, writable=False)
        try:
            await _check(external, opened.backend, name)
        finally:
            await opened.backend.aclose()


@contextmanager
def _as_damage(url: str) -> Iterator[None]:
    """Name the external where an error says something about it, and not about the way to it."""
    try:
        yield
    except NotFound as error:
        raise CorruptCheckpoint(url, "the file that it refers to is missing") from error
    except RootMissing as error:
        raise CorruptCheckpoint(url, "the folder or bucket that it refers to is missing") from error
    except (InvalidName, InvalidStoreURL, ObjectTooLarge, UnsafeObject) as error:
        raise CorruptCheckpoint(url, f"it can name no file: {error.message}") from error


async def _check(external: External, backend: Backend, name: str) -> None:
    url = external.url
    if (found := (await backend.stat(name)).size) != external.size:
        raise CorruptCheckpoint(url, f"it has {found} bytes, and the checkpoint says {external.size}")
    digest = hashlib.sha256()
    for start in range(0, external.size, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, external.size - start)
        piece = await backend.get_range(name, start, length)
        if len(piece) != length:
            raise CorruptCheckpoint(url, f"it ends after {start + len(piece)} of {external.size} bytes")
        digest.update(piece)
    if digest.hexdigest() != external.sha256:
        raise CorruptCheckpoint(url, "it has another content than the checkpoint says")


def _scheme(url: str) -> str:
    return url.split("://", 1)[0].lower() if "://" in url and not url.startswith("/") else ""


def _is_local(url: str) -> bool:
    return _scheme(url) in _LOCAL_SCHEMES


def _is_below(url: str, root: str) -> bool:
    if url == root:
        return True
    rest = url.removeprefix(root.rstrip("/") + "/")
    return rest != url and not {"", ".", ".."}.intersection(rest.split("/"))


def _split(url: str) -> tuple[str | Path, str]:
    """The folder or prefix to open, and the name in it."""
    if not _is_local(url):
        folder, _, name = url.rpartition("/")
        return folder, name
    path = _local_path(url)
    if not path.startswith("/"):
        raise InvalidStoreURL(url, "an external is an absolute path or a URL")
    return Path(os.path.dirname(path)), os.path.basename(path)


def _local_path(url: str) -> str:
    if not _scheme(url):
        return url
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidStoreURL(url, "this is no URL") from error
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidStoreURL(url, "a file URL looks like file:///absolute/path")
    return os.fsdecode(unquote_to_bytes(parts.path))
