"""What was computed for calls that have ended, for prompts that begin alike: the next turn of an episode above all.

It changes no bit: a position's keys and values depend on the ids up to it alone (`llama.py`).
"""

from collections import OrderedDict

from .llama import Cache

LEAST = 16
"""A shorter common beginning is not worth copying: one tile computes it."""


class Prefixes:
    """Caches of ended sequences, the longest unused leaving first."""

    def __init__(self, most: int) -> None:
        """`most`: positions that are kept in all."""
        self._most = most
        self._held = 0
        self._caches: OrderedDict[str, Cache] = OrderedDict()

    def find(self, ids: str) -> Cache:
        """A cache with as much of these ids as is known, but never all: the last one gives the logits."""
        best, length = "", 0
        for known in self._caches:
            common = common_length(known, ids, least=length)
            if common > length:
                best, length = known, common
        length = min(length, len(ids) - 1)
        if length < LEAST:
            return Cache()
        self._caches.move_to_end(best)
        return self._caches[best].copy(length)

    def add(self, ids: str, cache: Cache) -> None:
        """Keep a cache that nobody extends any more; `ids` are those that it has computed."""
        if not LEAST <= len(ids) <= self._most or ids in self._caches:
            return
        self._caches[ids] = cache
        self._held += len(ids)
        while self._held > self._most:
            left, _ = self._caches.popitem(last=False)
            self._held -= len(left)

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        self._caches.clear()
        self._held = 0


def common_length(one: str, other: str, *, least: int = 0) -> int:
    """How many characters two strings begin with in common; 0 if not more than `least`."""
    low, high = least, min(len(one), len(other))
    if low >= high or one[: low + 1] != other[: low + 1]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
