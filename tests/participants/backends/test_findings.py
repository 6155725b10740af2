"""What is seen is used, what is declared and unseen is taken away, and each difference has a note: every case."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from participants.backends import NOTHING, Capabilities, Feature
from participants.backends.findings import SEEN, Findings, conclude, is_continued, is_same_rest, took_ids
from participants.backends.kinds import CHAT, COMPLETIONS, MIDFLIGHT, RESPONSES
from participants.backends.observing import Generated

pytestmark = pytest.mark.unit


def seen(**values: Any) -> Findings:
    """Chat and completions are served and stream."""
    return Findings(routes={CHAT, COMPLETIONS}, streamed={CHAT, COMPLETIONS}, **values)


@pytest.mark.parametrize(
    ("name", "declares", "sees"), [*product([n for n in SEEN if n != "token_ids_out"], [False, True], [False, True])]
)
def test_seeing_decides_and_a_difference_is_told(name: str, declares: bool, sees: bool) -> None:
    """The note says which way it went; where both agree there is none."""
    declared: Any = {name: declares}
    found, notes = conclude(Capabilities(**declared), seen(**{name: sees}))
    assert getattr(found, name) is sees
    about = [note for note in notes if name in note.split()]
    expected = [] if declares == sees else [f"seen: {name}" if sees else f"declared and not seen: {name}"]
    assert about == expected


@pytest.mark.parametrize(("declares", "sees"), [*product([False, True], [None, False, True])])
def test_equal_bits_are_declared_and_seen(declares: bool, sees: bool | None) -> None:
    """One cut alone proves too little, and a declaration that the probe contradicts or cannot check proves nothing."""
    found, notes = conclude(Capabilities(bit_equal=declares), seen(bit_equal=sees))
    assert found.bit_equal is (declares and sees is True)
    assert any("bit_equal" in note for note in notes) is (declares and sees is not True)


@pytest.mark.parametrize(
    ("routes", "named", "out"),
    [
        ({CHAT, COMPLETIONS}, {CHAT, COMPLETIONS}, True),
        ({CHAT, COMPLETIONS}, {COMPLETIONS}, False),
        ({COMPLETIONS}, {COMPLETIONS}, True),
        ({CHAT, RESPONSES}, {CHAT}, True),
        ({RESPONSES}, {RESPONSES}, False),
        (set(), set(), False),
    ],
)
def test_ids_come_out_where_every_stream_names_them(routes: set[str], named: set[str], out: bool) -> None:
    """Of chat and completions; the routes say it exactly."""
    found, _ = conclude(Capabilities(), Findings(routes=routes, streamed=routes, ids_routes=named))
    assert (found.token_ids_out, set(found.ids_routes)) == (out, named)


def test_nothing_seen_leaves_nothing() -> None:
    """Every capability of the richest declaration is gone, and each has a note."""
    found, notes = conclude(MIDFLIGHT, Findings())
    bare = replace(NOTHING, kind="midflight", tool_format="marks", end_ids=MIDFLIGHT.end_ids)
    assert replace(found, declared=frozenset()) == bare
    assert Feature.LOGPROBS not in found.declared
    assert len(notes) == len(SEEN) + 3 + 1  # the routes, and bit_equal


def test_a_prompt_of_ids_is_taken_as_these_ids() -> None:
    """Named again, or at least so many; a text made of them has another number."""
    assert took_ids([1, 2], Generated(prompt=(1, 2)))
    assert not took_ids([1, 2], Generated(prompt=(1, 3), prompt_tokens=2))
    assert took_ids([1, 2], Generated(prompt_tokens=2))
    assert not took_ids([1, 2], Generated(prompt_tokens=7))
    assert not took_ids([1, 2], Generated())


def test_the_rest_is_compared_where_there_are_ids() -> None:
    """Equal, different, or unknown."""
    uncut = Generated(ids=(1, 2, 3, 4))
    assert is_same_rest(uncut, Generated(ids=(3, 4)), 2) is True
    assert is_same_rest(uncut, Generated(ids=(3, 5)), 2) is False
    assert is_same_rest(uncut, Generated(), 2) is None
    assert is_same_rest(Generated(), Generated(ids=(3, 4)), 2) is None


@pytest.mark.parametrize(
    ("turn", "continued", "is_open"),
    [
        (Generated(prompt=(1, 2)), Generated(prompt=(1, 2, 9)), True),
        (Generated(prompt=(1, 2)), Generated(prompt=(1, 2, 9, 8, 7)), False),
        (Generated(prompt=(1, 2)), Generated(prompt=(1, 3, 9)), False),
        (Generated(prompt=(1, 2)), Generated(prompt=(1, 2)), False),
        (Generated(prompt_tokens=10), Generated(prompt_tokens=12), True),
        (Generated(prompt_tokens=10), Generated(prompt_tokens=15), False),
        (Generated(prompt_tokens=10), Generated(prompt_tokens=10), False),
        (Generated(prompt_tokens=10), Generated(), False),
    ],
)
def test_a_begun_turn_is_open_if_only_its_beginning_is_added(
    turn: Generated, continued: Generated, is_open: bool
) -> None:
    """An end mark and a new turn would be more tokens; without counts nothing is seen."""
    assert is_continued(turn, continued) is is_open
