"""The unit tests of a row of `code_gen`, and what is too much of them: rows are data, and packed ones may be bombs.

`verifier_metadata.unit_tests` is `{inputs[], outputs[], fn_name?}`, or `{packed, fn_name?}`, where `packed` is base64
of zlib of the JSON of the former. Everything that is wrong with it is `invalid_request`.
"""

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import Code, ParticipantError
from .same_output import NoValue, value_of

LANGUAGES = ("python", "cpp")
MAX_TESTS = 2_000
MAX_TEST_BYTES = 32 << 20
"""Of one input or output, in UTF-8."""
MAX_TESTS_BYTES = 128 << 20
"""Of the JSON of all of them, unpacked."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_MAX_REST_BYTES = 64 * MAX_TESTS
"""Of that JSON without its strings. A value takes a hundred times its text in memory, unless it is a string."""


@dataclass(frozen=True, slots=True)
class UnitTests:
    """Tests of one task."""

    inputs: Sequence[str]
    """What stands on stdin; for a function, its arguments, one JSON value a line."""
    outputs: Sequence[str]
    """What must stand on stdout; for a function, its result as JSON."""
    fn_name: str | None
    """Of the function to call, in the class `Solution` if there is one; None for a program."""
    language: str
    """One of `LANGUAGES`."""


def unit_tests_of(metadata: Any) -> UnitTests:
    """The tests in a row's `verifier_metadata`; takes a while where they are packed. Raises `invalid_request`."""
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("unit_tests"), Mapping):
        _refuse("the row has no verifier_metadata with unit_tests")
    given = metadata["unit_tests"]
    plain = _unpacked(given["packed"]) if "packed" in given else given
    fn_name = given.get("fn_name") or plain.get("fn_name")
    tests = UnitTests(
        inputs=_texts(plain, "inputs"),
        outputs=_texts(plain, "outputs"),
        fn_name=fn_name,
        language=metadata.get("language") or "python",
    )
    _check(tests)
    return tests


def _unpacked(packed: Any) -> Mapping[str, Any]:
    if not isinstance(packed, str):
        _refuse("packed unit tests are no base64 text")
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(base64.b64decode(packed, validate=True), MAX_TESTS_BYTES + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        _refuse(f"packed unit tests cannot be unpacked: {error}")
    if len(data) > MAX_TESTS_BYTES:
        _refuse(f"packed unit tests are over {MAX_TESTS_BYTES} bytes")
    if not inflate.eof:
        _refuse("packed unit tests end too early")
    if len(_STRING.sub(b"", data)) > _MAX_REST_BYTES:
        _refuse("packed unit tests hold more than inputs and outputs")
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        _refuse(f"packed unit tests are no JSON: {error}")
    if not isinstance(plain, dict):
        _refuse("packed unit tests are no JSON object")
    return plain


def _texts(plain: Mapping[str, Any], name: str) -> list[str]:
    texts = plain.get(name)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        _refuse(f"unit_tests.{name} is no list of texts")
    return texts


def _check(tests: UnitTests) -> None:
    count = len(tests.inputs)
    if not 1 <= count <= MAX_TESTS or len(tests.outputs) != count:
        _refuse(f"{count} inputs and {len(tests.outputs)} outputs: as many of both are wanted, from 1 to {MAX_TESTS}")
    for text in (*tests.inputs, *tests.outputs):
        _check_text(text)
    if tests.language not in LANGUAGES:
        _refuse(f"the language {tests.language!r:.50} is none of {', '.join(LANGUAGES)}")
    if tests.fn_name is not None:
        _check_call(tests)


def _check_text(text: str) -> None:
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        _refuse("a unit test has half of a surrogate pair")
    if size > MAX_TEST_BYTES:
        _refuse(f"a unit test has {size} bytes, over {MAX_TEST_BYTES}")


def _check_call(tests: UnitTests) -> None:
    if not isinstance(tests.fn_name, str) or not tests.fn_name.isidentifier():
        _refuse(f"fn_name {tests.fn_name!r:.50} is no name of a function")
    if tests.language != "python":
        _refuse("a function can be called in Python only; programs in other languages read stdin")
    try:
        arguments = [line for text in tests.inputs for line in text.split("\n")]
        for text in (*tests.outputs, *arguments):
            value_of(text)
    except NoValue as error:
        _refuse(f"a unit test of a function has {error}")


def _refuse(why: str) -> NoReturn:
    raise ParticipantError(Code.INVALID_REQUEST, why)
