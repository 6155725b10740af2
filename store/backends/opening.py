"""From a URL to a backend that retries, and that has been tried out if it is to be written."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import anyio
import anyio.to_thread

from ..errors import AlreadyExists, InvalidName, InvalidStoreURL, IOFailed, NotFound, RootMissing, UnsafeObject
from ..limits import DEFAULT_LIMITS, Limits
from .base import Backend
from .keys import check_key
from .local import LocalBackend
from .memory import MemoryBackend
from .mounts import MountReader, read_mountinfo
from .probe import ProbeReport, check_filesystem, probe
from .retry import Retrying
from .tree import translate

_log = logging.getLogger(__name__)

CLOSE_S = 5.0
"""How long a backend that failed its probe may take to close."""


@dataclass(frozen=True, slots=True)
class OpenedBackend:
    """A backend ready for use, and what its probe found."""

    backend: Retrying
    report: ProbeReport


async def open_backend(
    url: str | os.PathLike[str],
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: dict[str, Any] | None = None,
    writable: bool,
    single_writer: bool = False,
    only_deletes: bool = False,
    mountinfo: MountReader = read_mountinfo,
) -> OpenedBackend:
    """Open the store at a path or URL: a path, file://, memory://name, s3://bucket/prefix, or another fsspec scheme.

    A local root is made only where `writable`. `storage_options` go to the fsspec file system: credentials belong there
    or into the environment, never into the URL. `single_writer` accepts a store without exclusive create, on the
    caller's word that no second writer can ever run. `only_deletes` opens a store for writing that has no space left.
    """
    make = partial(make_backend, url, limits=limits, storage_options=storage_options)
    backend = await anyio.to_thread.run_sync(make)  # it may have to import half a cloud library
    retrying = Retrying(backend, limits.retry_for_s)
    try:
        kind = await _prepare_root(backend, writable, single_writer, mountinfo)
        if writable:
            report = await probe(retrying, single_writer=single_writer, filesystem=kind, only_deletes=only_deletes)
        else:
            report = ProbeReport(url=backend.url, probed=False, exclusive_create=backend.traits.conditional_create)
    except BaseException:
        with anyio.move_on_after(CLOSE_S, shield=True):
            await retrying.aclose()
        raise
    _log.debug("opened %r", report)
    return OpenedBackend(retrying, report)


def make_backend(
    url: str | os.PathLike[str],
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: dict[str, Any] | None = None,
) -> Backend:
    """The bare backend for a URL; touches nothing yet."""
    text = os.fspath(url)
    if not isinstance(url, str) or "://" not in text:
        if not text or "\0" in text:
            raise InvalidStoreURL(text, "this is no path")
        return LocalBackend(text, limits=limits)
    scheme, rest = text.split("://", 1)
    scheme = scheme.lower()
    if "::" in text:
        raise InvalidStoreURL(_redacted(text), "chained URLs are not supported")
    if scheme in {"file", "local"}:
        return LocalBackend(_file_path(text), limits=limits)
    if "@" in rest.split("/", 1)[0]:
        raise InvalidStoreURL(_redacted(text), "it holds credentials; put them into the environment or storage_options")
    if scheme == "memory":
        return MemoryBackend(rest.strip("/"))
    return _object_backend(scheme, text, rest, limits, storage_options or {})


def _object_backend(scheme: str, text: str, rest: str, limits: Limits, options: dict[str, Any]) -> Backend:
    from . import object as objects

    bucket, _, prefix = rest.partition("/")
    try:
        check_key(bucket)
        if prefix.strip("/"):
            check_key(prefix.strip("/"))
    except InvalidName as error:
        raise InvalidStoreURL(text, "its bucket or prefix is not made of plain names") from error
    return objects.make_object_backend(scheme, bucket, prefix.strip("/"), limits=limits, storage_options=options)


async def _prepare_root(backend: Backend, writable: bool, single_writer: bool, mountinfo: MountReader) -> str:
    """Make or find a local root; the type of its file system, if it has one."""
    if not isinstance(backend, LocalBackend):
        return ""
    if writable:
        with _telling_of_root(backend.url):
            await backend.make_root()
        return await check_filesystem(backend.root, backend.url, single_writer=single_writer, read=mountinfo)
    with _telling_of_root(backend.url), translate("open", backend.root):
        is_there = await anyio.Path(backend.root).is_dir()
    if not is_there:
        is_file = await anyio.Path(backend.root).exists()
        raise RootMissing("open", backend.url, "it is a file, and no folder" if is_file else "there is no such folder")
    return ""


@contextmanager
def _telling_of_root(url: str) -> Iterator[None]:
    """Say of a root that it can be none here, in place of what an object's error would say."""
    try:
        yield
    except (AlreadyExists, UnsafeObject) as error:
        raise InvalidStoreURL(url, "a file, or a link that leads nowhere, stands at or above this folder") from error
    except InvalidName as error:
        raise InvalidStoreURL(url, "a name in it is too long for this file system") from error
    except NotFound as error:
        hint = "Give a path on a file system that takes new folders"
        raise IOFailed("make_root", url, "no folder can be made here", hint=hint) from error


def _file_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise InvalidStoreURL(_redacted(url), "a file URL looks like file:///absolute/path")
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if "\0" in path:
        raise InvalidStoreURL(_redacted(url), "this is no path")
    return path


def _redacted(url: str) -> str:
    """The URL as it may be shown: what stands before an @ may be a password."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{'***@' if '@' in host else ''}{host.rpartition('@')[2]}{slash}{path}"
