"""The one JSON document of a command, in ASCII: no terminal acts on it, and every encoding can carry it."""

import base64
import dataclasses
import json
from typing import Any

from store import CheckpointId, Life

from .documents import Compared, Document, ShownRecord


def to_json(document: Document, command: str) -> bytes:
    """The document of a command: its name, its exit code, and its fields."""
    fields = _fields(document.difference) if isinstance(document, Compared) else {}
    body = {"command": command, "exit_code": int(document.exit), **_fields(document), **fields}
    body.pop("exit", None)
    body.pop("difference", None)
    text = json.dumps(body, separators=(",", ":"))  # and not orjson, which stops at a depth that records may have
    return text.replace("\x7f", "\\u007f").encode("ascii") + b"\n"


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
