"""A difference says of every rollout, participant, field and blob what became of it between two checkpoints."""

import hashlib
import tracemalloc
from typing import Any

import pytest

from store import (
    CheckpointId,
    CorruptCheckpoint,
    Difference,
    Life,
    NoCheckpoint,
    ProcessName,
    Record,
    Segment,
    Store,
    claim,
    diff_checkpoints,
)
from store.diff import Amount, Blobs, Field, Rollouts, compare_rollouts, digest_record
from store.records import RawRecord
from tests.support.checkpoints import (
    AGENT,
    SMALL_PARTS,
    TOOLS,
    Shares,
    life,
    memory_store,
    publish,
    records,
    store_with,
)

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

A, B = CheckpointId(1, 1), CheckpointId(1, 2)


def payload(name: str, size: int = 100) -> bytes:
    return hashlib.shake_256(name.encode()).digest(size)


async def two(first: Shares, second: Shares, a: dict[str, Any] | None = None, b: dict[str, Any] | None = None) -> Store:
    store = memory_store()
    async with claim(store) as controller:
        await publish(store, controller, first, **(a or {}))
        await publish(store, controller, second, **(b or {}))
    return store


async def the_difference(*args: Any, **kwargs: Any) -> Difference:
    return await diff_checkpoints(await two(*args, **kwargs), A, B)


async def test_a_checkpoint_does_not_differ_from_itself() -> None:
    """Every rollout is the same, and nothing else is listed as different."""
    store = await store_with({AGENT: records(5)}, state={"x": 1})
    found = await diff_checkpoints(store, "head", A)
    assert found.rollouts == Rollouts((), (), ("r0", "r1", "r2", "r3", "r4"), (), ())
    assert (found.fingerprint, found.output, found.state_changed) == ((), (), False)
    assert found.blobs == Blobs(Amount(0, 0), Amount(0, 0), Amount(0, 0))


async def test_rollouts_are_sorted_by_what_became_of_them() -> None:
    """Gone, new, unchanged, gone on, and restored under a new life."""
    restored = Record(Life("r4", 1, 1, 9), {"step": 3})
    went_on = Record(life("r3", n=3), {"step": 4})
    found = await the_difference(
        {AGENT: records(5), TOOLS: [Record(life("r1", n=1), 1)]},
        {AGENT: [*records(2, start=1), went_on, restored, *records(1, start=5)], TOOLS: [Record(life("r1", n=1), 2)]},
    )
    assert found.rollouts == Rollouts(
        only_a=("r0",), only_b=("r5",), same=("r2",), changed=("r1", "r3"), new_life=("r4",)
    )


async def test_a_record_that_moved_to_another_process_is_the_same() -> None:
    """Which worker holds a session says nothing about the rollout; another participant does."""
    elsewhere, other = ProcessName("agent", "solver", "p7"), ProcessName("agent", "judge", "p0")
    assert (await the_difference({AGENT: records(2)}, {elsewhere: records(2)})).rollouts.same == ("r0", "r1")
    assert (await the_difference({AGENT: records(2)}, {other: records(2)})).rollouts.changed == ("r0", "r1")


async def test_blobs_are_compared_by_content() -> None:
    """The same bytes written again, or reused from the parent, are shared; a record that names them is the same."""
    first = [Record(life("r0"), {"old": payload("old"), "kept": payload("kept")})]
    second = [Record(life("r0"), {"kept": payload("kept"), "new": payload("new", 150)})]
    found = await the_difference({TOOLS: first}, {TOOLS: second})
    assert found.blobs == Blobs(only_a=Amount(1, 100), only_b=Amount(1, 150), shared=Amount(1, 100))


