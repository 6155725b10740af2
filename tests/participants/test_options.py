"""Options of wrong types, which are refused by what a constructor says of them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import pytest

from participants import ResourcesServer
from participants.options import wrong_option
from participants.serving import ConfigError
from participants.serving.loading import make

pytestmark = pytest.mark.unit


class Base(ResourcesServer):
    """Some options, and an own base that has more."""

    def __init__(
        self,
        name: str = "main",
        *,
        peers: Any = None,
        on: bool = False,
        most: int = 1,
        wait_s: float = 1.0,
        words: Sequence[str] = (),
        table: Mapping[str, float] | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(name, **rest)


class Own(Base):
    """Its own ones, with types that JSON lacks and those that only a type checker finds."""

    def __init__(self, *, mode: Literal["fast", "slow"] = "fast", thing: complex = 0j, **rest: Any) -> None:
        super().__init__(**rest)


class Lost(ResourcesServer):
    """Nobody can read what it says of its options."""

    def __init__(self, *, size: "Nowhere" = 0, **rest: Any) -> None:  # type: ignore[name-defined]  # noqa: F821
        super().__init__(**rest)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"on": "no"}, "on is 'no', and must be true or false"),
        ({"most": True}, "most is True, and must be a whole number"),
        ({"most": 1.5}, "most is 1.5, and must be a whole number"),
        ({"wait_s": "1"}, "wait_s is '1', and must be a number"),
        ({"wait_s": True}, "wait_s is True, and must be a number"),
        ({"words": "abc"}, "words is 'abc', and must be a list, each item a text"),
        ({"words": ["a", 1]}, "words is ['a', 1], and must be a list, each item a text"),
        ({"table": {"a": "b"}}, "table is {'a': 'b'}, and must be a table, each value a number"),
        ({"mode": "quick"}, "mode is 'quick', and must be 'fast' or 'slow'"),
        ({"session_ttl_s": "x"}, "session_ttl_s is 'x', and must be a number"),
    ],
)
def test_an_option_of_another_type_is_named_with_what_it_must_be(options: dict[str, Any], wrong: str) -> None:
    """Whichever class of the line has it, and also where its constructor is given peers."""
    assert wrong_option(Own, {"mode": "slow", **options}) == wrong
    with pytest.raises(ConfigError, match=r"^resources\.own: a:Own does not take these options: "):
        make("resources.own", "a:Own", partial(Own, peers={}), options=options, name="main")


class Hiding(ResourcesServer):
    """Counts something, under a name that its base has."""

    def __init__(self, name: str = "main", **rest: Any) -> None:
        super().__init__(name, **rest)
        self.fine = 0
        self.counts = {"calls": 0}  # type: ignore[assignment, method-assign]


def test_a_class_that_hides_a_method_of_its_base_is_refused() -> None:
    """Else its sessions would fail somewhere else, by an error that says nothing of it."""
    with pytest.raises(ConfigError, match=r"a:Hiding sets self\.counts, which is a method of its base"):
        make("resources.own", "a:Hiding", Hiding, options={}, name="main")


@pytest.mark.parametrize(
    ("found", "options"),
    [
        (Own, {"on": True, "most": 3, "wait_s": 2, "words": ["a"], "table": {"a": 1, "b": 0.5}, "mode": "slow"}),
        (Own, {"table": None, "words": (), "thing": "what JSON has no type for", "unknown": 1}),
        (Lost, {"size": "what nobody can read"}),
    ],
)
def test_an_option_of_the_type_or_of_none_that_json_has_is_left_to_the_class(
    found: type, options: dict[str, Any]
) -> None:
    """A whole number is a number, and a tuple a list."""
    assert wrong_option(found, options) == ""
