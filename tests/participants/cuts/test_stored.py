"""Prefixes in a checkpoint's record."""

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.cuts import Prefix, Segment, read
from participants.cuts.stored import dump_prefix, load_prefix
from participants.errors import Code, ParticipantError

from .test_every_cut import CASES
from .uncut import streamed

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", CASES)
def test_a_prefix_comes_back_from_json(name: str) -> None:
    """Every prefix of every case."""
    route, body = CASES[name]
    events = streamed(route, body)
    for k in range(len(events)):
        prefix = read(route, events[:k]).prefix
        assert load_prefix(orjson.loads(orjson.dumps(dump_prefix(prefix)))) == prefix


GOOD = dump_prefix(Prefix(prompt=(1,), ids=(2, 3), text="t", segments=(Segment(0, 1, "a"), Segment(1, 1, ""))))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", "x"),
        ("prompt", [-1]),
        ("ids", [1.5, 2]),
        ("ids", [2**32, 1]),
        ("ids", ["1", "2"]),
        ("ids", None),
        ("text", None),
        ("logprobs", [5]),
        ("logprobs", [{}]),
        ("segments", []),
        ("segments", [[0, 2]]),
        ("segments", [[0, True, "a"], [1, 1, "b"]]),
        ("segments", [[0, 1, "a"], [2, 1, "b"]]),
        ("segments", [[0, 2, "a"], [1, 1, "b"]]),
        ("segments", [[0, 0, "a"], [0, 2, "b"]]),
        ("segments", [[0, 3, "a"]]),
        ("calls", 1),
        ("reasoning", None),
        ("head", []),
    ],
)
def test_a_malformed_prefix_is_a_corrupt_checkpoint(field: str, value: Any) -> None:
    """Each field that is wrong is refused, with a type."""
    load_prefix(GOOD)
    with pytest.raises(ParticipantError) as caught:
        load_prefix({**GOOD, field: value})
    assert caught.value.code is Code.CORRUPT_CHECKPOINT


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD]), inner),
    max_leaves=5,
)


@given(ANYTHING, st.sampled_from([*GOOD, None]))
def test_no_json_makes_loading_fail_otherwise(value: Any, field: str | None) -> None:
    """A prefix, or that one error."""
    with suppress(ParticipantError):
        load_prefix(value if field is None else {**GOOD, field: value})
