"""Other documents made of sound ones: any bytes, bytes changed, and JSON or TOML with anything in any place."""

import json
import re
from collections.abc import Sequence
from typing import Any

import orjson
from hypothesis import strategies as st

_HOSTILE = [
    "1.1", "0.0", "../x", "r/1.0#0", "ab" * 32, "claim", "ledger", "row", "end", "\x00", "\ud800", "é" * 40, "$bytes",
    {"epoch": 0, "k": 0}, {"epoch": 1, "k": 1}, {"rollout_id": "r", "epoch": 1, "attempt": 0, "n": -1},
    "http://h:99999", "x" * 5000, 2**63, 2**64, -(2**63) - 1, 10**30, 1e308, float("inf"), float("nan"), -0.0, -1,
]  # fmt: skip
WILD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
    | st.sampled_from(_HOSTILE),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=4), child, max_size=3),
    max_leaves=6,
)  # fmt: skip
"""Anything that JSON or something like it can say."""
_PIECES = [b"", b"\x00", b"\n", b"\r", b"\n\n", b'"', b"\\", b"{", b"}", b"[" * 300, b'{"a":' * 300, b"1" * 5000,
           b"\xff", b"\xef\xbb\xbf", b"'''", b"-", b"=", b"NaN", b"null", b"\\u0000", b"\\ud800", b",",
           b":"]  # fmt: skip
_VALUE = re.compile(rb"(?<== )[^\n]+")


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """A sound document with something in it changed, once or twice, or no document at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 2))):
        data = draw(st.sampled_from([_bytes_changed, _json_changed, _json_changed, _value_changed]))(draw, data)
    return data


def _bytes_changed(draw: st.DrawFn, data: bytes) -> bytes:
    """A stretch taken out, doubled, or something else in its place."""
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(len(data), start + 40)))
    middle = draw(st.sampled_from(_PIECES) | st.binary(max_size=8) | st.just(data[start:end] * 2))
    return data[:start] + middle + data[end:]


def _value_changed(draw: st.DrawFn, data: bytes) -> bytes:
    """Of a line of TOML; where there is none, bytes."""
    found = list(_VALUE.finditer(data))
    if not found:
        return _bytes_changed(draw, data)
    match = draw(st.sampled_from(found))
    return data[: match.start()] + _dumped(draw(WILD)) + data[match.end() :]


def _json_changed(draw: st.DrawFn, data: bytes) -> bytes:
    """One place of one line that is JSON: filled with anything, taken out, doubled, or another key."""
    lines = data.split(b"\n")
    documents = [(at, found) for at, line in enumerate(lines) if (found := _document(line)) is not None]
    if not documents:
        return _bytes_changed(draw, data)
    at, document = draw(st.sampled_from(documents))
    path = draw(st.sampled_from(_paths(document) or [()]))
    lines[at] = _dumped(_changed(draw, document, path))
    return b"\n".join(lines)


def _document(line: bytes) -> Any:
    """The JSON of a line; what is sealed lacks its last brace."""
    for text in (line, line + b"}"):
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            continue
        return found if isinstance(found, dict | list) else None
    return None


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, to a depth at which there is something to see."""
    found = [path] if path else []
    if len(path) > 20:
        return found
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += _paths(child, (*path, key))
    return found


def _changed(draw: st.DrawFn, document: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return draw(WILD)
    parent = document
    for step in path[:-1]:
        parent = parent[step]
    act = draw(st.sampled_from(["fill", "fill", "remove", "repeat", "add"]))
    if act == "remove":
        del parent[path[-1]]
    elif act == "repeat" and isinstance(parent, list):
        parent.append(parent[path[-1]])
    elif act == "add" and isinstance(parent, dict):
        parent[draw(st.text(max_size=8))] = draw(WILD)
    else:
        parent[path[-1]] = draw(WILD)
    return document


def _dumped(value: Any) -> bytes:
    """JSON, or what looks like it, of values that no strict writer takes."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
