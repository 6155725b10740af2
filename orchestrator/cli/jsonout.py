"""The one JSON document of a command, in ASCII: no terminal acts on it, and every encoding can carry it."""

import base64
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from store import CheckpointId, Life

from .documents import Compared, Document, ShownRecord, Streamed
from .ledger_documents import ONLY_PEOPLE


def pieces(document: Document, command: str) -> Iterator[bytes]:
    """The same document piece by piece: of one that is read while it is printed, only a part is ever in memory."""
    if not isinstance(document, Streamed):
        yield to_json(document, command)
        return
    yield b'{"command":' + _dumped(command)
    for field in dataclasses.fields(document):
        if ONLY_PEOPLE in field.metadata:
            continue
        value = getattr(document, field.name)  # In its turn: totals are known when what they count is printed.
        yield b"," + _dumped(field.name) + b":"
        if isinstance(value, Iterator):
            yield from _listed(value)
        else:
            yield _dumped(plain(value))
    yield b',"exit_code":%d}\n' % document.exit


def _listed(values: Iterator[Any]) -> Iterator[bytes]:
    yield b"["
    for number, value in enumerate(values):
        yield b"," * (number > 0) + _dumped(plain(value))
    yield b"]"


def to_json(document: Document, command: str) -> bytes:
    """The document of a command: its name, its exit code, and its fields."""
    fields = _fields(document.difference) if isinstance(document, Compared) else {}
    body = {"command": command, "exit_code": int(document.exit), **_fields(document), **fields}
    body.pop("exit", None)
    body.pop("difference", None)
    return _dumped(body) + b"\n"


def _dumped(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":"))  # and not orjson, which stops at a depth that records may have
    return text.replace("\x7f", "\\u007f").encode("ascii")


def _fields(document: Any) -> dict[str, Any]:
    return {field.name: plain(getattr(document, field.name)) for field in dataclasses.fields(document)}


def plain(value: Any) -> Any:
    """A value as JSON has it. Text that is no Unicode, which a path may be, comes out with escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, CheckpointId | Life):
        return str(value)
    if isinstance(value, ShownRecord):  # its value was parsed from JSON
        return {"participant": value.participant, "life": value.life, "record": value.record}
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
