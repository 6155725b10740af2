"""Log probabilities from the form of one dialect into that of another.

In between they are entries as Chat has them: `{"token", "logprob", "bytes", "top_logprobs"}`, one for each token.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

Entry = Mapping[str, Any]
COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
"""The lists in which Completions has them."""
REPLACEMENT = "\ufffd"
"""Stands in a token's text for bytes that are no whole character."""


def entries_of(logprobs: Any) -> list[Entry]:
    """The entries of a choice's `logprobs`, in the form of Chat or of Completions."""
    if not isinstance(logprobs, Mapping):
        return []
    if "tokens" not in logprobs:
        return list(logprobs.get("content") or ())
    columns = (logprobs.get(name) or () for name in COLUMNS[:3])
    return [_entry(*row) for row in zip_longest(*columns)]


def _entry(token: str, logprob: float | None, top: Mapping[str, float] | None) -> Entry:
    tops = [_scored(each, score) for each, score in (top or {}).items()]
    return {**_scored(token, logprob), "top_logprobs": tops}


def _scored(token: str, logprob: float | None) -> dict[str, Any]:
    """Completions has no bytes; they are those of the text, where it is whole."""
    known = REPLACEMENT not in token
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace")) if known else None}


def as_columns(entries: Iterable[Entry]) -> dict[str, Any]:
    """As Completions has them. Offsets count from the beginning of the output."""
    tokens, chosen, tops, offsets = [], [], [], []
    offset = 0
    for entry in entries:
        tokens.append(entry["token"])
        chosen.append(entry["logprob"])
        tops.append({each["token"]: each["logprob"] for each in entry.get("top_logprobs") or ()})
        offsets.append(offset)
        offset += len(entry["token"])
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets}


def shaped(entries: Sequence[Entry], like: Sequence[Entry], most: int) -> list[Entry]:
    """Entries of a continuation with as many alternatives as the request asked for, or as its beginning was given."""
    if like:
        most = max(len(entry.get("top_logprobs") or ()) for entry in like)
    return [entry if len(entry["top_logprobs"]) <= most else {**entry, "top_logprobs": entry["top_logprobs"][:most]}
            for entry in entries]  # fmt: skip


def covering(entries: Sequence[Entry], text: str) -> list[Entry]:
    """The first entries, as many as the text has tokens."""
    left, taken = len(text.encode("utf-8", "replace")), 0
    while left > 0 and taken < len(entries):
        left -= _size(entries[taken])
        taken += 1
    return list(entries[:taken])


def _size(entry: Entry) -> int:
    known = entry.get("bytes")
    if known is not None:
        return len(known)
    return len(str(entry.get("token", "")).replace(REPLACEMENT, "?").encode("utf-8", "replace"))


def with_bytes(entries: Sequence[Entry], text: str) -> tuple[Entry, ...]:
    """Entries of single bytes that are no whole character, with those bytes, as far as the text says them.

    Completions names the text of a token only; where a token is one byte of several, the text of all tokens tells it.
    """
    if all(entry.get("bytes") is not None for entry in entries):
        return tuple(entries)
    data, at = text.encode("utf-8", "replace"), 0
    mended: list[Entry] = []
    for unknown, run in groupby(entries, key=lambda entry: entry.get("bytes") is None):
        found = list(run)
        if unknown:
            following = next(iter(entries[len(mended) + len(found) :]), None)
            size = _size_of_run(data, at, len(found), following)
            whole = size == len(found) and _LOST not in data[at : at + size]
            if whole and all(entry["token"] == REPLACEMENT for entry in found):
                found = [_of_bytes(entry, [data[at + n]]) for n, entry in enumerate(found)]
        else:
            known = b"".join(bytes(entry["bytes"]) for entry in found)
            size = len(known) if data.startswith(known, at) else None
        if size is None:
            break
        at += size
        mended += found
    return (*mended, *entries[len(mended) :])


def _size_of_run(data: bytes, at: int, count: int, following: Entry | None) -> int | None:
    """How many bytes of the text so many tokens without known bytes are; None if that cannot be told."""
    size = 0
    while data.startswith(_LOST, at + size):
        size += len(_LOST)
    if not size and _LOST not in data[at : at + count + 2]:
        size = count
    end = at + size
    followed = end == len(data) if following is None else data.startswith(bytes(following["bytes"]), end)
    return size if followed and end <= len(data) else None


_LOST = REPLACEMENT.encode()


def _of_bytes(entry: Entry, known: list[int]) -> Entry:
    """The token with its bytes, there and among its alternatives."""
    same = (entry["token"], entry["logprob"])
    tops = [{**top, "bytes": known} if (top["token"], top["logprob"]) == same else top for top in entry["top_logprobs"]]
    return {**entry, "bytes": known, "top_logprobs": tops}
