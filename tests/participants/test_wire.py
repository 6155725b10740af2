"""Messages: what is refused at the border, and that the schema says what the wire really carries."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from participants import OPERATIONS, Floor
from participants.wire import (
    MAX_NUMBER,
    MAX_SECONDS,
    Adopt,
    Commit,
    ControlCall,
    Lives,
    Prepare,
    Results,
    Retire,
    Stage,
)
from store import CheckpointId, InvalidName, Life, Ref

pytestmark = pytest.mark.unit

ENVELOPE: dict[str, Any] = {"run": "a", "epoch": 1, "incarnation": "i", "floor": [1, 2]}
PREPARE: dict[str, Any] = {**ENVELOPE, "round": "1.2", "timeout_s": 1, "lease_s": 2}


def test_a_message_is_read_from_its_written_forms() -> None:
    """Rounds, lives and floors are text and pairs on the wire, and values here."""
    prepare = Prepare.model_validate(PREPARE)
    assert (prepare.round, prepare.floor) == (CheckpointId(1, 2), Floor(1, 2))
    assert prepare.model_dump(mode="json") == PREPARE
    retire = Retire.model_validate({**ENVELOPE, "lives": ["r0/1.0#3"], "timeout_s": 1})
    assert retire.lives == (Life("r0", 1, 0, 3),)


@given(st.lists(st.builds(Life, st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True), *[st.integers(0, 9)] * 3)))
@settings(max_examples=30, deadline=None)
def test_a_message_survives_the_wire(lives: list[Life]) -> None:
    """What is sent is what arrives."""
    ref = Ref(checkpoint=CheckpointId(1, 1), digest="0" * 64, run_id="0" * 32)
    floor = Floor(1, 2)
    fields: dict[str, Any] = {**ENVELOPE, "floor": floor, "round": CheckpointId(1, 1), "scope": tuple(lives)}
    for message in (Commit(**fields, parent=ref), Stage(**fields, checkpoint=ref, shard=(1, 3))):
        assert type(message).model_validate_json(message.model_dump_json()) == message
        assert type(message).model_validate_json(b"".join(message.written())) == message
        assert json.loads(b"".join(message.written())) == json.loads(message.model_dump_json())


def test_lives_are_written_once_for_all_messages_that_have_them() -> None:
    """So a scope costs the same for one process as for a thousand."""
    scope = Lives([Life("r0", 1, 0, 3), Life("r1", 1, 0, 4)])
    fields = {**ENVELOPE, "round": "1.1", "scope": scope, "parent": None}
    one, other = (Commit.model_validate({**fields, "incarnation": name}) for name in ("i", "j"))
    assert one.scope is other.scope is scope
    shared = {id(piece) for piece in one.written()} & {id(piece) for piece in other.written()}
    assert id(scope.json) in shared
    assert json.loads(b"".join(other.written()))["scope"] == ["r0/1.0#3", "r1/1.0#4"]


@pytest.mark.parametrize(("given", "refused"), [("r1/1.0#4", False), ("../r1", True), (None, True), (7, True)])
def test_lives_in_which_something_else_stands_are_checked_like_any_others(given: Any, refused: bool) -> None:
    """What a caller has put together is not believed."""
    with pytest.raises(ValidationError, match=r"lives\.1") if refused else nullcontext():
        retire = Retire.model_validate({**ENVELOPE, "lives": Lives([Life("r0", 1, 0, 3), given]), "timeout_s": 1})
        assert retire.lives == (Life("r0", 1, 0, 3), Life("r1", 1, 0, 4))


@pytest.mark.fault(58)
@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"epoch": 0},
        {"epoch": "many"},
        {"floor": [1]},
        {"floor": [1, -1]},
        {"floor": [True, 0]},
        {"floor": "1.2"},
        {"floor": {"epoch": 1, "n": 2}},
        {"round": "1"},
        {"round": "0.1"},
        {"round": "../x"},
        {"round": {"epoch": 1, "k": 1}},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"epoch": MAX_NUMBER + 1},
        {"epoch": 10**30},
        {"floor": [1, MAX_NUMBER + 1]},
        {"timeout_s": MAX_SECONDS + 1},
        {"lease_s": 1e300},
        {"lease_s": float("inf")},
        {"lease_s": float("nan")},
    ],
)
def test_a_malformed_message_is_refused(change: dict[str, Any]) -> None:
    """Unknown fields, numbers out of range, and anything that is not the written form."""
    with pytest.raises(ValidationError):
        Prepare.model_validate({**PREPARE, **change})


def test_numbers_are_those_that_lives_can_be_written_with() -> None:
    """A larger epoch would be adopted, and no life of it could ever be; the largest is taken everywhere."""
    largest = {**ENVELOPE, "epoch": MAX_NUMBER, "floor": [MAX_NUMBER, MAX_NUMBER]}
    assert Adopt.model_validate(largest).epoch == Life("r0", MAX_NUMBER, MAX_NUMBER, MAX_NUMBER).epoch
    assert Results.model_validate({**largest, "after": MAX_NUMBER}).after == MAX_NUMBER
    with pytest.raises(InvalidName):
        Life("r0", MAX_NUMBER + 1, 0, 0)
    with pytest.raises(ValidationError):
        Adopt.model_validate({**largest, "epoch": MAX_NUMBER + 1})


@pytest.mark.parametrize(
    "life", ["../etc/x/1.0#0", "r0", "r0/1.0", "r0-a1/1.0#0", "r\0/1.0#0", 3, {"rollout_id": "r0"}]
)
def test_a_malformed_life_is_refused(life: Any) -> None:
    """Names are checked where they come in."""
    with pytest.raises(ValidationError):
        Retire.model_validate({**ENVELOPE, "lives": [life], "timeout_s": 1})


def test_an_object_is_no_written_form_of_a_life() -> None:
    """Not even one with all the right fields: there is one form, and the schema tells which."""
    fields = {"rollout_id": "r0", "epoch": 1, "attempt": 0, "n": 0}
    with pytest.raises(ValidationError):
        Retire.model_validate({**ENVELOPE, "lives": [fields], "timeout_s": 1})


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_message_documents_itself_and_refuses_more(operation: str) -> None:
    """Each has a docstring of its own, is frozen, and forbids unknown fields; all but adopt carry the envelope."""
    message, answer = OPERATIONS[operation]
    for model in (message, answer):
        assert model.__doc__
        assert (model.model_config.get("extra"), model.model_config.get("frozen")) == ("forbid", True)
    assert issubclass(message, ControlCall) is (operation != "adopt")
    assert {"run", "epoch", "floor", "incarnation"} <= message.model_fields.keys()


def test_the_schema_has_the_written_forms() -> None:
    """A life and a round are strings, a floor is a pair of integers."""
    properties = Commit.model_json_schema()["properties"]
    assert properties["round"]["type"] == "string"
    assert properties["scope"]["items"]["type"] == "string"
    assert (properties["floor"]["type"], properties["floor"]["items"]["type"]) == ("array", "integer")