def test_the_writer_of_a_blob_is_not_content() -> None:
    """Two lines that name one content under two writers have one digest; other content, or a look-alike, has not."""

    def digest(line: str) -> int:
        return digest_record(AGENT, RawRecord(life("r0"), line.encode()))

    line = '{"life":"r0/1.0#0","escaped":true,"payload":{"$blob":{"sha256":"%s","written_by":"%s","size":3}}}'
    assert digest(line % ("a" * 64, "1.1")) == digest(line % ("a" * 64, "2.7"))
    assert digest(line % ("a" * 64, "1.1")) != digest(line % ("b" * 64, "1.1"))
    text = '{"life":"r0/1.0#0","escaped":true,"payload":[{"$bytes":""},"written_by %s"]}'
    assert digest(text % "1.1") != digest(text % "2.7")


async def test_participants_come_and_go_with_their_records_and_bytes() -> None:
    """Each is listed with what it had on both sides, its processes taken together."""
    second_process = ProcessName("agent", "solver", "p1")
    found = await the_difference(
        {AGENT: records(2), second_process: records(1, start=2)}, {TOOLS: [Record(life("r0"), 1)]}
    )
    [agent, tools] = found.participants
    assert (agent.name, tools.name) == ("agent.solver", "resources.tools")
    assert (agent.a and agent.a.count, agent.b) == (3, None)
    assert (tools.a, tools.b and tools.b.count) == (None, 1)
    assert agent.a is not None
    assert agent.a.bytes > 100


async def test_fingerprint_state_and_output_are_compared_by_field() -> None:
    """A field on one side only counts as different, and equal ones are left out."""
    found = await the_difference(
        {},
        {},
        {"fingerprint": {"data": "x", "code": "1"}, "state": {"n": 1}, "output": [Segment(name="rows", length=10)]},
        {
            "fingerprint": {"data": "y", "code": "1", "more": "2"},
            "state": {"n": 2},
            "output": [Segment(name="rows", length=30)],
        },
    )
    assert found.fingerprint == (Field("data", "x", "y"), Field("more", None, "2"))
    assert found.output == (Field("rows", 10, 30),)
    assert found.state_changed


@pytest.mark.parametrize(
    "value", [None, 1, {"n": b"1"}, {"n": payload("p")}, "x" * 400_000, ["x" * 400_000, payload("p")]]
)
async def test_an_unchanged_state_is_the_same_wherever_it_is_kept(value: Any) -> None:
    """Inline, with bytes, with a blob, and in a blob of its own."""
    assert not (await the_difference({}, {}, {"state": value}, {"state": value})).state_changed
    assert (await the_difference({}, {}, {"state": value}, {"state": {"other": 1}})).state_changed


async def test_damage_on_either_side_is_damage() -> None:
    """Nothing is compared with what cannot be trusted."""
    store = await two({AGENT: records(2)}, {AGENT: records(2)})
    await store.backend.delete(["checkpoints/1.2/manifest.json"])
    with pytest.raises(CorruptCheckpoint):
        await diff_checkpoints(store, A, B)
    with pytest.raises(NoCheckpoint):
        await diff_checkpoints(store, A, CheckpointId(9, 9))


async def test_memory_does_not_grow_with_the_size_of_records() -> None:
    """Ten times the bytes in as many records take about the same memory: only digests are kept."""

    async def peak(size: int) -> int:
        share = [Record(life(f"r{n}", n=n), payload(f"{n}", size).hex()) for n in range(100)]
        store = await two({AGENT: share}, {AGENT: share})
        tracemalloc.start()
        try:
            await diff_checkpoints(store, A, B)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert SMALL_PARTS.frame_bytes < 1000
    assert await peak(10_000) < await peak(1_000) + 1_000_000


async def test_progress_counts_records_of_both_sides() -> None:
    """A progress bar can be filled from the manifests' counts."""
    store = await two({AGENT: records(3)}, {AGENT: records(4)})
    seen: list[int] = []
    await diff_checkpoints(store, A, B, seen.append)
    assert sum(seen) == 7


def test_a_rollout_without_a_record_is_compared_by_its_life() -> None:
    """A scope may name rollouts that no participant has state of."""
    a, b = {"x": life("x"), "y": life("y")}, {"x": life("x"), "y": life("y", 2)}
    assert compare_rollouts(a, b, {}, {}) == Rollouts((), (), ("x",), (), ("y",))
