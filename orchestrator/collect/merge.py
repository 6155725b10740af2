"""From the segments to what people read: the output in input order, and the failures beside it, each in one step.

On a local disk the rows pass through memory a few hundred at a time, into a temporary file that then takes the place
of the output. An object store takes an object whole, so there the output is made in memory.

    crash                  what is left
    while merging          the segments, whole, and the old output if there was one; merging again gives the same bytes
"""

import errno
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import anyio
import anyio.to_thread
import orjson

from store import Backend, BackendError, IOFailed, Life, NoSpace, open_backend

from .rows import Rollout
from .segments import Kept, Segments

WINDOW = 256
"""Rows in memory at once."""
READS_AT_ONCE = 16
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def failures_url(url: str) -> str:
    """Where the failures go: `<stem>_failures.jsonl` beside the output."""
    return f"{url.removesuffix('.jsonl')}_failures.jsonl"


async def write_output(
    url: str, segments: Segments, decided: Mapping[str, Kept], failures: Sequence[Kept], rollouts: Mapping[str, Rollout]
) -> float | None:
    """Write the output and, where there are any, the failures; those of before go. Raises BackendError.

    Gives the mean reward of the output's rows, None where it has none.
    """
    rows = [decided[r] for r in rollouts if r in decided and not decided[r].failed]
    rewards: list[float] = []
    await _write(url, _public_rows(segments, rows, rollouts, rewards))
    failed = [line for line in failures if line.rollout_id in rollouts]
    if failed:
        await _write(failures_url(url), _public_rows(segments, failed, rollouts, []))
    else:
        await _remove(failures_url(url))
    return math.fsum(rewards) / len(rewards) if rewards else None


async def _public_rows(
    segments: Segments, lines: Sequence[Kept], rollouts: Mapping[str, Rollout], rewards: list[float]
) -> AsyncIterator[bytes]:
    """Lines of JSON; `rewards` gets those that the rows have."""
    for start in range(0, len(lines), WINDOW):
        window = lines[start : start + WINDOW]
        found = [b""] * len(window)
        places = anyio.Semaphore(READS_AT_ONCE)

        async def read(position: int, kept: Kept, found: list[bytes] = found, places: anyio.Semaphore = places) -> None:
            async with places:
                row = await segments.row(kept)
                found[position] = _public(row, kept, rollouts[kept.rollout_id])
                if isinstance(reward := row.get("reward"), int | float):
                    rewards.append(reward)

        async with anyio.create_task_group() as group:
            for position, kept in enumerate(window):
                group.start_soon(read, position, kept)
        yield b"".join(found)


def _public(row: Mapping[str, Any], kept: Kept, rollout: Rollout) -> bytes:
    """A row as people get it: with which rollout it is of, in the keys of NeMo Gym, and its life."""
    keys = {
        "_ng_task_index": rollout.task,
        "_ng_rollout_index": rollout.repeat,
        "_ng_attempt_index": Life.parse(kept.life).attempt,
        "_ng_rollout_id": kept.rollout_id,
        "_midflight_life": kept.life,
    }
    return orjson.dumps({**row, **keys}, option=orjson.OPT_APPEND_NEWLINE)


def local_path(url: str) -> Path | None:
    """The path of a local output, as the store reads its URL; None for one in an object store."""
    if "://" not in url:
        return Path(url)
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in ("file", "local"):
        return None
    return Path(os.fsdecode(unquote_to_bytes(rest.removeprefix("localhost"))))


async def _write(url: str, pieces: AsyncIterator[bytes]) -> None:
    path = local_path(url)
    if path is None:
        await _write_object(url, pieces)
        return
    try:
        await _write_file(path, pieces)
    except OSError as error:
        raise _merge_failed(url, error) from error


def _merge_failed(url: str, error: OSError) -> BackendError:
    kind: type[BackendError] = NoSpace if error.errno in FULL else IOFailed
    return kind("merge", url, str(error), hint="The rows are safe in the segments; run the same command again")


async def _remove(url: str) -> None:
    """What earlier starts left there; nothing may be there."""
    path = local_path(url)
    if path is None:
        async with _folder_of(url) as (backend, name):
            await backend.delete([name])
        return
    try:
        for gone in (path, partial_path(path)):
            await anyio.Path(gone).unlink(missing_ok=True)
    except OSError as error:
        raise _merge_failed(url, error) from error


async def _write_file(path: Path, pieces: AsyncIterator[bytes]) -> None:
    """The file appears whole and durable, in place of any other."""
    partial = partial_path(path)
    file = await anyio.open_file(partial, "wb")
    try:
        async for data in pieces:
            await file.write(data)
        await file.flush()
        await anyio.to_thread.run_sync(os.fsync, file.wrapped.fileno())
    except BaseException:
        with anyio.CancelScope(shield=True):
            await file.aclose()
            await anyio.Path(partial).unlink(missing_ok=True)
        raise
    await file.aclose()
    await anyio.to_thread.run_sync(_replace, partial, path)


def partial_path(path: Path) -> Path:
    """Of one name, so that a merge that was killed leaves nothing that the next one does not replace."""
    return path.with_name(f".{path.name}.merging.tmp")


def _replace(partial: Path, path: Path) -> None:
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


async def _write_object(url: str, pieces: AsyncIterator[bytes]) -> None:
    data = bytearray()
    async for piece in pieces:
        data += piece
    async with _folder_of(url) as (backend, name):
        await backend.put(name, bytes(data))


@asynccontextmanager
async def _folder_of(url: str) -> AsyncIterator[tuple[Backend, str]]:
    folder, _, name = url.rpartition("/")
    opened = await open_backend(folder, writable=False)
    try:
        yield opened.backend, name
    finally:
        await opened.backend.aclose()
