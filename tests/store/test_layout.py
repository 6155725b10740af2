"""Names and keys: what is accepted, what is refused by name, and that keys parse back to what they were made from."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import InvalidName, InvalidRecord
from store.layout import (
    NAME_RULE,
    ROLLOUT_RULE,
    BlobRef,
    CheckpointId,
    Life,
    ProcessName,
    aggregate_key,
    check_name,
    check_part_name,
    check_rollout_id,
    check_sha256,
    entry_key,
    index_key,
    parse_blob_key,
    parse_checkpoint_key,
    parse_entry_key,
    part_key,
    participant_key,
)
from store.records import RawRecord

pytestmark = pytest.mark.unit

HOSTILE = [
    "",
    ".",
    "..",
    "../../etc/x",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "a\n",
    " a",
    "a b",
    "ä",
    "\N{PILE OF POO}",
    "\ud800",
    "%2e%2e",
    'a"b',
    "a" * 4096,
]
NUMBERS = st.integers(0, 10**18 - 1)
POSITIVES = st.integers(1, 10**18 - 1)
IDS = st.from_regex(ROLLOUT_RULE, fullmatch=True).filter(
    lambda text: len(text) <= 200 and not re.search(r"-a[0-9]+$", text)
)
CHECKPOINTS = st.builds(CheckpointId, POSITIVES, POSITIVES)
SHA = "ab" * 32


@pytest.mark.parametrize("check", [check_rollout_id, check_name, check_sha256, check_part_name])
@pytest.mark.fault(58)
def test_a_hostile_name_is_refused_whatever_it_should_name(check: Callable[[str], str]) -> None:
    """No path, control character or overlong text passes as an id, a name, a digest or a part."""
    for text in HOSTILE:
        with pytest.raises(InvalidName) as caught:
            check(text)
        assert len(str(caught.value)) < 400


@pytest.mark.fault(58)
def test_a_life_cannot_even_be_made_of_a_hostile_rollout_id() -> None:
    """A rollout id is checked where a life is made, so none can reach a record, an index or a manifest."""
    for text in [*HOSTILE, "task-a0", "x-a12", ".hidden", "-x", "_x", "a" * 201]:
        with pytest.raises(InvalidName):
            Life(text, 1, 0, 0)


@pytest.mark.parametrize("text", ["A", "0", "a-a", "a-a1.", "a.b_c-d", "x-ab1", "a" * 200])
def test_an_ordinary_rollout_id_passes(text: str) -> None:
    """Letters, digits, dots, dashes and underscores make an id, as long as it does not look like an attempt's."""
    assert check_rollout_id(text) == text


@pytest.mark.parametrize("text", ["Agent", "a.b", "manifest.json", "-a", "a" * 64])
def test_a_name_that_could_collide_or_be_taken_for_a_file_is_refused(text: str) -> None:
    """Upper case would collide on some file systems, and a dot would blur kind and name."""
    with pytest.raises(InvalidName):
        ProcessName("agent", text, "p0")


@pytest.mark.parametrize("field", ["kind", "name", "process"])
@pytest.mark.fault(58)
def test_no_part_of_a_process_name_reaches_a_key_unchecked(field: str) -> None:
    """Each of the three names of a process is refused by itself."""
    for text in HOSTILE:
        with pytest.raises(InvalidName):
            ProcessName(**{"kind": "agent", "name": "solver", "process": "p0", field: text})


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (1, -1, 0), (1, 0, 10**18), (1.0, 0, 0), (True, 0, 0), ("1", 0, 0)])
def test_a_life_of_anything_but_counts_is_refused(numbers: tuple[Any, Any, Any]) -> None:
    """Numbers that could not be parsed back never make a life."""
    with pytest.raises(InvalidName):
        Life("r", *numbers)


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (-1, 1), (1, 10**18), ("../x", 1), (1, True)])
def test_a_checkpoint_id_of_anything_but_positive_counts_is_refused(numbers: tuple[Any, Any]) -> None:
    """Numbers that could not be parsed back, or that would be a path, never make a checkpoint id."""
    with pytest.raises(InvalidName):
        CheckpointId(*numbers)


@given(IDS, NUMBERS, NUMBERS, NUMBERS)
def test_a_life_is_read_back_from_its_written_form(rollout_id: str, epoch: int, attempt: int, n: int) -> None:
    """Parsing the text of a life gives the life."""
    life = Life(rollout_id, epoch, attempt, n)
    assert Life.parse(str(life)) == life


