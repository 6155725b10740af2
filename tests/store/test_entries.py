"""The rules of the chain, each action against each state, and what follows from an action."""

import pytest

from store import (
    Action,
    CheckpointConflict,
    CheckpointDeleted,
    CheckpointId,
    Claim,
    Deletion,
    DeletionEnd,
    Entry,
    Fenced,
    Import,
    InvalidInput,
    NoCheckpoint,
    Publication,
    Ref,
    Seal,
    Segment,
    State,
    StoreError,
)
from store.entries import Known, Plan, advance, is_open, next_epoch, refuse, require

pytestmark = pytest.mark.unit

RUN = "a" * 32
FOREIGN = "b" * 32


def ref(name: str, digest: str = "1", run_id: str = RUN) -> Ref:
    """A checkpoint whose digest is this digit, many times."""
    return Ref(checkpoint=CheckpointId.parse(name), digest=digest * 64, run_id=run_id)


def ids(*names: str) -> tuple[CheckpointId, ...]:
    """Checkpoint ids."""
    return tuple(map(CheckpointId.parse, names))


class Past:
    """A chain made of these actions, each of which the rules must allow."""

    def __init__(self, *actions: Action) -> None:
        self.state = State()
        self.known = Known()
        self.length = 0
        for action in actions:
            self.append(action)

    def append(self, action: Action, epoch: int | None = None) -> None:
        """Append, as the rules say."""
        if epoch is None:
            epoch = next_epoch(self.state, action.base) if isinstance(action, Claim) else self.state.epoch
        refusal = refuse(self.state, self.known, epoch, action)
        if refusal is not None:
            raise refusal
        self.length += 1
        self.state = advance(self.state, self.length, epoch, action)
        token = f"{self.length:032x}"
        entry = Entry(run_id=RUN, n=self.length, token=token, epoch=epoch, action=action, state=self.state)
        self.known.add(entry)


def claim(name: str = "", digest: str = "1") -> Claim:
    """A claim, with a base if one is named."""
    return Claim(base=ref(name, digest) if name else None)


def publication(name: str, digest: str = "1") -> Publication:
    """A publication."""
    return Publication(ref=ref(name, digest))


HEADED = (claim(), publication("1.1"), publication("1.2"))
PASTS = {
    "empty": (),
    "claimed": (claim(),),
    "headed": HEADED,
    "taken": (*HEADED, claim("1.2")),
    "forked": (*HEADED, claim()),
    "planned": (*HEADED, Deletion(checkpoints=ids("1.1"))),
    "ended": (*HEADED, Deletion(checkpoints=ids("1.1")), DeletionEnd(plan=4)),
    "imported": (*HEADED, Import(ref=ref("7.1", "9", FOREIGN))),
}
"""`headed`: epoch 1 published 1.1 and 1.2. `taken`: epoch 2 continues 1.2. `forked`: epoch 2 continues nothing."""

SEAL = Seal(segments=(Segment(name="output", length=7),))
ACTIONS: dict[str, tuple[int | None, Action]] = {
    "claim without base": (None, claim()),
    "claim with base 1.1": (None, claim("1.1")),
    "claim with base 1.1, other digest": (None, claim("1.1", "2")),
    "claim with base 7.1": (None, Claim(base=ref("7.1", "9", FOREIGN))),
    "claim of epoch 1 once more": (1, claim()),
    "claim of epoch 7 with base 7.1": (7, Claim(base=ref("7.1", "9", FOREIGN))),
    "publish 1.3 as epoch 1": (1, publication("1.3")),
    "publish 1.2 again as epoch 1": (1, publication("1.2")),
    "publish 1.1 as epoch 1": (1, publication("1.1")),
    "publish 2.1 as epoch 2": (2, publication("2.1")),
    "publish 2.1 as epoch 1": (1, publication("2.1")),
    "seal as epoch 1": (1, SEAL),
    "seal as epoch 2": (2, SEAL),
    "import 1.5": (0, Import(ref=ref("1.5", "9", FOREIGN))),
    "import 1.1, as it is": (0, Import(ref=ref("1.1"))),
    "import 1.1, other digest": (0, Import(ref=ref("1.1", "9", FOREIGN))),
    "import 1.5, which needs 1.1": (0, Import(ref=ref("1.5", "9", FOREIGN), needs=ids("1.1"))),
    "delete 1.1": (0, Deletion(checkpoints=ids("1.1"))),
    "delete 1.2": (0, Deletion(checkpoints=ids("1.2"))),
    "delete 1.3, never published": (0, Deletion(checkpoints=ids("1.3"))),
    "delete 2.1, never published": (0, Deletion(checkpoints=ids("2.1"))),
    "delete 7.1": (0, Deletion(checkpoints=ids("7.1"))),
    "end plan 4": (0, DeletionEnd(plan=4)),
    "end plan 1": (0, DeletionEnd(plan=1)),
}
"""The epoch of the writer: None for the next one, 0 for an operator, who has that of the state."""

