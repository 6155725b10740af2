"""What killed processes leave outside checkpoints is swept once it is old, and nothing else is."""

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from store import LocalBackend, MemoryBackend, NoSpace, Retention, claim, prune
from store.backends import Fault, MemorySpace
from tests.support.rounds import PATIENT, Round, on_backend

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
RUN_ID = "0" * 32
TEMPORARY = ("chain/.000000000009.json.0123456789abcdef.tmp", "checkpoints/1.7/.manifest.json.0123456789abcdef.tmp")
PROBES = ("alive/probe-0123456789abcdef", "alive/clock-0123456789abcdef")
FOREIGN = ("alive/notes", "checkpoints/readme", "chain/.hidden")


async def litter(root: anyio.Path) -> list[str]:
    """Leave what two dead controllers, dead writes and dead probes leave; all files below the root."""
    backend = LocalBackend(root, limits=PATIENT)
    await backend.make_root()
    store = on_backend(backend, RUN_ID)
    for cursor in (1, 2):
        async with claim(store) as controller:
            await Round(store, controller, cursor).run()
    for name in (*TEMPORARY, *PROBES, *FOREIGN):
        await (root / name).parent.mkdir(parents=True, exist_ok=True)
        await (root / name).write_bytes(b"left")
    return await files(root)


async def files(root: anyio.Path) -> list[str]:
    return sorted([path.relative_to(root).as_posix() async for path in root.rglob("*") if await path.is_file()])


async def test_old_litter_is_swept_and_nothing_else(tmp_path: Path) -> None:
    """Temporary files, probes, counter and lock of the lower epoch go; those of the highest and strangers stay."""
    root = anyio.Path(tmp_path / "store")
    before = await litter(root)
    store = on_backend(LocalBackend(tmp_path / "store", limits=PATIENT), RUN_ID, sweep_after_s=0.0)
    report = await prune(store, Retention(keep_last=5))
    gone = set(before) - set(await files(root))
    assert gone == {*TEMPORARY, *PROBES, "alive/1", "alive/1.lock"}
    assert report.swept == len(gone)
    assert not report.failures


async def test_young_litter_stays(tmp_path: Path) -> None:
    """What a write or a probe in progress looks like is left alone."""
    root = anyio.Path(tmp_path / "store")
    before = await litter(root)
    report = await prune(on_backend(LocalBackend(tmp_path / "store", limits=PATIENT), RUN_ID), Retention(keep_last=5))
    assert report.swept == 0
    assert await files(root) == before


async def test_a_sweep_that_fails_is_reported_and_its_prune_is_done() -> None:
    """The plan is closed before anything is swept, so a failure costs nothing but the litter."""
    backend = MemoryBackend(space=MemorySpace())
    store = replace(on_backend(backend, RUN_ID), limits=replace(PATIENT, sweep_after_s=0.0))
    for cursor in (1, 2):
        async with claim(store) as controller:
            await Round(store, controller, cursor).run()
    backend.inject(Fault(verb="list", key_part="alive/", error=lambda call: NoSpace(call.verb, call.key)))
    report = await prune(store, Retention(keep_last=1))
    assert len(report.failures) == 1
    assert not (await store.chain()).state.plans
