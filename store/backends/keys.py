"""What a key may look like, checked again by every backend because keys also come from listings and manifests.

A listing of a local folder also meets names that no key can have. They are offered under an escaped name, `\\x01` for a
byte, so that a check can tell them and a sweeper can name them; see `stray_key`.
"""

import os
import re
from collections.abc import Sequence

from ..errors import InvalidName

MAX_KEY_BYTES = 1024
"""Longest key, encoded: the limit of S3."""
MAX_NAME_BYTES = 255
"""Longest single name in a key, encoded: the limit of Linux file systems."""
MAX_DEPTH = 16
"""Most names in a key that a listing descends to. Our own keys have five; a folder below that is told by its name."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")
_RULE = "plain names joined by '/': none empty, '.', '..', or temporary, no control characters, at most 1024 bytes"


def is_temporary(name: str) -> bool:
    """Whether a file name is one that a write in progress uses, `.<name>.<random>.tmp`."""
    return name.startswith(".") and name.endswith(".tmp")


def check_key(key: str, *, temporary: bool = False) -> tuple[str, ...]:
    """Split a key into its names, or raise InvalidName. `temporary` lets a sweeper name leftovers."""
    names = tuple(key.split("/"))
    if not all(_is_plain(name) for name in names) or len(os_bytes(key)) > MAX_KEY_BYTES:
        raise InvalidName("key", key, _RULE)
    if not temporary and any(is_temporary(name) for name in names):
        raise InvalidName("key", key, _RULE)
    return names


def check_prefix(prefix: str) -> tuple[str, ...]:
    """Split a prefix (empty, or ending in `/`) into its names, or raise InvalidName."""
    if not prefix:
        return ()
    if not prefix.endswith("/"):
        raise InvalidName("prefix", prefix, "empty, or a key followed by '/'")
    return check_key(prefix[:-1])


def is_key(key: str, *, temporary: bool = False) -> bool:
    """Whether a name found in a listing could be one of ours at all."""
    try:
        check_key(key, temporary=temporary)
    except InvalidName:
        return False
    return True


def os_bytes(text: str) -> bytes:
    """The encoded form; a lone surrogate, which only a damaged name has, is refused."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidName("key", text, _RULE) from error


def _is_plain(name: str) -> bool:
    if name in {"", ".", ".."} or len(os_bytes(name)) > MAX_NAME_BYTES:
        return False
    return _CONTROL.search(name) is None


def stray_key(names: Sequence[str]) -> str:
    """How a listing offers a path that is no key: with an escape for each byte that a key may not have.

    At least one character is escaped, also where only the length is wrong: `check_removable` knows a stray by that.
    """
    shown = [_stray_name(name) for name in names]
    if shown == list(names):
        shown[-1] = _escaped(shown[-1][0]) + shown[-1][1:]
    return "/".join(shown)


def _stray_name(name: str) -> str:
    if is_temporary(name):
        return _escaped(".") + _stray_name(name[1:])
    if _is_encodable(name) and not _CONTROL.search(name):
        return name
    return "".join(_escaped(c) if c == "\\" or _CONTROL.match(c) or not _is_encodable(c) else c for c in name)


def _escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))


def check_removable(key: str) -> tuple[str, ...]:
    """Split a key that a local listing has offered, strays included, into names; InvalidName where none can be that."""
    if "\\x" not in key:
        return check_key(key, temporary=True)
    names = tuple(key.split("/"))
    for name in names:
        real = real_name(name)
        if real in {"", ".", ".."} or "/" in real or "\0" in real or _CONTROL.search(name):
            raise InvalidName("key", key, _RULE)
    return names


def real_name(name: str) -> str:
    """The name of a stray in its folder; the inverse of `stray_key` where that has changed something."""
    return os.fsdecode(_ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), os_bytes(name)))


def _is_encodable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
