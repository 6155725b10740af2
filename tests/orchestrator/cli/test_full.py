"""Pruning on a full disk: making space must not need space, and where it does, the message says how little."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from orchestrator.cli.checkpoints import prune_store
from orchestrator.cli.target import Target
from store import DEFAULT_LIMITS, LocalBackend, NoSpace, Retention, Store, open_store
from store.backends import FileOps, Handle, probe
from tests.orchestrator.cli.conftest import fill

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
POLICY = Retention(keep_last=1, keep_tagged=False)


class FullOps(FileOps):
    """A disk on which only files of the chain still fit, or none."""

    def __init__(self, room_for_chain: bool) -> None:
        self.room_for_chain = room_for_chain

    def create_file(self, folder: Handle, name: str) -> Handle:
        if folder.path != "chain" or not self.room_for_chain:
            raise OSError(errno.ENOSPC, "full")
        return super().create_file(folder, name)


@dataclass(frozen=True, slots=True)
class FullTarget(Target):
    """A store on such a disk."""

    room_for_chain: bool = True

    @asynccontextmanager
    async def _opened(self, only_deletes: bool) -> AsyncIterator[Store]:
        backend = LocalBackend(self.url, FullOps(self.room_for_chain))
        report = await probe(backend, only_deletes=only_deletes)
        async with open_store(self.url) as store:
            yield Store(backend, store.run_id, DEFAULT_LIMITS, report.warnings)

    def open(  # type: ignore[override]
        self, mode: Literal["read", "write"] = "read", *, only_deletes: bool = False
    ) -> object:
        return open_store(self.url) if mode == "read" else self._opened(only_deletes)


async def test_a_prune_needs_no_space_but_for_its_plan(tmp_path: Path) -> None:
    """Neither the probe at opening nor the look at the store's clock stops it."""
    await fill(tmp_path)
    pruned = await prune_store(FullTarget(str(tmp_path)), POLICY, dry_run=False)
    assert pruned.deleted == pruned.objects > 0
    assert pruned.failures == ()
    assert not (tmp_path / "checkpoints" / "1.1").exists()


async def test_a_prune_whose_plan_does_not_fit_says_so(tmp_path: Path) -> None:
    """It does not send people to prune, which is what they do; nothing is deleted."""
    await fill(tmp_path)
    with pytest.raises(NoSpace, match=r"not even those fit.*Free some kilobytes outside") as caught:
        await prune_store(FullTarget(str(tmp_path), room_for_chain=False), POLICY, dry_run=False)
    assert "prune old" not in str(caught.value)
    assert (tmp_path / "checkpoints" / "1.1").exists()
