"""Server-sent events out of bytes: of a whole stream at once, and as they come.

Tolerated: CRLF and CR, comments, empty lines, data over several lines, no space after the colon, a byte order mark, and
borders of chunks anywhere. What has no empty line after it is no event yet. An error as its own field, as llama.cpp's
server has sent it, and an event named `error` come out as `{"error": ...}`.
"""

from collections.abc import Iterator

from ..backends.breaks import Break, failed

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""One event may not be longer; a backend that sends more is out of order."""
DONE = b"[DONE]"
"""The payload with which a stream of chat or completions says that it is over."""
_BOM = b"\xef\xbb\xbf"


def events(data: bytes) -> Iterator[bytes]:
    """The payload of each whole event in a stream from its beginning."""
    return iter(payloads(data))


def payloads(data: bytes) -> list[bytes]:
    """The same as a list."""
    if data[:6] == b"data: " and data[-2:] == b"\n\n" and data.find(b"\n") == len(data) - 2 and b"\r" not in data:
        return [data[6:-2]]  # One event, as it comes.
    blocks = _unified(data.removeprefix(_BOM)).split(b"\n\n")
    blocks.pop()  # Nothing, or an event that is not whole yet.
    return [payload for block in blocks if (payload := _payload(block)) is not None]


def _unified(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data


def _payload(block: bytes) -> bytes | None:
    """Of one event; None where it has no data."""
    if block[:6] == b"data: " and b"\n" not in block:
        return block[6:]
    name, lines, error = b"", [], None
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            lines.append(value)
        elif field == b"event":
            name = value
        elif field == b"error":
            error = value
    if error is not None:
        return b'{"error":' + error + b"}"
    if not lines:
        return None
    payload = b"\n".join(lines)
    if name == b"error" and b'"error"' not in payload:
        return b'{"error":' + payload + b"}"
    return payload


class Parser:
    """Takes a stream piece by piece."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        """Nothing has come."""
        self._most = max_event_bytes
        self._buffer = bytearray()
        self._searched = 0
        self._half_line_end = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads of the events that this completes. Raises `model_failed` past the limit of one event."""
        if not self._buffer and not self._half_line_end and chunk[-2:] == b"\n\n" and b"\r" not in chunk:
            # Whole events, as nearly always, and most often one.
            return [chunk[6:-2]] if chunk[:6] == b"data: " and chunk.count(b"\n") == 2 else payloads(chunk)
        self._buffer += self._without_cr(chunk)
        end = self._buffer.rfind(b"\n\n", max(self._searched - 1, 0))
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched > self._most:
                message = f"one event has more than {self._most} bytes (max_event_bytes)"
                raise failed(Break.BAD_EVENT, message, limit="max_event_bytes")
            return []
        whole = bytes(self._buffer[: end + 2])
        del self._buffer[: end + 2]
        self._searched = 0
        return payloads(whole)

    def _without_cr(self, chunk: bytes) -> bytes:
        """A CR at the end may be half of a line's end: what follows says."""
        if not chunk:
            return chunk
        if self._half_line_end and chunk[:1] == b"\n":
            chunk = chunk[1:]
        self._half_line_end = chunk[-1:] == b"\r"
        return _unified(chunk)
