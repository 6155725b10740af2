"""The page about the chain says what the code does."""

import re

import orjson
import pytest

from store import Action, CheckpointId, Claim, Deletion, DeletionEnd, Entry, Import, Publication, Seal, State
from store.entries import advance
from tests.tidy.tree import ROOT

from .test_entries import ACTIONS, HEADED, PASTS, SEAL, TABLE, Past, claim, publication, ref

pytestmark = pytest.mark.unit

PAGE = (ROOT / "docs" / "chain.md").read_text(encoding="utf-8")


def checked(name: str) -> str:
    """What stands after this marker, up to the next heading or empty line behind it."""
    match = re.search(rf"<!-- checked: {name} -->\n(?:```\w+\n(.*?)```|(.*?)\n\n)", PAGE, re.DOTALL)
    assert match is not None, f"docs/chain.md has no block {name}"
    return match[1] or match[2]


def effect(action: Action, before: State) -> str:
    """A row of the table of effects, as `advance` has it."""
    after = advance(before, 9, 3 if isinstance(action, Claim) else before.epoch, action)
    own = "its base" if isinstance(action, Claim) else "the checkpoint"
    more = len(after.plans) - len(before.plans)
    cells = [
        f"`{action.kind}`",
        "rises" if after.epoch > before.epoch else "",
        own if after.base != before.base else "",
        own if after.head != before.head else "",
        {1: "one more", 0: "", -1: "one less"}[more],
    ]
    return "| " + " | ".join(cells) + " |"


def test_the_table_of_effects_is_what_advance_does() -> None:
    """Each action changes those fields of the state that the page says."""
    before = Past(*HEADED, Deletion(checkpoints=(CheckpointId(1, 1),))).state
    actions: list[Action] = [
        claim("1.1"),
        SEAL,
        publication("1.3"),
        Import(ref=ref("7.1")),
        Deletion(checkpoints=(CheckpointId(1, 1),)),
        DeletionEnd(plan=4),
    ]
    expected = [re.sub(" +", " ", effect(action, before)) for action in actions]
    rows = [re.sub(" +", " ", row) for row in checked("effects").splitlines()[2:]]
    assert rows == expected


def test_the_table_of_rules_is_the_tested_one() -> None:
    """Letter by letter, so that the page cannot say anything else than the rules."""
    assert checked("rules").strip("\n") == TABLE.strip("\n")
    assert all(f"| `{past}` |" in PAGE for past in PASTS)
    assert len(checked("rules").splitlines()) == len(ACTIONS) + 1


def test_the_entry_on_the_page_is_an_entry() -> None:
    """It parses as one, and has every field in the order in which it is stored."""
    text = checked("entry")
    entry = Entry.model_validate_json(text)
    assert orjson.loads(text) == entry.model_dump(mode="json")
    assert list(orjson.loads(text)) == list(entry.model_dump(mode="json"))
    state = Past(claim(), publication("1.1")).state
    assert (entry.n, entry.state.epoch, entry.state.plans) == (2, state.epoch, state.plans)


def test_every_action_is_on_the_page() -> None:
    """The table of actions names each kind of entry, and nothing else."""
    kinds = re.findall(r"^\| `(\w+)` \| (?:controller|operator) \|", PAGE, re.MULTILINE)
    known = [model.model_fields["kind"].default for model in (Claim, Seal, Publication, Import, Deletion, DeletionEnd)]
    assert kinds == known