LETTERS: dict[str, type[StoreError] | None] = {
    ".": None,
    "F": Fenced,
    "I": InvalidInput,
    "D": CheckpointDeleted,
    "C": CheckpointConflict,
}
TABLE = """
                                    empty claimed headed taken forked planned ended imported
claim without base                  .     .       .      .     .      .       .     .
claim with base 1.1                 I     I       .      .     .      D       D     .
claim with base 1.1, other digest   I     I       C      C     C      D       D     C
claim with base 7.1                 I     I       I      I     I      I       I     .
claim of epoch 1 once more          .     F       F      F     F      F       F     F
claim of epoch 7 with base 7.1      I     I       I      I     I      I       I     I
publish 1.3 as epoch 1              I     .       .      F     F      .       .     .
publish 1.2 again as epoch 1        I     .       I      F     F      I       I     I
publish 1.1 as epoch 1              I     .       I      F     F      I       I     I
publish 2.1 as epoch 2              I     I       I      .     .      I       I     I
publish 2.1 as epoch 1              I     I       I      F     F      I       I     I
seal as epoch 1                     I     .       .      F     F      .       .     .
seal as epoch 2                     I     I       I      .     .      I       I     I
import 1.5                          .     .       .      .     .      .       .     .
import 1.1, as it is                .     .       .      .     .      D       D     .
import 1.1, other digest            .     .       C      C     C      D       D     C
import 1.5, which needs 1.1         .     .       .      .     .      D       D     .
delete 1.1                          I     I       .      .     .      .       .     .
delete 1.2                          I     I       I      I     .      I       I     I
delete 1.3, never published         I     I       I      .     .      I       I     I
delete 2.1, never published         I     I       I      I     I      I       I     I
delete 7.1                          I     I       I      I     I      I       I     .
end plan 4                          I     I       I      I     I      .       I     I
end plan 1                          I     I       I      I     I      I       I     I
"""


def cells() -> list[tuple[str, str, type[StoreError] | None]]:
    """Each cell of the table: action, past, and what the rules answer."""
    header, *rows = TABLE.strip("\n").splitlines()
    width = len(header) - len(header.lstrip())
    columns = header.split()
    return [
        (row[:width].strip(), past, LETTERS[letter])
        for row in rows
        for past, letter in zip(columns, row[width:].split(), strict=True)
    ]


def test_the_table_has_every_pair() -> None:
    """Each action stands once against each state."""
    pairs = [(action, past) for action, past, _ in cells()]
    assert sorted(pairs) == sorted((action, past) for action in ACTIONS for past in PASTS)


@pytest.mark.parametrize(("action", "past", "error"), cells())
def test_an_action_is_allowed_or_refused_by_the_table(action: str, past: str, error: type[StoreError] | None) -> None:
    """The rules answer as the table says, and asking changes nothing."""
    before = Past(*PASTS[past])
    epoch, chosen = ACTIONS[action]
    if epoch is None:
        assert isinstance(chosen, Claim)
        epoch = next_epoch(before.state, chosen.base)
    state, refs, deleted = before.state, dict(before.known.refs), dict(before.known.deleted)
    refusal = refuse(state, before.known, epoch or state.epoch, chosen)
    assert type(refusal) is (type(None) if error is None else error), refusal
    assert (before.state, before.known.refs, before.known.deleted) == (state, refs, deleted)


