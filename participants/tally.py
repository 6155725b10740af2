"""Order-free digests over what two participants hold for and depend on of each other.

Each side counts, for each life and session, the completed calls of mode `wait` between them. When all stand still both
have the same counts; a difference means that they did not stand still together, and the checkpoint must not exist. The
digest is the exclusive or of one sha256 a triple, so order does not matter and processes can be added up.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from store import Life

from .wire import PairTally

_BYTES = 32


@dataclass(frozen=True, slots=True)
class Sum:
    """Count and digest over triples."""

    count: int = 0
    digest: int = 0

    def add(self, life: Life, session: str, revision: int) -> "Sum":
        """With one more triple."""
        return Sum(self.count + 1, self.digest ^ _item(life, session, revision))

    def join(self, other: "Sum") -> "Sum":
        """Both together."""
        return Sum(self.count + other.count, self.digest ^ other.digest)

    @property
    def text(self) -> str:
        """The digest as hexadecimal."""
        return self.digest.to_bytes(_BYTES).hex()

    @classmethod
    def of(cls, triples: Iterable[tuple[Life, str, int]]) -> "Sum":
        """Over all of these."""
        count = digest = 0
        for life, session, revision in triples:
            count += 1
            digest ^= _item(life, session, revision)
        return cls(count, digest)

    @classmethod
    def parse(cls, count: int, text: str) -> "Sum":
        """From the written form."""
        return cls(count, int(text, 16))


class Sums:
    """A sum for each peer, over very many lives: of a triple nothing is made but its digest."""

    def __init__(self) -> None:
        """Nothing is added yet."""
        self._found: dict[str, list[int]] = {}

    def add(self, life: Life, waited: Iterable[tuple[str, str, int]]) -> None:
        """All of one life: peer, session and revision."""
        head = f"{life}|"
        for peer, session, revision in waited:
            total = self._found.setdefault(peer, [0, 0])
            total[0] += 1
            total[1] ^= _digest(f"{head}{session}|{revision}")

    def by_peer(self) -> dict[str, Sum]:
        """In the order of the peers' names."""
        return {peer: Sum(*total) for peer, total in sorted(self._found.items())}


def _item(life: Life, session: str, revision: int) -> int:
    return _digest(f"{life}|{session}|{revision}")


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest())


def pair_tally(peer: str, total: Sum) -> PairTally:
    """A sum with a peer, `<kind>.<name>`, as a commit says it."""
    kind, _, name = peer.partition(".")
    return PairTally(kind=kind, name=name, count=total.count, digest=total.text)
