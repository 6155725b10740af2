"""Judging every state that a power loss during recorded work may leave on the disk."""

import math
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio.to_thread

from store import LocalBackend, StoreError, claim, open_store
from store.backends import FileOps, Handle, Retrying
from tests.crash.stage import Stage
from tests.support.crash_states import QUICK, Disk, Effort, Image, read_image, write_image
from tests.support.rounds import PATIENT, Round, View, on_backend, read_cursor, view_root

NEXT_CURSOR = 1000
"""Of the checkpoint that is written on top of every state."""
ENOUGH = 3
"""An exploration stops after so many problems."""

GoOn = Callable[[Path, View], Awaitable[None]]
"""Works on with a root in which this was found; raises where that does not go well."""
Key = frozenset[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What may be found after a crash."""

    views: Sequence[View]
    """From the state before the work to the state after it."""
    after: Mapping[str, int]
    """From a mark on, only the views from this position on."""

    def allowed(self, position: int, marks: Mapping[str, int]) -> Sequence[View]:
        """The views that are right once so many operations were made."""
        reached = [self.after[name] for name, at in marks.items() if at <= position]
        return self.views[max(reached, default=0) :]


@dataclass(slots=True)
class Tried:
    """How much was tried, and what was wrong."""

    states: int = 0
    points: int = 0
    """After how many of the operations that change what survives."""
    complete: bool = True
    """False where time was over before the end."""
    found: dict[Key, View] = field(default_factory=dict)
    """What each different state looks like."""
    went_on: int = 0
    """On how many of these the next round was tried."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.states} states, {len(self.found)} different, the next round on {self.went_on}"


async def explore(
    stage: Stage,
    verdicts: Verdicts,
    scratch: Path,
    go_on: GoOn,
    effort: Effort = QUICK,
    *,
    start: int = 0,
    end: int = sys.maxsize,
    until: float = math.inf,
) -> Tried:
    """Try the states after each number of operations from `start` to `end`; `scratch` is a folder for them.

    `until` is a time of the monotonic clock after which nothing more is tried.
    """
    tried, disk = Tried(), Disk(stage.base)
    for position in range(min(end, len(stage.log)) + 1):
        changed = disk.apply(stage.log[position - 1]) if position else True
        if position < start or not (changed or position in stage.marks.values()):
            continue
        allowed = verdicts.allowed(position, stage.marks)
        tried.points += 1
        for image in disk.states(effort):
            if time.monotonic() > until:
                tried.complete = False
                return tried
            tried.states += 1
            found = await _look(image, tried, scratch, go_on, effort)
            if found not in allowed:
                last = stage.log[position - 1] if position else "the beginning"
                tried.problems.append(f"after operation {position}, {_short(last)}: {found}")
            if len(tried.problems) >= ENOUGH:
                return tried
    if end >= len(stage.log) and verdicts.views[-1] not in tried.found.values():
        tried.problems.append(f"never seen: {verdicts.views[-1]}")
    return tried


def _short(op: object) -> str:
    text = repr(op)
    return text if len(text) < 200 else f"{text[:200]}..."


async def _look(image: Image, tried: Tried, scratch: Path, go_on: GoOn, effort: Effort) -> View:
    """Make the folder, open it, and go on with it; once for each different one."""
    key = frozenset(image.items())
    if key not in tried.found:
        async with folder_like(image, scratch / f"state-{len(tried.found)}") as root:
            tried.found[key] = found = await view_root(root)
            if not found.damage and len(tried.found) % effort.go_on_each == 0:
                tried.went_on += 1
                try:
                    await go_on(root, found)
                except (StoreError, AssertionError) as error:
                    tried.problems.append(f"{error!r} when going on from {found}")
    return tried.found[key]


@asynccontextmanager
async def folder_like(image: Image, root: Path) -> AsyncIterator[Path]:
    """A folder that holds this image until the block ends."""
    await anyio.to_thread.run_sync(write_image, image, root)
    try:
        yield root
    finally:
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(root, ignore_errors=True))


class UnsyncedOps(FileOps):
    """Syncs nothing, for states that nobody will crash once more."""

    def fsync(self, handle: Handle) -> None:
        """Do nothing."""


async def next_round_works(root: Path, before: View) -> None:
    """A later claim, commit and publication succeed, and no object that was there changes."""
    async with open_store(root, limits=PATIENT) as found:
        run_id = found.run_id
    objects = await objects_of(root)
    store = on_backend(Retrying(LocalBackend(root, UnsyncedOps(), limits=PATIENT)), run_id)
    async with claim(store, take_over=True) as controller:
        assert controller.epoch == before.epoch + 1
        ref = await Round(store, controller, NEXT_CURSOR).run()
    assert await read_cursor(store, ref) == NEXT_CURSOR
    assert (await store.chain()).state.head == ref
    assert objects.items() <= (await objects_of(root)).items()


async def opening_works(root: Path, before: View) -> None:
    """Opening for writing makes or finds the store, and the first round of its life can be published."""
    async with open_store(root, "write", limits=PATIENT):
        found = await view_root(root)
    assert not found.refusal
    await next_round_works(root, found)


async def objects_of(root: Path) -> Image:
    """The objects of a folder: no counters, no temporary files."""
    image = await anyio.to_thread.run_sync(read_image, root)
    return {path: data for path, data in image.items() if path.split("/")[0] != "alive" and not path.endswith(".tmp")}
