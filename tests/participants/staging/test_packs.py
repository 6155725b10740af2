"""Staged tokens are read back as written or refused; keys are parsed, never used as paths."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.staging import Entry, Identity, Key, PromptRef, Reason, StagingRefused, digest_of_ids
from participants.staging.packs import (
    as_ids,
    decode_entry,
    encode_entry,
    encode_pack,
    entry_bytes,
    grouped,
    ids_bytes,
    ids_from_bytes,
)
from tests.support.checkpoints import life

from .made import SMALL, entry

pytestmark = pytest.mark.unit

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(IDS, st.text(min_size=1, max_size=200), st.integers(0, 10**6))
def test_an_entry_is_read_back_as_written(ids: list[int], call: str, prompt_count: int) -> None:
    """Whatever the ids and the name of the call, and within the size that is reckoned with."""
    made = Entry(Identity(life("r1", 3, 2, 1), call), PromptRef(prompt_count, "a" * 64), as_ids(ids))
    data = encode_entry(made)
    assert decode_entry(data) == made
    assert len(data) <= entry_bytes(len(ids))


@given(IDS)
def test_the_digest_is_over_little_endian_ids_in_their_order(ids: list[int]) -> None:
    """Bytes and ids are one to one, and another order of different ids has another digest."""
    data = ids_bytes(ids)
    assert data == b"".join(each.to_bytes(4, "little") for each in ids)
    assert list(ids_from_bytes(data)) == ids
    assert (digest_of_ids(ids) == digest_of_ids(ids[::-1])) == (ids == ids[::-1])


def test_every_damaged_byte_is_found() -> None:
    """Each byte changed, each shorter length, and what is no entry at all are `damaged`."""
    data = encode_entry(entry())
    damaged = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    for wrong in [*damaged, *(data[:end] for end in range(len(data))), data + b"\0", b""]:
        with pytest.raises(StagingRefused) as refused:
            decode_entry(wrong)
        assert refused.value.reason is Reason.DAMAGED


@pytest.mark.parametrize(
    "header",
    [b"[]", b"{}", b"x", b'{"life":"r1/1.0#0","call":7,"prompt":[1,"' + b"a" * 64 + b'"],"count":0,"digest":""}'],
)
def test_a_header_of_another_make_is_damage(header: bytes) -> None:
    """An entry whose checksum is right and whose header is not ours is `damaged` too."""
    rest = header + b"\n"
    with pytest.raises(StagingRefused) as refused:
        decode_entry(b"MFT1" + hashlib.sha256(rest).digest() + rest)
    assert refused.value.reason is Reason.DAMAGED


@pytest.mark.parametrize(
    "text",
    ["", "x", "0" * 32, "0" * 31 + ".0.1", "0" * 32 + ".0.0", "0" * 32 + ".-1.5", "../" + "0" * 32 + ".0.1",
     "0" * 32 + ".00.1", "G" * 32 + ".0.1", "0" * 32 + ".0.1\n", "0" * 32 + ".0." + "9" * 10],
)  # fmt: skip
def test_what_is_no_key_names_nothing(text: str) -> None:
    """Anything but the one written form is `unknown_key`."""
    with pytest.raises(StagingRefused) as refused:
        Key.parse(text)
    assert refused.value.reason is Reason.UNKNOWN_KEY


@given(st.lists(st.integers(1, 3_000), max_size=30))
def test_packs_hold_every_prefix_once_and_keep_to_their_size(counts: list[int]) -> None:
    """Groups are the positions in order; one of several prefixes is within the size of a pack."""
    groups = grouped(counts, SMALL)
    assert [position for group in groups for position in group] == list(range(len(counts)))
    assert all(group for group in groups)
    sizes = [sum(entry_bytes(counts[position]) for position in group) for group in groups if len(group) > 1]
    assert all(size <= SMALL.pack_bytes for size in sizes)


def test_the_keys_of_a_pack_find_its_entries() -> None:
    """Each key cuts exactly its entry out of the pack."""
    made = [entry(n, 1 + n) for n in range(5)]
    data, keys = encode_pack("f" * 32, made)
    assert [decode_entry(data[key.offset : key.offset + key.length]) for key in keys] == made
    assert [Key.parse(str(key)) for key in keys] == keys
