"""Order-free digests over what two participants hold for and depend on of each other.

Each side counts, for each life and session, the completed calls of mode `wait` between them. When all stand still both
have the same counts; a difference means that they did not stand still together, and the checkpoint must not exist. The
digest is the exclusive or of one sha256 a triple, so order does not matter and processes can be added up.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from store import Life

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


def _item(life: Life, session: str, revision: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{life}|{session}|{revision}".encode()).digest())
