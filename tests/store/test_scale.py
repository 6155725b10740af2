"""Large inputs: huge strings, huge payloads, many rollouts, and a bomb of ten gigabytes; memory stays bounded."""

import tracemalloc

import pytest
import zstandard

from store import CorruptCheckpoint, InvalidRecord, Limits, Record, open_checkpoint
from store.frames import decompress
from store.limits import GIB, MIB
from store.values import parse_exactly
from tests.support.checkpoints import AGENT, life, records, store_with

pytestmark = [pytest.mark.scale, pytest.mark.anyio, pytest.mark.timeout(300)]


@pytest.mark.fault(61)
async def test_a_text_of_a_hundred_megabytes_is_read_back_exactly_or_refused() -> None:
    """Within the limit of a record it survives to the last character; above, it is refused by name."""
    text = "\N{GREEK SMALL LETTER ALPHA}x" * (33 * MIB)
    store = await store_with({AGENT: [Record(life("big"), {"text": text})]}, limits=Limits())
    async with (await open_checkpoint(store)).records() as found:
        assert (await anext(found)).payload["text"] == text
    with pytest.raises(InvalidRecord, match=r"big.*and the limit is 134217728"):
        await store_with({AGENT: [Record(life("big"), [text, text])]}, limits=Limits())


@pytest.mark.fault(61)
def test_a_hostile_line_of_a_hundred_megabytes_is_refused_and_does_not_crash() -> None:
    """Brackets, digits and a string without an end, each as long as a record may be."""
    for line in (b"[" * (100 * MIB), b"9" * (100 * MIB), b'"' + b"x" * (100 * MIB), b"\x00" * (100 * MIB)):
        with pytest.raises(CorruptCheckpoint) as caught:
            parse_exactly(line, "the record")
        assert len(str(caught.value)) < 1000


@pytest.mark.fault(60)
@pytest.mark.parametrize("announced", [True, False])
def test_a_bomb_of_ten_gigabytes_is_refused_in_flat_memory(announced: bool) -> None:
    """Ten gigabytes in less than a megabyte are refused before they are unpacked."""
    packer = zstandard.ZstdCompressor(level=3, write_content_size=announced).compressobj(
        size=10 * GIB if announced else -1
    )
    piece = bytes(64 * MIB)
    packed = b"".join(packer.compress(piece) for _ in range(160)) + packer.flush()
    assert len(packed) < 2 * MIB
    tracemalloc.start()
    for claimed in (1000, 10 * GIB - 1, MIB):
        with pytest.raises(CorruptCheckpoint):
            decompress(packed, claimed, "part")
    assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    tracemalloc.stop()


async def test_tens_of_thousands_of_rollouts_are_found_one_by_one() -> None:
    """A checkpoint of 40 000 rollouts opens, verifies and gives out any single one by reading one frame."""
    store = await store_with({AGENT: records(40_000, turns=1)}, limits=Limits())
    checkpoint = await open_checkpoint(store)
    await checkpoint.verify()
    for n in (0, 12_345, 39_999):
        [raw] = (await checkpoint.rollout(f"r{n}")).values()
        assert raw.parse() == records(1, start=n, turns=1)[0]
    assert len(checkpoint.processes[0].manifest.parts) < 10
