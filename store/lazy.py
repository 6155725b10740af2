"""Bytes that a commit reads only when it writes them: what sessions keep on a disk is never in memory all together."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from .errors import InvalidRecord
from .layout import check_sha256

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, eq=False)
class LazyBytes:
    """Stands for bytes in a record that is to be written; they are read back as bytes.

    Where the parent checkpoint has a blob with this digest, they are not read at all.
    """

    sha256: str
    """64 lower-case hexadecimal digits."""
    size: int
    read: Callable[[], bytes]
    """Gives just the bytes that have this digest, in any thread, until the commit is over."""

    def __post_init__(self) -> None:
        """Raises InvalidName for what is no digest: it becomes part of a key."""
        check_sha256(self.sha256)

    def load(self, owner: str) -> bytes:
        """The bytes, checked; blocks. Raises InvalidRecord, naming `owner`, where they are not what was announced."""
        try:
            data = self.read()
        except (OSError, ValueError) as error:
            raise InvalidRecord(owner, f"a payload of {self.size} bytes cannot be read any more: {error}") from error
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.sha256:
            raise InvalidRecord(owner, f"a payload of {self.size} bytes has changed since it was exported")
        return data


def in_groups(items: Iterable[tuple[Key, LazyBytes]], max_bytes: int) -> Iterator[list[tuple[Key, LazyBytes]]]:
    """Neighbours that together have at most so many bytes; a larger one stands alone."""
    group: list[tuple[Key, LazyBytes]] = []
    size = 0
    for key, item in items:
        if group and size + item.size > max_bytes:
            yield group
            group, size = [], 0
        group.append((key, item))
        size += item.size
    if group:
        yield group