@given(CHECKPOINTS)
def test_a_checkpoint_id_is_read_back_from_its_written_form(checkpoint: CheckpointId) -> None:
    """Parsing the text of an id gives the id, and every key of it leads back to it."""
    process = ProcessName("agent", "solver", "p0")
    keys = [aggregate_key(checkpoint), participant_key(checkpoint, process), index_key(checkpoint, process, "ab" * 32)]
    assert CheckpointId.parse(str(checkpoint)) == checkpoint
    assert [parse_checkpoint_key(key) for key in keys] == [checkpoint] * 3


@pytest.mark.parametrize(
    "text", ["", "r", "r/1.0", "r/1.0#", "r/01.0#0", "r/1.0#-1", "r/1.0#0 ", "r/1.0#0\n", "../r/1.0#0", "r-a1/1.0#0"]
)
def test_what_is_not_exactly_a_life_is_refused(text: str) -> None:
    """A life has one written form, and no other text passes for it."""
    with pytest.raises(InvalidName):
        Life.parse(text)


@pytest.mark.parametrize(
    "text", ["", "1", "1.", "0.1", "1.0", "01.1", "1.1.1", "1.1\n", "-1.1", "1.1/..", f"1.{10**18}"]
)
def test_what_is_not_exactly_a_checkpoint_id_is_refused(text: str) -> None:
    """A checkpoint id has one written form, and no other text passes for it."""
    with pytest.raises(InvalidName):
        CheckpointId.parse(text)


@given(POSITIVES.filter(lambda n: n < 10**12))
def test_an_entry_key_is_read_back(n: int) -> None:
    """The number of a chain entry is read back from its key, and keys sort as numbers do."""
    assert parse_entry_key(entry_key(n)) == n
    assert n + 1 == 10**12 or entry_key(n) < entry_key(n + 1)


@given(CHECKPOINTS, NUMBERS)
def test_a_blob_key_is_read_back(checkpoint: CheckpointId, size: int) -> None:
    """Digest and writer of a blob are read back from its key."""
    assert parse_blob_key(BlobRef(SHA, checkpoint, size).key) == (SHA, checkpoint)


@pytest.mark.parametrize(
    "key",
    [f"blobs/{SHA}.1.1", f"blobs/cd/{SHA}.1.1", f"blobs/ab/{SHA}", f"blobs/ab/x/{SHA}.1.1", f"blobs/ab/{SHA}.0.1", "x"],
)
def test_a_key_below_blobs_that_is_not_ours_is_none_of_ours(key: str) -> None:
    """What somebody else put there is told apart, so that nothing deletes or reads it."""
    assert parse_blob_key(key) is None


@pytest.mark.parametrize("key", ["checkpoints/1.1", "checkpoints/x/y", "checkpoints/1/y", "checkpoints/../x"])
def test_a_key_below_checkpoints_that_is_not_ours_is_none_of_ours(key: str) -> None:
    """What somebody else put there is told apart."""
    assert parse_checkpoint_key(key) is None


@pytest.mark.parametrize("key", ["chain/1.json", "chain/000000000001.json.tmp", "chain/00000000000a.json", "x"])
def test_a_key_below_chain_that_is_not_ours_is_none_of_ours(key: str) -> None:
    """What somebody else put there is no entry."""
    assert parse_entry_key(key) is None


@pytest.mark.parametrize("part", ["../x", "/x", "manifest.json", "00000-" + "0" * 16 + ".jsonl.zst/../../x"])
def test_a_part_key_is_never_made_of_anything_but_a_part_name(part: str) -> None:
    """The last check stands where the key is composed."""
    with pytest.raises(InvalidName):
        part_key(CheckpointId(1, 1), ProcessName("agent", "solver", "p0"), part)


def test_names_that_differ_in_case_alone_cannot_both_exist() -> None:
    """The rule for names has no upper case, so a file system that ignores case makes no two of them one."""
    assert re.fullmatch(NAME_RULE, "agent")
    assert not re.fullmatch(NAME_RULE, "AGENT")


def test_a_raw_record_is_not_given_to_another_rollout() -> None:
    """`with_life` changes the attempt of a rollout and never moves a payload from one rollout to another."""
    raw = RawRecord(Life("r", 1, 0, 0), b'{"life":"r/1.0#0","payload":1}')
    assert raw.with_life(Life("r", 2, 1, 5)).line == b'{"life":"r/2.1#5","payload":1}'
    with pytest.raises(InvalidRecord, match="another rollout"):
        raw.with_life(Life("s", 2, 1, 5))
