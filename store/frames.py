"""Frames: independent zstd frames of JSON Lines, each with its size and checksum inside and its sha256 in the index.

`zstdcat` reads a part, which is such frames one after another. Compression runs in worker threads; zstandard and
hashlib release the interpreter lock there.
"""

import hashlib
import threading
from collections.abc import Sequence

import zstandard

from .errors import CorruptCheckpoint

CODEC = "zstd"
LEVEL = 1
"""On token-heavy records level 1 is more than twice as fast as level 3, for 10 % more bytes (bench/README)."""

_local = threading.local()


def compress(lines: Sequence[bytes]) -> bytes:
    """One frame of these lines, each followed by a line feed."""
    return compress_bytes(b"\n".join((*lines, b"")))  # Joined once: a frame is not copied for its last byte.


def compress_bytes(raw: bytes) -> bytes:
    """One frame with its content size and checksum."""
    compressor = getattr(_local, "compressor", None)
    if compressor is None:
        compressor = _local.compressor = zstandard.ZstdCompressor(
            level=LEVEL, write_checksum=True, write_content_size=True
        )
    frame: bytes = compressor.compress(raw)
    return frame


def decompress(frame: bytes, raw_size: int, name: str) -> bytes:
    """The content of one frame. Its header must announce exactly `raw_size` bytes, which the caller has bounded.

    Raises CorruptCheckpoint; never allocates more than `raw_size`, whatever the frame holds.
    """
    try:
        announced = zstandard.get_frame_parameters(frame).content_size
        if announced != raw_size:
            raise CorruptCheckpoint(name, f"a frame announces {announced} bytes and not {raw_size}")
        decompressor = getattr(_local, "decompressor", None)
        if decompressor is None:
            decompressor = _local.decompressor = zstandard.ZstdDecompressor()
        raw: bytes = decompressor.decompress(frame, max_output_size=raw_size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptCheckpoint(name, f"a frame is not sound zstd ({error})") from error
    if len(raw) != raw_size:
        raise CorruptCheckpoint(name, f"a frame holds {len(raw)} bytes and not {raw_size}")
    return raw


def largest_frame(raw_size: int) -> int:
    """No frame of that content is larger: zstd stores what does not compress, with a few bytes around each block."""
    return raw_size + raw_size // 128 + 1024


def sha256(data: bytes) -> str:
    """Lower-case hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()
