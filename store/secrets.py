"""Finds what looks like a credential in stored bytes: says which kind and where, never the secret itself.

Three things are found: keys that say themselves what they are (`sk-`, `ghp_`, a PEM header with a key after it), values
of names such as `api_key`, `password` and `authorization`, and both of them once more in what is written as base64,
as hexadecimal, as UTF-16, or compressed. A look at what surrounds a candidate, and at its own characters, drops what
only resembles one: payloads, token ids, placeholders, examples. A credential in no known shape is not found.
"""

import binascii
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from .secret_shapes import KNOWN, NAMED, value_of


@dataclass(frozen=True, slots=True)
class SecretHit:
    """Something that looks like a credential."""

    kind: str
    """Names the shape, such as `aws-access-key`, and how it is written where that is not plain."""
    offset: int
    """Where it, or the word that announces it, or the run that holds it, begins; in bytes."""


LONGEST_SECRET = 1024
"""Bytes that neighbouring pieces of one content must share, so that no secret falls between two."""

_LEVELS = 2
"""How many codings may lie over each other, such as compressed bytes in base64."""
_GROWTH, _LEAST_GROWTH = 2, 65_536
"""How many times its own length, and how many bytes at least, a text may unpack to; the rest is not looked into."""
_LEAST_PLAIN = 20
"""Printable bytes together that the shortest credential has: what was decoded and has no such run is something else."""
_BETWEEN = b"\x01\x01"

_GUARDS = {b"_": rb"(?=[A-Za-z0-9]{20})", b"-": rb"(?=[A-Za-z0-9_-]{20})"}
"""What must stand after a mark that is frequent, before anything else is looked at."""


def _looked_for() -> re.Pattern[bytes]:
    """One expression for the marks of all known keys; the number of its group is one more than that of the shape."""
    by_mark: dict[bytes, list[bytes]] = {}
    for known in KNOWN:
        lead = b"(?<=%b%b)" % (known.lead, re.escape(known.mark)) if known.lead else b""
        by_mark.setdefault(known.mark, []).append(lead + b"(?=" + known.body + b")()")
    alternatives = (re.escape(mark) + _GUARDS.get(mark, b"") + b"(?:%b)" % b"|".join(by_mark[mark]) for mark in by_mark)
    return re.compile(b"|".join(alternatives))


_MARKS = _looked_for()
_IN_ORDER = sorted(KNOWN, key=lambda known: [other.mark for other in KNOWN].index(known.mark))
"""As their groups are numbered."""
_ARMOUR = re.compile(
    rb"PRIVATE KEY(?: BLOCK)?-----(?:\s|\\{1,8}[nr]){1,8}"
    rb"(?:[A-Z][A-Za-z-]{2,20}: [^\s\\]{0,100}(?:\s|\\{1,8}[nr]){1,8}){0,4}(?:MI[A-Z]|[A-Za-z0-9+/]{24})"
)
_ARMOUR_BEGINS = re.compile(rb"-----BEGIN (?:[A-Z0-9]{2,12} ){0,3}\Z")
_IN_JWT = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_RUNS = tuple(
    re.compile(before + rb"\s?([A-Za-z0-9+/_-]{24,})")
    for before in (rb"\A", rb'"', rb"'", rb"=", rb":", rb"\n", rb"\\n", rb"base64,")
)
"""Where base64 and hexadecimal begin. Each expression begins with a literal: to look at every word would take longer
than all else together."""
_HEX = re.compile(rb"(?:[2-7][0-9A-Fa-f]|0[9ADad])+")
"""Of text: no digest is like that."""
_WIDE = re.compile(rb"\x00[\x20-\x7e](?:\x00[\x20-\x7e]){15,}")
_PRINTABLE = bytes(ord("p") if 32 <= byte < 127 or byte in b"\t\r\n\0" else ord(" ") for byte in range(256))
_TO_BASE64 = bytes.maketrans(b"-_", b"+/")


def scan(data: bytes) -> list[SecretHit]:
    """Everything in `data` that looks like a credential, in order."""
    return _scan(data, _LEVELS)


def _scan(data: bytes, levels: int) -> list[SecretHit]:
    hits = _in_plain(data)
    if levels:
        unpacked = _Unpacked(_GROWTH * len(data) + _LEAST_GROWTH)
        unpacked.look_into(data)
        hits += [unpacked.hit(inner) for inner in _scan(_BETWEEN.join(unpacked.pieces), levels - 1)]
    return sorted(set(hits), key=lambda hit: (hit.offset, hit.kind))


