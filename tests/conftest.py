"""What every test gets: anyio on asyncio, no blocking call in the event loop, and a tier that it must name."""

import gc
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import settings


def _unloaded(package: str) -> ModuleType:
    """A package as far as its path: importing them all here would break every test if one of them is broken."""
    module = ModuleType(package)
    module.__path__ = [str(Path(__file__).parent.parent / package)]
    return module


sys.dont_write_bytecode = False
"""Else each process of each run compiles every test and rewrites its asserts once more, which is half of collecting."""
OURS = [_unloaded(package) for package in ("midflight", "orchestrator", "participants", "store")]
TIERS = {"unit", "process", "real", "scale"}

pytest_plugins = ["tests.support.seaweed", "tests.support.rclone"]


settings.register_profile("midflight", deadline=None, max_examples=25)  # a busy machine is slow, and that is no fault
settings.register_profile("thorough", deadline=None, max_examples=300)  # CI: --hypothesis-profile thorough
settings.load_profile("midflight")


@pytest.hookimpl(optionalhook=True)  # Nobody asks where xdist is left out.
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: with as many, each core is idle for two fifths of the quick tier."""
    return (os.cpu_count() or 1) + 1


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The quick tier does not wait until torch is imported: no test of the real model is in it."""
    real = "worker" in collection_path.parts or collection_path.name in {"test_real.py", "test_real_model.py"}
    return True if real and config.option.markexpr == "unit" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a test without a tier, which plain pytest would leave out in silence; thin out what is enumerated."""
    unmarked = [item.nodeid for item in items if not TIERS & {marker.name for marker in item.iter_markers()}]
    if unmarked:
        raise pytest.UsageError(f"in no tier ({', '.join(sorted(TIERS))}): {', '.join(unmarked)}")
    if config.option.markexpr == "unit" and not any("::" in argument for argument in config.args):
        left_out = [item for item in items if not in_quick_tier(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if in_quick_tier(item)]


def in_quick_tier(item: pytest.Item) -> bool:
    """Of an enumeration one case in so many, the same ones in every process; of all else everything."""
    marker = item.get_closest_marker("enumerated")
    return marker is None or zlib.crc32(item.nodeid.encode()) % int(marker.args[0]) == 0


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was collected stays: the collector of garbage need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio only: that is what fsspec needs."""
    return "asyncio"


@pytest.fixture(autouse=True)
def blocking_calls_fail() -> Iterator[BlockBuster]:
    """A call below one of our packages that blocks the event loop raises BlockingError where it is made.

    What tests themselves read and arrange is theirs.
    """
    with blockbuster_ctx(OURS) as blockbuster:
        # Making a path absolute asks the kernel for the working directory, and no disk for anything.
        for name in ("os.path.abspath", "os.getcwd"):
            blockbuster.functions[name].can_block_in("store/backends/local.py", {"__init__"})
        # What is left of making an S3 client once its descriptions are loaded: looking whether small files exist.
        stat = blockbuster.functions["os.stat"]
        stat.can_block_in("botocore/loaders.py", {"_potential_locations"})
        stat.can_block_in("botocore/configloader.py", {"raw_config_parse"})
        yield blockbuster
