"""The hosts' clocks are ten minutes apart and more, in all tests here; nothing goes by what they say."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from store import Ref, Store, StoreError, open_checkpoint, open_store, verify_store
from store.reader import published
from tests.orchestrator.collect.test_kill import s3_environment
from tests.scenarios.tasks import tasks
from tests.support.backend import RunningBackend
from tests.support.namespaces import Network
from tests.support.waiting import until

from .fleets import PATIENCE_S, HostRun
from .places import SKEWS_S, TEN_MINUTES_S

pytestmark = [pytest.mark.timeout(400), pytest.mark.fault(51)]

CLOSE_S = 60.0
KEPT, LOST_OWNERSHIP, REFUSED = 2, 76, 2
TELL = "import time; print(time.time(), time.monotonic())"


@pytest.mark.process
def test_51_every_two_hosts_are_ten_minutes_apart_and_durations_are_true(skewed_network: Network) -> None:
    """What a program sees there: the time of its host, and the same monotonic clock as all."""
    seen = {}
    for name in SKEWS_S:
        with skewed_network.at(name) as host:
            told = subprocess.run([sys.executable, "-c", TELL], env=host.environment, capture_output=True, text=True)
        wall, monotonic = map(float, told.stdout.split())
        seen[name] = wall - time.time()
        assert abs(monotonic - time.monotonic()) < CLOSE_S
    assert all(abs(seen[name] - skew_s) < CLOSE_S for name, skew_s in SKEWS_S.items()), seen
    a, b, c = (seen[name] for name in ("a", "b", "c"))
    assert min(abs(a - b), abs(b - c), abs(c - a)) > TEN_MINUTES_S - CLOSE_S


@pytest.mark.parametrize(
    "stored", [pytest.param("folder", marks=pytest.mark.process), pytest.param("s3", marks=pytest.mark.real)]
)
def test_51_order_take_over_and_retention_go_by_the_chain(
    network: Network, host_backend: RunningBackend, tmp_path: Path, stored: str, request: pytest.FixtureRequest
) -> None:
    """One whose clock is behind by twenty minutes is refused beside the first, takes over, and its checkpoints stay."""
    host_backend.control.reset()
    every = tasks(2, filler=20)
    checkpoint = {"interval_s": 0, "liveness_beat_s": 0.5, "keep_last": KEPT}
    run = HostRun(
        tmp_path, host_backend, [t.row for t in every], checkpoint=checkpoint, network=network, tasks=every, hosts=()
    )
    url, options = str(tmp_path / "checkpoints"), None
    if stored == "s3":
        s3 = replace(request.getfixturevalue("host_s3"), prefix=tmp_path.name)
        url, options = f"{s3.url}/checkpoints", s3.options()
        run.checkpoint_url, run.environment = url, s3_environment(s3)
    run.hold_at(2)
    with run.collect("a") as first:
        for _ in range(KEPT):
            run.all_in_a_checkpoint(first)
        with run.collect("b") as refused:
            refused.wait(REFUSED)
        with run.collect("b", "--take-over") as second:
            first.wait(LOST_OWNERSHIP)
            until(lambda: second.events("started"), PATIENCE_S, second.told)
            host_backend.control.wait(held=len(every))
            for _ in range(KEPT):
                run.all_in_a_checkpoint(second)
            host_backend.control.release()
            second.wait(0)
            assert second.events("started")[0]["restored"] == len(every)
    assert [ref.checkpoint.epoch for ref in anyio.run(_there, url, options)] == [2] * KEPT
    seen = run.seen()
    for life, calls in seen.calls.items():
        assert calls == ([1, 2] if life.epoch == 1 else [2, 3, 4]), seen


async def _there(url: str, options: dict[str, Any] | None) -> list[Ref]:
    """The checkpoints that can be opened, in the order of the chain."""
    async with open_store(url, "read", storage_options=options) as store:
        assert (await verify_store(store)).sound
        return [ref for ref in published(await store.chain()) if await _opens(store, ref)]


async def _opens(store: Store, ref: Ref) -> bool:
    try:
        await open_checkpoint(store, ref)
    except StoreError:
        return False
    return True