@dataclass(slots=True)
class _Unpacked:
    """What is written in other ways within one text, as plain as it gets."""

    left: int
    """Bytes that may yet be unpacked."""
    pieces: list[bytes] = field(default_factory=list)
    origins: list[tuple[int, str]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    length: int = 0

    def look_into(self, data: bytes) -> None:
        """Find runs of base64, hexadecimal and UTF-16, and compressed bytes at the beginning."""
        self._add(0, "", data) if _is_packed(data) else None
        for pattern in _RUNS:
            for match in pattern.finditer(data):
                coding, decoded = _decode(match[1])
                self._add(match.start(1), coding, decoded)
        for match in _WIDE.finditer(data):
            start = match.start() - (match.start() > 0 and data[match.start() - 1] != 0)
            self._add(start, "UTF-16", data[start : match.end()].replace(b"\0", b""))

    def _add(self, origin: int, coding: str, piece: bytes) -> None:
        if _is_packed(piece):
            coding, piece = f"{coding}, compressed" if coding else "compressed bytes", _unpack(piece, self.left)
            self.left -= len(piece)
        if b"p" * _LEAST_PLAIN not in piece.translate(_PRINTABLE):
            return
        self.pieces.append(piece)
        self.origins.append((origin, coding))
        self.starts.append(self.length)
        self.length += len(piece) + len(_BETWEEN)

    def hit(self, inner: SecretHit) -> SecretHit:
        """The same in terms of what holds it."""
        origin, coding = self.origins[bisect_right(self.starts, inner.offset) - 1]
        return SecretHit(f"{inner.kind} in {coding}", origin)


def _decode(run: bytes) -> tuple[str, bytes]:
    if len(run) % 2 == 0 and _HEX.fullmatch(run):
        return "hexadecimal", bytes.fromhex(run.decode())
    whole = run[:-1] if len(run) % 4 == 1 else run
    return "base64", binascii.a2b_base64(whole.translate(_TO_BASE64) + b"==")


def _is_packed(data: bytes) -> bool:
    return data[:3] == b"\x1f\x8b\x08" or data[:2] in (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


def _unpack(data: bytes, at_most: int) -> bytes:
    try:
        return zlib.decompressobj(wbits=47).decompress(data, max(1, at_most))
    except zlib.error:
        return b""


def _in_plain(data: bytes) -> list[SecretHit]:
    """A value that is itself a known key is told once, as what it says it is."""
    hits = [*_known(data), *_armoured(data)]
    offsets = sorted(hit.offset for hit in hits)
    end = 0
    for start, stop, kind in sorted(_named(data)):
        if start >= end and bisect_left(offsets, start) == bisect_left(offsets, stop):
            hits.append(SecretHit(kind, start))
            end = stop
    return hits


def _known(data: bytes) -> Iterator[SecretHit]:
    for mark in _MARKS.finditer(data):
        assert mark.lastindex is not None
        shape = _IN_ORDER[mark.lastindex - 1]
        match = shape.whole.match(data, mark.start() + len(shape.mark) - shape.width)
        if match is None or not shape.accept(match):
            continue
        if shape.kind != "json-web-token":
            yield SecretHit(shape.kind, match.start())
        elif header := _header(data[max(0, match.start() - LONGEST_SECRET) : match.start()]):
            yield SecretHit(shape.kind, match.start() - header)


def _header(before: bytes) -> int:
    """The length of the first part of a token that ends here; 0 for none."""
    run = before[len(before.rstrip(_IN_JWT)) :]
    begins = run.find(b"eyJ")
    return len(run) - begins if 0 <= begins <= len(run) - 13 else 0


def _armoured(data: bytes) -> Iterator[SecretHit]:
    for match in _ARMOUR.finditer(data):
        window = data[max(0, match.start() - 64) : match.start()]
        if begins := _ARMOUR_BEGINS.search(window):
            yield SecretHit("private-key", match.start() - len(window) + begins.start())


def _named(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Start, end and kind of each name with a secret value. The value is looked at as it is written."""
    lower = data.lower()
    for shape in NAMED:
        for match in shape.pattern.finditer(lower):
            if shape.accept(value_of(match, data)):
                yield match.start(), match.end(), shape.kind