def test_a_claim_takes_over_epoch_base_and_head() -> None:
    """After a claim the head is its base, whatever was published before."""
    past = Past(*HEADED, claim("1.1"))
    assert (past.state.epoch, past.state.base, past.state.head) == (2, ref("1.1"), ref("1.1"))


def test_a_publication_moves_the_head_alone() -> None:
    """Epoch and base stay as the claim left them."""
    past = Past(*HEADED, claim("1.1"), publication("2.1"))
    assert (past.state.epoch, past.state.base, past.state.head) == (2, ref("1.1"), ref("2.1"))


@pytest.mark.parametrize("action", [SEAL, Import(ref=ref("1.5", "9", FOREIGN))])
def test_a_seal_or_an_import_leaves_the_state(action: Action) -> None:
    """Neither moves the head, the epoch or a plan."""
    before = Past(*HEADED)
    after = Past(*HEADED, action)
    assert after.state == before.state


def test_plans_open_and_close_by_the_number_of_their_entry() -> None:
    """Two open plans are kept in order, and an end closes its own only."""
    past = Past(*HEADED, publication("1.3"), Deletion(checkpoints=ids("1.1")), Deletion(checkpoints=ids("1.2")))
    assert list(past.state.plans) == [Plan(n=5, checkpoints=ids("1.1")), Plan(n=6, checkpoints=ids("1.2"))]
    past.append(DeletionEnd(plan=5))
    assert list(past.state.plans) == [Plan(n=6, checkpoints=ids("1.2"))]


@pytest.mark.parametrize(
    ("past", "base", "epoch"),
    [("empty", None, 1), ("headed", "1.2", 2), ("headed", None, 2), ("taken", "1.1", 3), ("imported", "7.1", 8)],
)
def test_a_claim_takes_an_epoch_above_the_root_and_its_base(past: str, base: str | None, epoch: int) -> None:
    """An imported base may be of a higher epoch than the root has seen."""
    assert next_epoch(Past(*PASTS[past]).state, ref(base) if base else None) == epoch


@pytest.mark.parametrize(
    ("past", "may", "cannot"),
    [
        ("empty", ["1.1", "2.1"], []),
        ("claimed", ["1.1", "1.2", "2.1"], []),
        ("headed", ["1.3", "2.1", "3.1"], ["1.1", "1.2"]),
        ("taken", ["2.1", "2.9", "3.1"], ["1.1", "1.2", "1.3"]),
        ("forked", ["2.1", "3.1"], ["1.1", "1.9"]),
    ],
)
def test_an_id_is_open_while_a_live_controller_may_publish_it(past: str, may: list[str], cannot: list[str]) -> None:
    """Open is what the highest epoch has not passed yet, and every later epoch."""
    state = Past(*PASTS[past]).state
    assert [name for name in (*may, *cannot) if is_open(state, CheckpointId.parse(name))] == may


def test_a_checkpoint_is_required_by_what_the_chain_knows() -> None:
    """It is there, it was deleted, or it never was: three answers."""
    known = Past(*PASTS["planned"]).known
    assert require(known, "memory://", CheckpointId(1, 2)) == ref("1.2")
    with pytest.raises(CheckpointDeleted, match="entry 4"):
        require(known, "memory://", CheckpointId(1, 1))
    with pytest.raises(NoCheckpoint, match=r"1\.7"):
        require(known, "memory://", CheckpointId(1, 7))


def test_a_deletion_may_name_what_an_earlier_one_left_behind() -> None:
    """Leftovers of a deleted checkpoint can be planned again."""
    past = Past(*PASTS["ended"], Deletion(checkpoints=ids("1.1")))
    assert past.known.deleted == {CheckpointId(1, 1): 6}
