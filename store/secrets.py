"""Finds what looks like a credential in stored bytes: says which kind and where, never the secret itself.

One expression of plain literals finds anchors, which is what makes it fast; at each anchor the shape that it begins is
tried, and a look at what surrounds a candidate, and at its own characters, drops what only resembles one: base64
payloads, lists of token ids, placeholders in prose. A credential in no known shape is not found.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SecretHit:
    """Something that looks like a credential."""

    kind: str
    """Names the shape, such as `aws-access-key`."""
    offset: int
    """Where it, or the word that announces it, begins; in bytes."""


LONGEST_SECRET = 1024
"""Bytes that neighbouring pieces of one content must share, so that no secret falls between two."""

Match = re.Match[bytes]
Accept = Callable[[Match], bool]
"""Whether a candidate is more than a resemblance."""

_IN_TOKEN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+/")
_ESCAPES, _BACKSLASH = frozenset(b"nrtbf"), ord("\\")
_SEPARATOR = re.compile(rb"""[\s"'\\=:]+""")
_PLACEHOLDER = re.compile(
    rb"[*xX.]+|[<$%{\[].*|(?:your|my|the|some)?[-_ ]?(?:pass(?:word|wd)?|pwd|secret|token|key)",
    re.IGNORECASE | re.DOTALL,
)


def _stands_alone(match: Match) -> bool:
    """Not the middle of a longer run, such as base64; the n of an escaped line feed before it is no such run."""
    data, start = match.string, match.start()
    if start == 0 or data[start - 1] not in _IN_TOKEN:
        return True
    return start > 1 and data[start - 1] in _ESCAPES and data[start - 2] == _BACKSLASH


def _looks_random(text: bytes) -> bool:
    """Digits and letters together, as no word and no number has them."""
    return re.search(rb"[0-9]", text) is not None and re.search(rb"[A-Za-z]", text) is not None


def _alone_and_random(match: Match) -> bool:
    return _stands_alone(match) and _looks_random(match[0][4:])


def _random_value(match: Match) -> bool:
    """For `name = value`, and for `header: scheme value`."""
    return _looks_random(_SEPARATOR.split(match[0])[-1])


def _real_password(match: Match) -> bool:
    password = match[0].removeprefix(b"://").partition(b":")[2].rpartition(b"@")[0]
    return _PLACEHOLDER.fullmatch(password) is None


def _always(match: Match) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Shape:
    """What one kind looks like from its anchor on."""

    kind: str
    anchors: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    accept: Accept = _stands_alone


def _shape(kind: str, anchors: str, pattern: bytes, accept: Accept = _stands_alone) -> _Shape:
    flags = re.IGNORECASE if anchors in _WORDS else 0
    return _Shape(kind, tuple(anchor.encode() for anchor in anchors.split("|")), re.compile(pattern, flags), accept)


_WORDS = ("secret", "authorization")
"""Anchors in any case; looked for in a lower-case copy."""
_ASSIGN = rb"""(?:\\*["'])?\s{0,3}[:=]\s{0,3}(?:\\*["'])?"""
"""Quotes may be escaped, for the text may stand in a JSON string."""

_SHAPES = (
    _shape("aws-access-key", "AKIA|ASIA|ABIA|ACCA", rb"A[A-Z]{3}[A-Z2-7]{16}(?![A-Za-z0-9+/=_-])"),
    _shape(
        "aws-secret-key",
        "secret",
        rb"secret(?:_?(?:access)?_?key)?" + _ASSIGN + rb"[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])",
        _random_value,
    ),
    _shape(
        "private-key",
        "-----BEGIN ",
        rb"-----BEGIN (?:[A-Z0-9]{2,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----",
        _always,
    ),
    _shape("github-token", "ghp_|gho_|ghu_|ghs_|ghr_", rb"gh._[A-Za-z0-9]{36,255}(?![A-Za-z0-9])"),
    _shape("github-token", "github_pat_", rb"github_pat_[A-Za-z0-9_]{50,255}"),
    _shape("huggingface-token", "hf_", rb"hf_[A-Za-z0-9]{34,40}(?![A-Za-z0-9])"),
    _shape(
        "model-api-key",
        "sk-",
        rb"sk-(?:(?:ant|proj|svcacct|admin|or-v1)-[A-Za-z0-9_-]{20,255}|[A-Za-z0-9]{32,128}(?![A-Za-z0-9_-]))",
        _alone_and_random,
    ),
    _shape("slack-token", "xox", rb"xox[abeoprs]-[A-Za-z0-9-]{10,255}", _alone_and_random),
    _shape(
        "slack-webhook",
        "hooks.slack.com/",
        rb"hooks\.slack\.com/services/T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{20,}",
        _always,
    ),
    _shape("google-api-key", "AIza", rb"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_+/=-])"),
    _shape(
        "authorization-header",
        "authorization",
        rb"authorization" + _ASSIGN + rb"(?:bearer|basic|token)\s{1,3}[A-Za-z0-9._~+/=-]{16,}",
        _random_value,
    ),
    _shape(
        "password-in-url",
        "://",
        rb"""://[^\s/:@"'\\<>]{0,64}:[^\s/@"'\\<>]{3,128}@[A-Za-z0-9.\[-]""",
        _real_password,
    ),
    _shape("json-web-token", ".eyJ", rb"\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}", _always),
)
_BY_ANCHOR = {anchor: shape for shape in _SHAPES for anchor in shape.anchors}
_LITERALS = re.compile(b"|".join(re.escape(anchor) for anchor in _BY_ANCHOR if anchor.decode() not in _WORDS))
_HEADER = re.compile(rb"eyJ[A-Za-z0-9_-]{10,}$")


def scan(data: bytes) -> list[SecretHit]:
    """Everything in `data` that looks like a credential, in order."""
    hits = [*_at_literals(data), *_at_words(data)]
    return sorted(hits, key=lambda hit: hit.offset)


def _at_literals(data: bytes) -> Iterator[SecretHit]:
    for anchor in _LITERALS.finditer(data):
        shape = _BY_ANCHOR[anchor[0]]
        match = shape.pattern.match(data, anchor.start())
        if match is None or not shape.accept(match):
            continue
        if shape.kind != "json-web-token":
            yield SecretHit(shape.kind, match.start())
        elif header := _HEADER.search(data[max(0, match.start() - LONGEST_SECRET) : match.start()]):
            yield SecretHit(shape.kind, match.start() - len(header[0]))


def _at_words(data: bytes) -> Iterator[SecretHit]:
    lower = data.lower()
    for word in _WORDS:
        shape = _BY_ANCHOR[word.encode()]
        position = lower.find(word.encode())
        while position >= 0:
            match = shape.pattern.match(data, position)
            if match is not None and shape.accept(match):
                yield SecretHit(shape.kind, position)
            position = lower.find(word.encode(), position + 1)
