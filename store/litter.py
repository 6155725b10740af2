"""What the dead leave outside checkpoints: temporary files, counters and locks of lower epochs, objects of probes.

Nothing on the chain names any of it, so it needs no plan. It is swept once it is old by the store's own clock, because
a write or a probe in progress looks the same. The counter of a lower epoch says nothing any more: only the highest
epoch's liveness is ever judged.
"""

import re
import secrets
from collections.abc import Iterable
from contextlib import suppress

from .backends.base import ObjectInfo
from .backends.local import LocalBackend
from .backends.retry import Retrying
from .chain import Chain
from .errors import AccessDenied, NoSpace, StoreError
from .layout import ALIVE_PREFIX
from .root import Store

_COUNTER = re.compile(rf"{ALIVE_PREFIX}([1-9][0-9]{{0,17}})(\.lock)?")
_PASSING = re.compile(rf"{ALIVE_PREFIX}(probe|clock)-[0-9a-f]+")


async def find_litter(store: Store, chain: Chain) -> list[ObjectInfo]:
    """All litter that is old enough to be swept."""
    alive = [info for info in await store.backend.list(ALIVE_PREFIX) if _is_litter(info.key, chain.state.epoch)]
    found = [*alive, *await temporary_files(store)]
    if not found:
        return []
    now = await store_clock(store, (info.modified_s for info in found))
    return [info for info in found if now - info.modified_s >= store.limits.sweep_after_s]


def _is_litter(key: str, epoch: int) -> bool:
    counter = _COUNTER.fullmatch(key)
    return int(counter[1]) < epoch if counter else _PASSING.fullmatch(key) is not None


async def temporary_files(store: Store) -> list[ObjectInfo]:
    """Those of writes that are in progress or died; only the local backend has any."""
    backend = store.backend.inner if isinstance(store.backend, Retrying) else store.backend
    return await backend.list_leftovers() if isinstance(backend, LocalBackend) else []


async def store_clock(store: Store, dates: Iterable[float]) -> float:
    """Now, by the clock that dates the store's objects; without permission or space to write, the newest of `dates`."""
    key = f"{ALIVE_PREFIX}clock-{secrets.token_hex(8)}"
    try:
        await store.backend.put(key, b"{}")
        now = (await store.backend.stat(key)).modified_s
    except (AccessDenied, NoSpace):
        return max(dates)
    with suppress(StoreError):  # without permission to delete it stays
        await store.backend.delete([key])
    return now
