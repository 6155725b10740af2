"""The stores of a soak, on a local disk or anywhere that midflight reaches: what lies in them, pruned and verified."""

from dataclasses import dataclass, replace

import anyio

from store import DEFAULT_LIMITS, Retention, StoreError, open_store, prune, verify_store
from store.layout import CHAIN_PREFIX

SWEEP_AFTER_S = 300.0
"""What killed writers have left is swept when it is so old. The collection run itself waits for a day with it, for its
own end: then it sweeps all that is older than it is."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies in a store. The chain is counted apart: it is the run's history, with an entry for each checkpoint."""

    objects: int
    size: int
    """Bytes."""
    chain_objects: int
    chain_size: int


def contents(url: str) -> Contents:
    """List it. Raises StoreError where it cannot be listed, or is not there yet."""
    return anyio.run(_contents, url)


async def _contents(url: str) -> Contents:
    async with open_store(url, "read") as store:
        objects = size = chain_objects = chain_size = 0
        for info in await store.backend.list(""):
            if info.key.startswith(CHAIN_PREFIX):
                chain_objects, chain_size = chain_objects + 1, chain_size + info.size
            else:
                objects, size = objects + 1, size + info.size
    return Contents(objects, size, chain_objects, chain_size)


def prune_old(url: str) -> str:
    """As an operator beside the run: prune, and sweep what the dead have left; what went wrong, or nothing."""
    return anyio.run(_prune_old, url)


async def _prune_old(url: str) -> str:
    try:
        async with open_store(url, "write", limits=replace(DEFAULT_LIMITS, sweep_after_s=SWEEP_AFTER_S)) as store:
            report = await prune(store, Retention(keep_last=2))
    except StoreError as error:
        return str(error)
    return "; ".join(report.failures)


def unsound(url: str) -> list[str]:
    """What is damaged, or left over, once its run is through."""
    return anyio.run(_unsound, url)


async def _unsound(url: str) -> list[str]:
    async with open_store(url, "read") as store:
        report = await verify_store(store, deep=True)
    told = [] if report.sound else [f"the store is not sound: {report}"]
    return [*told, *(f"the store has a leftover: {finding}" for finding in report.findings)]
