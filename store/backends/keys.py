"""What a key may look like, checked again by every backend because keys also come from listings and manifests."""

from ..errors import InvalidName

MAX_KEY_BYTES = 1024
"""Longest key, encoded: the limit of S3."""
MAX_NAME_BYTES = 255
"""Longest single name in a key, encoded: the limit of Linux file systems."""
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


def is_key(key: str) -> bool:
    """Whether a name found in a listing could be one of ours at all."""
    try:
        check_key(key)
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
    return not any(ord(char) < 32 or ord(char) == 127 for char in name)
