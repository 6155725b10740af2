"""The parts of `code_gen` that run nothing: when output is right, which tests are too much, where the code stands."""

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants import Code, ParticipantError
from participants.verifiers import unit_tests as bounds
from participants.verifiers.code_gen import CodeGenServer, has_broken_tags, last_fenced
from participants.verifiers.same_output import NoValue, same_text, same_value, value_of
from participants.verifiers.unit_tests import unit_tests_of

pytestmark = pytest.mark.unit

TEXTS = [
    # By hand, from the rule in the module's first lines.
    ("3\n", "3", True),
    ("3", "  3  \n\n", True),
    ("a b\nc", "a b  \n  c\n", True),
    ("a b", "a  b", False),
    ("1 2", "1  2", True),
    ("1 2", "1 2 3", False),
    ("1\n2", "1 2", False),
    ("1 2", "1\n2", False),
    ("1\n2", "1\n\n2", False),
    ("Yes", "yes", False),
    ("7", "007", True),
    ("7", "7.0", True),
    ("7", "+7", True),
    ("50000000000000000", "50000000000000001", False),
    ("1000000", "1000001", False),
    ("1000000.0", "1000001.0", True),
    ("1000000.0", "1000001.1", False),
    ("0.5", "0.5000009", True),
    ("0.5", "0.5000011", False),
    ("0", "1e-7", True),
    ("0", "1e-5", False),
    ("1e3", "1000", True),
    ("nan", "nan", True),
    ("nan", "inf", False),
    ("inf", "1e999", False),
    ("1_000", "1000", False),
    ("", "", True),
    ("", "0", False),
    ("x 1.0", "x 1", False),
    ("1e9999", "1e9999 ", True),
    ("9" * 401, "9" * 400 + "8", False),
]
VALUES = [
    # By hand; what Python and JSON each call equal stands in RFC 8259 and in the rule in the module's first lines.
    ("3", "3", True),
    ("3", "3.0", True),
    ("3", "3.00001", True),
    ("3", "3.1", False),
    ("[1.0]", "[1.00001]", False),
    ("[1.0]", "[1]", True),
    ("1", "true", False),
    ("0", "false", False),
    ("[true]", "[1]", False),
    ("null", "0", False),
    ('"3"', "3", False),
    ("[1,2]", "[2,1]", False),
    ("[[1],[2]]", "[[1], [2]]", True),
    ('{"a":1,"b":[2]}', '{"b":[2],"a":1}', True),
    ('{"a":1}', '{"a":1,"b":2}', False),
    ("123456789012345678901234567890", "123456789012345678901234567891", False),
    ("[9007199254740993]", "[9007199254740993.0]", False),
    ("1" + "0" * 400, "1.5", False),
]


@pytest.mark.parametrize(("expected", "given", "right"), TEXTS, ids=range(len(TEXTS)))
def test_output_is_right_by_line_and_token(expected: str, given: str, right: bool) -> None:
    """White space at the ends does not count, lines do, and numbers are compared by value."""
    assert same_text(expected, given) is right


@given(st.lists(st.lists(st.integers(-(10**30), 10**30), min_size=1), min_size=1))
def test_whole_numbers_are_compared_exactly(lines: list[list[int]]) -> None:
    """What was printed is itself, and no longer with one number one higher."""
    text = "\n".join(" ".join(map(str, line)) for line in lines)
    lines[-1][-1] += 1
    other = "\n".join(" ".join(map(str, line)) for line in lines)
    assert same_text(text, text + "\n")
    assert not same_text(text, other)


@pytest.mark.parametrize(("expected", "given", "right"), VALUES, ids=range(len(VALUES)))
def test_results_are_right_as_json_values(expected: str, given: str, right: bool) -> None:
    """Booleans are no numbers, and only a whole result that is a float may be a little off."""
    assert same_value(value_of(expected), value_of(given)) is right


@pytest.mark.parametrize("text", ["", "NaN", "[Infinity]", "1 2", "[" * 100_000, "9" * 5_000, "{1: 2}", "'a'"])
def test_what_is_no_json_value_is_said(text: str) -> None:
    """Two documents, a NaN, a depth that no stack holds, and a number that takes minutes are no values."""
    with pytest.raises(NoValue):
        value_of(text)


def packed(plain: Any) -> str:
    """As a data set has it."""
    return base64.b64encode(zlib.compress(json.dumps(plain).encode())).decode()


PLAIN = {"inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"], "fn_name": "add"}


@pytest.mark.parametrize("unit_tests", [PLAIN, {"packed": packed(PLAIN)}, {"packed": packed(PLAIN), "fn_name": "add"}])
def test_packed_tests_are_those_that_were_packed(unit_tests: dict[str, Any]) -> None:
    """Both forms give the same, with the function named inside or beside."""
    tests = unit_tests_of({"unit_tests": unit_tests})
    assert (list(tests.inputs), list(tests.outputs), tests.fn_name) == (["1\n2", "3\n4"], ["3", "7"], "add")


