"""What a store can really do, tried out at opening with one object of a random name that is removed again.

A store that breaks a promise is refused here, by name, before anything depends on it: at prepare, not at commit.
"""

import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from ..errors import AccessDenied, AlreadyExists, BackendError, NoSpace, NotFound, UnsupportedStore
from .base import Backend
from .mounts import MountReader, filesystem_of, is_network, read_mountinfo
from .retry import create_once

_log = logging.getLogger(__name__)

PROBE_PREFIX = "alive/"
"""Where the probe writes; its objects are named `probe-<random>`."""
CLEANUP_S = 5.0
"""How long a probe that failed tries to remove its object."""
_DENIED = "The store was opened for writing: allow reading and writing of objects there, or open it for reading"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What opening found out about a store."""

    url: str
    """The root."""
    probed: bool
    """False where the store was opened for reading only and nothing was tried."""
    exclusive_create: bool
    """A create never replaces an object; False is accepted from a single writer only."""
    can_list: bool = True
    """Objects can be listed."""
    can_delete: bool = True
    """Objects can be deleted; without it nothing can be pruned."""
    filesystem: str = ""
    """Type of the file system, for a local store on Linux."""
    warnings: tuple[str, ...] = ()
    """What works less well than it should, a sentence each."""


@dataclass(slots=True)
class _Findings:
    exclusive_create: bool = True
    can_list: bool = True
    can_delete: bool = True
    warnings: list[str] = field(default_factory=list)


async def check_filesystem(root: str, url: str, *, single_writer: bool, read: MountReader = read_mountinfo) -> str:
    """The type of a local root's file system; UnsupportedStore where it cannot serve several hosts."""
    kind = await anyio.to_thread.run_sync(filesystem_of, root, read)
    if is_network(kind) and not single_writer:
        reason = f"it is on {kind}, where names are cached and one host may not see what another has created"
        raise UnsupportedStore(url, reason)
    return kind


async def probe(
    backend: Backend, *, single_writer: bool = False, filesystem: str = "", only_deletes: bool = False
) -> ProbeReport:
    """Try every verb. Raises UnsupportedStore or AccessDenied; a lesser failing is a warning in the report.

    So is a lack of space for one that `only_deletes`: who wants to make space must get in.
    """
    findings = _Findings()
    key = f"{PROBE_PREFIX}probe-{secrets.token_hex(8)}"
    try:
        await _try_writing(backend, key, findings, single_writer)
        await _try_listing(backend, key, findings)
    except NoSpace:
        await _clean_up(backend, key)
        if not only_deletes:
            raise
        findings.warnings.append("there is no space left, so the store was not tried out")
    except AccessDenied as error:
        await _clean_up(backend, key)
        raise (error if error.hint != AccessDenied.hint else _explained(error)) from error.__cause__
    except BaseException:
        await _clean_up(backend, key)
        raise
    await _try_deleting(backend, key, findings)
    for warning in findings.warnings:
        _log.warning("%s: %s", backend.url, warning)
    return ProbeReport(
        url=backend.url,
        probed=True,
        exclusive_create=findings.exclusive_create,
        can_list=findings.can_list,
        can_delete=findings.can_delete,
        filesystem=filesystem,
        warnings=tuple(findings.warnings),
    )


async def _try_writing(backend: Backend, key: str, findings: _Findings, single_writer: bool) -> None:
    first, second = secrets.token_bytes(16), secrets.token_bytes(16)
    await create_once(backend, key, first)
    await _check_absence(backend, key)
    if await _replaces(backend, key, second):
        if not single_writer:
            raise UnsupportedStore(backend.url, "it ignores the condition of a create and replaces what is there")
        findings.exclusive_create = False
        findings.warnings.append("creates are not exclusive: a second writer would destroy checkpoints unnoticed")
    elif await backend.get(key, max_bytes=len(first)) != first:
        raise UnsupportedStore(backend.url, "a create that was refused has changed the object")
    await backend.put(key, second)
    if await backend.get(key, max_bytes=len(second)) != second:
        raise UnsupportedStore(backend.url, "it returns old content after a write", hint="Bypass the cache before it")


async def _check_absence(backend: Backend, key: str) -> None:
    """S3 answers 403 instead of 404 to those who may not list: then nobody could tell where the chain ends."""
    try:
        await backend.stat(f"{key}-absent")
    except NotFound:
        return
    except AccessDenied as error:
        hint = "Allow listing of the bucket below this prefix: a store then answers 'not found' instead of 'denied'"
        raise AccessDenied("stat", f"{key}-absent", "the object does not exist", hint=hint) from error
    raise UnsupportedStore(backend.url, "it finds objects that were never written")


async def _replaces(backend: Backend, key: str, data: bytes) -> bool:
    try:
        await backend.create(key, data)
    except AlreadyExists:
        return False
    return True


async def _try_listing(backend: Backend, key: str, findings: _Findings) -> None:
    try:
        seen = any(info.key == key for info in await backend.list(PROBE_PREFIX))
    except AccessDenied:
        findings.can_list = False
        findings.warnings.append("listing is denied: checkpoints can be restored by name and through the chain only")
        return
    if not seen:
        findings.warnings.append("listings are stale: a new object was not in one")


async def _try_deleting(backend: Backend, key: str, findings: _Findings) -> None:
    try:
        await backend.delete([key])
    except AccessDenied:
        findings.can_delete = False
        findings.warnings.append(f"deleting is denied: nothing can be pruned, and {key} stays behind")
        return
    with suppress(NotFound):
        await backend.stat(key)
        findings.warnings.append("a deleted object could still be seen")


def _explained(error: AccessDenied) -> AccessDenied:
    return AccessDenied(error.operation, error.key, str(error.__cause__ or ""), hint=_DENIED)


async def _clean_up(backend: Backend, key: str) -> None:
    with anyio.move_on_after(CLEANUP_S, shield=True), suppress(BackendError):
        await backend.delete([key])
