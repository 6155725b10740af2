"""Sealed documents: one JSON object in a file, whose last key is the sha256 of everything before it.

Form: `{...,"sha256":"<64 hex digits>"}` and a newline. The digest is taken over the bytes from the opening brace up to,
and not including, the comma before `"sha256"`. So a document can be checked without parsing it, and any cut or flipped
bit is found. Manifests, chain entries and format.json are such documents.
"""

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from .errors import InvalidInput, StoreError, UnsupportedVersion

_MIDDLE = b',"sha256":"'
_END = b'"}\n'
_TAIL_BYTES = len(_MIDDLE) + 64 + len(_END)

INT_MIN, INT_MAX = -(2**63), 2**64 - 1
"""The integers that are read back exactly: signed or unsigned, in 64 bits."""

FORMAT_MAJOR = 1
FORMAT_MINOR = 0
KNOWN_FEATURES: frozenset[str] = frozenset()

Model = TypeVar("Model", bound=BaseModel)
Damage = Callable[[str, str], StoreError]
"""Builds the error for a damaged document from its name and the reason."""


def seal(document: dict[str, Any]) -> bytes:
    """The bytes of a document with its digest. `document` must be a non-empty JSON object without a `sha256` key.

    Raises InvalidInput where a text or number in it has no JSON form.
    """
    try:
        body = orjson.dumps(document)[:-1]
    except TypeError as error:
        raise InvalidInput(f"a {document.get('format', 'document')} cannot be written ({error})") from error
    return body + _MIDDLE + hashlib.sha256(body).hexdigest().encode() + _END


def seal_within(max_bytes: int, document: dict[str, Any]) -> bytes:
    """As `seal`; raises InvalidInput where no reader would take in so many bytes."""
    data = seal(document)
    if len(data) > max_bytes:
        what = document.get("format", "document")
        raise InvalidInput(f"a {what} would have {len(data)} bytes, and the limit is {max_bytes}")
    return data


def build(model: type[Model], **fields: Any) -> Model:
    """A document of our own from a caller's values; raises InvalidInput, which names the field that does not fit."""
    try:
        return model(**fields)
    except ValidationError as error:
        raise InvalidInput(f"a {model.__name__} cannot have {_first_problem(error)}") from error


def digest_of(sealed: bytes) -> str:
    """The digest that sealed bytes carry; they must have been sealed or unsealed here before."""
    return sealed[-(64 + len(_END)) : -len(_END)].decode()


def unseal(name: str, data: bytes, damage: Damage) -> dict[str, Any]:
    """Check the digest, then parse strictly. Raises `damage(name, reason)`."""
    body, tail = data[:-_TAIL_BYTES], data[-_TAIL_BYTES:]
    if not (len(tail) == _TAIL_BYTES and tail.startswith(_MIDDLE) and tail.endswith(_END)):
        raise damage(name, f"its {len(data)} bytes do not end in a digest")
    if hashlib.sha256(body).hexdigest().encode() != tail[len(_MIDDLE) : -len(_END)]:
        raise damage(name, "its content does not match its digest")
    return parse_strictly(name, body + b"}", damage)


def parse_strictly(name: str, data: bytes, damage: Damage) -> dict[str, Any]:
    """Parse a JSON object; duplicate keys, NaN, numbers out of range, bad UTF-8 and bottomless nesting are refused."""
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_at_most_64_bits,
        )
    except (ValueError, RecursionError) as error:
        raise damage(name, f"it is not strict JSON ({_reason(error)})") from error
    if not isinstance(value, dict):
        raise damage(name, "it is not a JSON object")
    return value


def load_model(model: type[Model], name: str, data: bytes, damage: Damage) -> Model:
    """Unseal `data` and validate it as `model`, after its version and required features."""
    check_version(name, unseal(name, data, damage), damage)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise damage(name, _first_problem(error)) from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    return f"field {where!r:.200}: {first['msg']:.200}"


def check_version(name: str, document: dict[str, Any], damage: Damage) -> None:
    """Refuse, by name, what a newer midflight wrote; a newer minor version only adds what a reader may ignore."""
    version = document.get("version")
    if not (isinstance(version, list) and len(version) == 2 and all(type(n) is int for n in version)):
        raise damage(name, "it has no format version")
    if version[0] != FORMAT_MAJOR:
        raise UnsupportedVersion(name, f"format version {version[0]}.{version[1]}")
    features = document.get("features", [])
    if not isinstance(features, list) or not all(isinstance(feature, str) for feature in features):
        raise damage(name, "its required features are not a list of names")
    missing = sorted(set(features) - KNOWN_FEATURES)
    if missing:
        raise UnsupportedVersion(name, f"the feature {missing[0]!r}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large for a float")
    return value


def _at_most_64_bits(text: str) -> int:
    value = int(text)
    if not INT_MIN <= value <= INT_MAX:
        raise ValueError("an integer has more than 64 bits")
    return value


def _reason(error: BaseException) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