def bomb(size: int) -> str:
    """Less than 1 MB that becomes so many bytes, of one text."""
    press = zlib.compressobj(1)
    parts = [press.compress(b'{"outputs":["1"],"inputs":["')]
    parts += [press.compress(b"0" * (1 << 20)) for _ in range(size >> 20)]
    return base64.b64encode(b"".join([*parts, press.compress(b'"]}'), press.flush()])).decode()


BAD: dict[str, Any] = {
    "nothing": None,
    "no tests": {},
    "none at all": {"unit_tests": {"inputs": [], "outputs": []}},
    "fewer outputs": {"unit_tests": {"inputs": ["1", "2"], "outputs": ["1"]}},
    "numbers": {"unit_tests": {"inputs": [1], "outputs": ["1"]}},
    "too many": {"unit_tests": {"inputs": ["1"] * 2001, "outputs": ["1"] * 2001}},
    "too long": {"unit_tests": {"inputs": ["1" * (bounds.MAX_TEST_BYTES + 1)], "outputs": ["1"]}},
    "surrogate": {"unit_tests": {"inputs": ["\ud800"], "outputs": ["1"]}},
    "language": {"unit_tests": {"inputs": ["1"], "outputs": ["1"]}, "language": "cobol"},
    "function in C++": {"unit_tests": {"inputs": ["1"], "outputs": ["1"], "fn_name": "f"}, "language": "cpp"},
    "no name": {"unit_tests": {"inputs": ["1"], "outputs": ["1"], "fn_name": "os.system"}},
    "no arguments": {"unit_tests": {"inputs": ["one"], "outputs": ["1"], "fn_name": "f"}},
    "no result": {"unit_tests": {"inputs": ["1"], "outputs": ["one"], "fn_name": "f"}},
    "not base64": {"unit_tests": {"packed": "!!"}},
    "not zlib": {"unit_tests": {"packed": base64.b64encode(b"hello").decode()}},
    "cut off": {"unit_tests": {"packed": base64.b64encode(zlib.compress(b'{"inputs": ["1"]}' * 50)[:20]).decode()}},
    "not JSON": {"unit_tests": {"packed": base64.b64encode(zlib.compress(b"hello")).decode()}},
    "not an object": {"unit_tests": {"packed": packed(["1"])}},
    "deep": {"unit_tests": {"packed": base64.b64encode(zlib.compress(b"[" * 60_000)).decode()}},
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_tests_that_are_wrong_or_too_much_are_refused(name: str) -> None:
    """Whatever is wrong with the tests is the row's fault, and no reward of 0."""
    with pytest.raises(ParticipantError) as caught:
        unit_tests_of(BAD[name])
    assert caught.value.code == Code.INVALID_REQUEST


def test_many_small_values_are_refused_before_they_are_built() -> None:
    """Two MB of empty lists would be a hundred MB of them."""
    text = b'{"outputs": ["1"], "inputs": [' + b"[]," * 700_000 + b"[]]}"
    with pytest.raises(ParticipantError, match="more than inputs and outputs"):
        unit_tests_of({"unit_tests": {"packed": base64.b64encode(zlib.compress(text)).decode()}})


def test_a_bomb_is_not_unpacked() -> None:
    """Less than 1 MB that would become more than is allowed is refused at the limit."""
    text = bomb(bounds.MAX_TESTS_BYTES + (1 << 20))
    assert len(text) < 1 << 20
    with pytest.raises(ParticipantError, match="over") as caught:
        unit_tests_of({"unit_tests": {"packed": text}})
    assert caught.value.code == Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("one:\n```\na\n```\nor better:\n```py\nb\nc\n```\nthat is all", "b\nc"),
        ("```\nunfinished", ""),
        ("none", ""),
        ("a ```b``` c\nd\n  ```\n", "d"),
    ],
)
def test_code_stands_between_the_last_two_fences(text: str, code: str) -> None:
    """Lines with a fence count wherever in the line it is, as in the reference."""
    assert last_fenced(text) == code


def reasoning(text: str) -> dict[str, Any]:
    """A response that has thought this."""
    return {"output": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}]}


@pytest.mark.parametrize(
    ("text", "thought", "broken"),
    [
        ("an answer", "<think>a thought</think>", False),
        ("</think> an answer", "", True),
        ("<think>an answer", "", True),
        ("an answer", "<think>one<think>two", True),
        ("an answer", "one</think>two</think>", True),
    ],
)
def test_tags_of_reasoning_are_broken_in_answers_and_where_they_repeat(text: str, thought: str, broken: bool) -> None:
    """An answer has none, and the reasoning one of each at most."""
    assert has_broken_tags(text, reasoning(thought)) is broken


@pytest.mark.parametrize("options", [{"num_processes": 0}, {"unit_test_timeout_secs": 0}])
def test_settings_that_run_nothing_are_refused(options: dict[str, Any]) -> None:
    """At once, and not at the first verify."""
    with pytest.raises(ValueError, match="above 0"):
        CodeGenServer(**options)


def test_there_are_fifty_cases_of_both_ends() -> None:
    """The same ones every time, for the conformance kit."""
    cases = CodeGenServer.conformance().cases
    assert len(cases) >= 50
    assert cases == CodeGenServer.conformance().cases
