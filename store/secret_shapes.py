"""What credentials look like: shapes of known keys, and names whose values are secret wherever they are written down.

Every expression begins with a plain literal, or is one of few that begin with a rare character, which is what makes
them fast. None is looked at for longer than a bound at any one place, so that the work grows with the text alone.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

Match = re.Match[bytes]
Accept = Callable[[Match], bool]


@dataclass(frozen=True, slots=True)
class Value:
    """What stands after a name, as it is written."""

    text: bytes
    scheme: bytes
    """Of an authorization, in lower case."""
    bare: bool
    """Nothing belongs to the name but what is looked for."""


AcceptValue = Callable[[Value], bool]

_IN_TOKEN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+/"
_JOINS = b"_-+/"
_LONG_RUN = 48
"""Bytes before a candidate that make it the middle of a payload, where they have digits: no path is like that."""
_ESCAPE = re.compile(rb"(?:\\[nrtbfvae0]|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|%[0-9A-Fa-f]{2}|\[[0-9;]{1,8}m)\Z")
"""Ends in letters or digits that are none of what follows: of JSON, of a URL, of a terminal's colour."""
_DIGIT = re.compile(rb"[0-9]")
_ATTRIBUTE = re.compile(rb"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
"""As programs name things."""
_DIGEST = re.compile(rb"[0-9a-f]{40}")
_SEGMENT = re.compile(rb"[A-Za-z0-9]+")
_SAMPLE = re.compile(
    rb"example|your|change[-_]?me|placeholder|redacted|dummy|goes[-_]here|replace[-_]|insert[-_]|xxxx|\*\*\*",
    re.IGNORECASE,
)
"""What those write who show where a key goes."""
_PASSWORD_WORDS = re.compile(
    rb"[*xX.]+|[<$%{\[].*|[0-9]{1,5}|.*(?:pass(?:word|wd)|pwd|secret|token|example|change[-_]?me|your).{0,4}"
    rb"|(?:your|my|the|some)?[-_ ]?(?:pass|key)|[a-z]{1,5}|default|postgres|guest.?|admin[0-9]{0,4}",
    re.IGNORECASE | re.DOTALL,
)
_EMPTY_DIGESTS = re.compile(rb"d41d8cd98f00b204e9|da39a3ee5e6b4b0d32|e3b0c44298fc1c149a", re.IGNORECASE)
_SAMPLE_JWT = b".eyJzdWIiOiIxMjM0NTY3ODkw"
"""Of the subject 1234567890, as in the example that everybody shows."""


def value_of(match: Match, data: bytes) -> Value:
    """What was found in a lower-case copy, as it is in `data`."""
    start = match.start()
    scheme = match.groupdict().get("scheme") or b""
    bare = start == 0 or data[start - 1] not in _IN_TOKEN
    return Value(data[match.start("value") : match.end("value")], scheme, bare)


def stands_alone(match: Match) -> bool:
    """Not the middle of a longer run, such as base64 or a word; an escape before it is no such run."""
    data, start = match.string, match.start()
    before = data[max(0, start - _LONG_RUN) : start]
    run = before[len(before.rstrip(_IN_TOKEN)) :]
    if not run or _ESCAPE.search(before):
        return True
    return run[-1] in _JOINS and (len(run) < _LONG_RUN or _DIGIT.search(run) is None)


def _kind_of(byte: int) -> int:
    return 0 if byte < 58 else 1 if byte < 91 else 2


def _changes(text: bytes) -> int:
    return sum(_kind_of(a) != _kind_of(b) for a, b in pairwise(text))


def looks_random(text: bytes) -> bool:
    """As made by a generator of keys: its longest piece mixes letters and digits as no words and no counting do."""
    if _SAMPLE.search(text) or _EMPTY_DIGESTS.match(text):
        return False
    piece = max(_SEGMENT.findall(text), key=len, default=b"")
    if len(piece) < 12 or len(set(piece)) < 8:
        return False
    pairs = len(piece) - 1
    in_sequence = sum(abs(a - b) <= 1 for a, b in pairwise(piece))
    enough = 0.2 if _DIGIT.search(piece) else 0.4
    return _changes(piece) >= max(3, enough * pairs) and in_sequence < 0.35 * pairs


def _alone_and_random(match: Match) -> bool:
    return stands_alone(match) and looks_random(match["body"])


def _random(match: Match) -> bool:
    return looks_random(match["body"])


def _random_value(value: Value) -> bool:
    return looks_random(value.text)


def _access_key(match: Match) -> bool:
    return stands_alone(match) and _SAMPLE.search(match[0]) is None and len(set(match["body"])) > 4


def _in_url(match: Match) -> bool:
    name, colon, password = match["body"][2:].rpartition(b"@")[0].partition(b":")
    return _PASSWORD_WORDS.fullmatch(password) is None if colon else len(name) >= 20 and looks_random(name)


def _real_jwt(match: Match) -> bool:
    return not match[0].startswith(_SAMPLE_JWT)


def _always(match: Match) -> bool:
    return True


def _password(value: Value) -> bool:
    """Letters and digits mixed, for any word may stand after this name in prose and in programs."""
    text = value.text
    if _PASSWORD_WORDS.fullmatch(text) or _SAMPLE.search(text) or _ATTRIBUTE.fullmatch(text):
        return False
    return _DIGIT.search(text) is not None and _changes(text) >= 3


def _secret(value: Value) -> bool:
    """A bare `secret` before a digest is the name of an object, as Git has them."""
    return looks_random(value.text) and not (value.bare and _DIGEST.fullmatch(value.text))


def _basic(text: bytes) -> bool:
    try:
        user, colon, password = base64.b64decode(text + b"==").partition(b":")
    except binascii.Error:
        return False
    shown = user + password
    return bool(colon) and shown.isascii() and shown.decode().isprintable() and not _PASSWORD_WORDS.fullmatch(password)


def _authorization(value: Value) -> bool:
    if value.scheme.startswith(b"basic"):
        return _basic(value.text)
    return len(value.text) >= 16 and looks_random(value.text)


@dataclass(frozen=True, slots=True)
class Known:
    """A key that says itself what it is."""

    kind: str
    lead: bytes
    """Of one width."""
    mark: bytes
    """What stands between lead and body, and is looked for: rarer than what most leads begin with."""
    body: bytes
    """Has no groups."""
    width: int
    """Of lead and mark, in bytes."""
    whole: re.Pattern[bytes]
    accept: Accept


@dataclass(frozen=True, slots=True)
class Named:
    """A name with a value that is secret."""

    kind: str
    pattern: re.Pattern[bytes]
    """In lower case."""
    accept: AcceptValue


_END = rb"(?![A-Za-z0-9])"
_TOKEN = rb"[A-Za-z0-9_-]"


def _known(kind: str, lead: bytes, mark: bytes, body: bytes, accept: Accept = _alone_and_random) -> Known:
    width = len(re.sub(rb"\[[^\]]*\]", b"x", lead)) + len(mark)
    whole = re.compile(lead + re.escape(mark) + rb"(?P<body>" + body + rb")")
    return Known(kind, lead, mark, body, width, whole, accept)


KNOWN = (
    _known("github-token", rb"gh[pousr]", b"_", rb"[A-Za-z0-9]{36,255}" + _END),
    _known("github-token", rb"github_pat", b"_", rb"[A-Za-z0-9_]{50,255}"),
    _known("npm-token", rb"npm", b"_", rb"[A-Za-z0-9]{36}" + _END),
    _known("huggingface-token", rb"hf", b"_", rb"[A-Za-z0-9]{34,40}" + _END),
    _known("model-api-key", rb"gsk", b"_", rb"[A-Za-z0-9]{40,64}" + _END),
    _known("model-api-key", rb"r8", b"_", rb"[A-Za-z0-9]{37}" + _END),
    _known("model-api-key", rb"fw", b"_", rb"[A-Za-z0-9]{22,24}" + _END),
    _known("payment-key", rb"[rs]k_live", b"_", rb"[A-Za-z0-9]{20,128}" + _END),
    _known(
        "model-api-key",
        rb"sk",
        b"-",
        rb"(?:(?:ant|proj|svcacct|admin|or-v1|None)-[A-Za-z0-9_-]{20,255}|[A-Za-z0-9]{32,128}(?![A-Za-z0-9_-]))",
    ),
    _known("model-api-key", rb"xai", b"-", rb"[A-Za-z0-9]{60,100}" + _END),
    _known("model-api-key", rb"nvapi", b"-", rb"[A-Za-z0-9_-]{40,100}"),
    _known("model-api-key", rb"pplx", b"-", rb"[A-Za-z0-9]{40,64}" + _END),
    _known("gitlab-token", rb"glpat", b"-", rb"[A-Za-z0-9_-]{20,64}"),
    _known("pypi-token", rb"pypi", b"-", rb"AgE[A-Za-z0-9_-]{50,255}"),
    _known("slack-token", rb"xox[abeoprs]", b"-", rb"[A-Za-z0-9-]{20,255}"),
    _known(
        "slack-webhook",
        rb"hooks",
        b".",
        rb"slack\.com/services/T[A-Z0-9]{6,16}/B[A-Z0-9]{6,16}/[A-Za-z0-9]{20}",
        _always,
    ),
    _known("mail-api-key", rb"SG", b".", rb"[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"),
    _known("google-token", rb"ya29", b".", rb"[A-Za-z0-9_-]{20,255}"),
    _known("json-web-token", rb"", b".", rb"eyJ[A-Za-z0-9_-]{10,1024}\.[A-Za-z0-9_-]{16}", _real_jwt),
    _known("telegram-token", rb"[0-9]" * 8, b":", rb"AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])", _random),
    _known(
        "password-in-url",
        rb"",
        b":",
        rb"""//[^\s/:@"'\\<>]{0,255}(?::[^\s/@"'\\<>]{3,128})?@[A-Za-z0-9.\[-]""",
        _in_url,
    ),
    _known("aws-access-key", rb"", b"A", rb"(?:KI|SI|BI|CC)A[A-Z2-7]{16}(?![A-Za-z0-9+/=_-])", _access_key),
    _known("google-api-key", rb"", b"A", rb"Iza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_+/=-])"),
)
"""Keys that say themselves what they are."""

_QUOTE = rb"""(?:\\{0,8}["']|\\{1,8}u0022|%22)"""
_ASSIGN = _QUOTE + rb"?\s{0,3}(?:[:=]|%3[ad]|\\{1,8}u003[ad])\s{0,3}b?" + _QUOTE + rb"?"
"""Quotes may be escaped, for the text may stand in a JSON string."""
_PAIR = _QUOTE + rb",\s{0,3}b?" + _QUOTE
"""As lists of headers are written."""
_BETWEEN = rb"(?:" + _ASSIGN + rb"|" + _PAIR + rb")"
_SPACE = rb"(?:\s|%20){1,3}"
_KEY_NAMES = (b"api", b"access", b"account", b"private", b"auth", b"master", b"signing", b"encryption", b"service")
_PASSWORD = rb"""[^\s"'\\<>,;&(){}\[\]$]{8,128}"""
_NOT_TOKENS = (b"page", b"continuation", b"cancellation")
"""Say where to go on, or when to stop."""


def _after(names: Iterable[bytes], assertion: bytes, width: int) -> list[bytes]:
    """Lookbehinds at the end of a word of `width`, each of its own fixed width."""
    return [rb"(?<%b%b%b%b)" % (assertion, name, joint, b"." * width) for name in names for joint in (b"", b"[-_ ]")]


def _named(kind: str, name: bytes, between: bytes, value: bytes, accept: AcceptValue = _random_value) -> Named:
    return Named(kind, re.compile(name + between + rb"(?P<value>" + value + rb")", re.DOTALL), accept)


NAMED = (
    _named(
        "authorization-header",
        rb"authorization",
        _BETWEEN + rb"(?P<scheme>(?:bearer|basic|token)" + _SPACE + rb")?",
        rb"[a-z0-9._~+/=-]{8,128}",
        _authorization,
    ),
    _named("bearer-token", rb"bearer", _SPACE, rb"[a-z0-9._~+/=-]{20,128}"),
    _named("secret", rb"secret(?:[-_]?(?:access[-_]?)?key)?", _BETWEEN, rb"[a-z0-9._~+/=-]{20,128}", _secret),
    _named(
        "api-key", rb"key(?:" + b"|".join(_after(_KEY_NAMES, b"=", 3)) + rb")", _BETWEEN, rb"[a-z0-9._~+/=-]{16,128}"
    ),
    _named("token", rb"token" + b"".join(_after(_NOT_TOKENS, b"!", 5)), _BETWEEN, rb"[a-z0-9._~+/=-]{20,128}"),
    _named("password", rb"pass(?:w(?:or)?d|phrase)", _BETWEEN, _PASSWORD, _password),
    _named("password", rb"pwd", _BETWEEN, _PASSWORD, _password),
    _named("signature-in-url", rb"sig=", rb"", rb"(?:[a-z0-9/+]|%2[bf]){43}(?==|%3d)"),
)
"""Names, in lower case as the text is where they are looked for, and the values that make them a credential."""
