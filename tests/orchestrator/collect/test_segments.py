"""Segments keep rows durable and in order of epochs; the merge is in the order of the input."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from orchestrator.collect import AnotherWriter, Line, Segments, open_segments, plan_rollouts
from orchestrator.collect.merge import WINDOW, failures_url, write_output
from orchestrator.collect.segments import Header, Kept, Writer, count_failures, final_lines
from store import CorruptCheckpoint, NotFound, open_backend

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.fixture
async def segments(tmp_path: Path) -> AsyncIterator[Segments]:
    """Those of a run."""
    opened = await open_segments(str(tmp_path / "out.jsonl"), "run")
    yield opened
    await opened.aclose()


def line(rollout_id: str, reward: float = 1.0, *, failed: bool = False, final: bool = True, epoch: int = 1) -> Line:
    """A line of one rollout."""
    return Line(rollout_id, f"{rollout_id}/{epoch}.0#0", {"reward": reward}, failed=failed, final=final)


async def write(segments: Segments, epoch: int, *batches: list[Line]) -> Writer:
    """A segment with a header and these chunks."""
    writer = Writer(segments, epoch)
    await writer.begin(Header({"model": "m"}))
    for batch in batches:
        await writer.append(batch)
    return writer


async def test_a_segment_reads_back_as_it_was_written(segments: Segments) -> None:
    """Header, lines with their places, and length; many chunks are read ahead and stay in order."""
    batches = [[line(f"r{n}"), line(f"s{n}", failed=True, final=False)] for n in range(40)]
    writer = await write(segments, 3, *batches)
    found = await segments.read(3)
    assert found.header == Header({"model": "m"})
    assert [kept.rollout_id for kept in found.lines] == [each.rollout_id for batch in batches for each in batch]
    assert (found.lines, found.length, found.chunks) == (writer.lines, writer.length, 41)
    assert await segments.row(found.lines[5]) == {"reward": 1.0}
    assert (await segments.epochs(), await segments.rivals()) == ([3], [])


async def test_rows_past_a_sealed_length_do_not_count(segments: Segments) -> None:
    """A fenced writer may add what it likes behind the seal."""
    writer = await write(segments, 1, [line("a")])
    sealed = writer.length
    await writer.append([line("b")])
    assert [kept.rollout_id for kept in (await segments.read(1, sealed)).lines] == ["a"]
    assert (await segments.read(1, 0)).lines == []


async def test_two_writers_of_one_segment_collide_loudly(segments: Segments) -> None:
    """Without a claim to tell them apart, the second one is refused by its chunk, and nothing is overwritten."""
    await write(segments, 0, [line("a")])
    second = Writer(segments, 0)
    await second.begin(Header({"model": "m"}))
    with pytest.raises(AnotherWriter, match=r"another collector writes .*Let one of them end"):
        await second.append([line("b")])
    assert [kept.rollout_id for kept in (await segments.read(0)).lines] == ["a"]


async def test_what_could_not_be_written_is_not_counted(segments: Segments) -> None:
    """The length is that of what is durable: a checkpoint that is taken after a failure names no more."""
    await write(segments, 1, [line("a")])
    second = Writer(segments, 1)
    await second.begin(Header({"model": "m"}))
    before = second.length
    with pytest.raises(AnotherWriter):
        await second.append([line("b")])
    assert (second.length, second.lines) == (before, [])


async def test_failures_before_a_retry_count_no_more(segments: Segments) -> None:
    """A header that says so takes the failures before it out; rows stay."""
    writer = await write(segments, 0, [line("a"), line("b", failed=True)])
    await writer.begin(Header({}, retry_failed=True))
    await writer.append([line("b")])
    found = await segments.read(0)
    assert [(kept.rollout_id, kept.failed) for kept in found.lines] == [("a", False), ("b", False)]


async def test_the_attempts_that_cohorts_have_used_up_outlast_a_retry(segments: Segments) -> None:
    """A later start gives them a later one: an earlier one is superseded, and would fail without being compared."""
    facts = {"_ng_failure_class": "judge_failed"}
    failure = Line("r1", "r1/1.0#0", facts, failed=True, final=True)
    writer = await write(segments, 1, [failure])
    await writer.begin(Header({}, retry_failed=True))
    lines = (await segments.read(1)).lines
    assert (count_failures(lines), final_lines(lines)) == ({}, {})
    assert [each.why for each in lines] == ["judge_failed"]


async def test_damage_in_a_segment_is_named(segments: Segments, tmp_path: Path) -> None:
    """A chunk that is not JSON is an error that names it, never a row less."""
    await write(segments, 1, [line("a")])
    path = tmp_path / "out.jsonl.segments" / "run" / "1" / "00000001.jsonl"
    path.write_bytes(path.read_bytes()[:-9] + b"\n")
    with pytest.raises(CorruptCheckpoint, match=r"run/1/00000001\.jsonl"):
        await segments.read(1)


@pytest.mark.parametrize(
    "damaged", [b"x", b"[]", b"{}", b'{"header": 1}', b'{"rollout_id": "a", "life": 1, "failed": false, "final": true}']
)
async def test_the_hint_of_a_damaged_segment_says_what_helps_a_run(
    segments: Segments, tmp_path: Path, damaged: bytes
) -> None:
    """Its whole path, a copy, or a fresh start; no checkpoint can take its place."""
    await write(segments, 1, [line("a")])
    path = tmp_path / "out.jsonl.segments" / "run" / "1" / "00000001.jsonl"
    path.write_bytes(damaged + b"\n")
    with pytest.raises(
        CorruptCheckpoint, match=r"Put this file back from a copy .* or start anew with --fresh"
    ) as told:
        await segments.read(1)
    assert str(path) in str(told.value)
    assert "verify" not in str(told.value)


async def test_what_stood_half_written_at_a_start_can_be_removed_at_its_end(segments: Segments, tmp_path: Path) -> None:
    """Temporary files, and objects of a probe that was killed; rows stay, and so does what came later."""
    folder = tmp_path / "out.jsonl.segments"
    await write(segments, 1, [line("a")])
    (folder / "alive").mkdir(exist_ok=True)
    for path in (folder / "run" / "1" / ".x.1.tmp", folder / "alive" / "probe-1"):
        path.touch()
    left = await segments.leftovers()
    (folder / "run" / "1" / ".y.2.tmp").touch()
    await segments.remove(left)
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        ".y.2.tmp",
        "00000000.jsonl",
        "00000001.jsonl",
    ]


async def test_the_run_of_the_last_fresh_start_owns_the_output(segments: Segments) -> None:
    """Rows of two runs are rivals until a fresh start of one puts the other's aside; a later one turns it round."""
    other = segments.of("other")
    await write(segments, 1, [line("a")])
    assert (await segments.rivals(), await other.rivals()) == ([], ["run"])
    await other.put_others_aside()
    await write(other, 1, [line("a")])
    assert (await segments.rivals(), await other.rivals()) == (["other"], [])
    await segments.put_others_aside()
    assert (await segments.rivals(), await other.rivals()) == ([], ["run"])


async def test_the_first_final_line_decides_and_failures_are_counted() -> None:
    """A failure that is tried again decides nothing."""
    lines = [line("a", failed=True, final=False), line("a", 0.5), line("a", 0.7), line("b", failed=True)]
    kept = [Kept(x.rollout_id, x.life, x.failed, x.final, "key", place, 1) for place, x in enumerate(lines)]
    assert {rollout: each.start for rollout, each in final_lines(kept).items()} == {"a": 1, "b": 3}
    assert count_failures(kept) == {"a": 1, "b": 1}


async def test_the_output_is_in_input_order_and_has_the_keys_of_nemo_gym(segments: Segments, tmp_path: Path) -> None:
    """Whatever the order of finishing, over several windows; failures go to a file of their own; again is the same."""
    rollouts = {r.rollout_id: r for r in plan_rollouts([{"n": n} for n in range(WINDOW)], 2)}
    ids = list(rollouts)
    facts = Line(ids[0], f"{ids[0]}/1.0#0", {"_ng_failure_class": "timeout"}, failed=True, final=False)
    writer = await write(segments, 1, [facts], [line(rollout_id) for rollout_id in reversed(ids)])
    url = str(tmp_path / "out.jsonl")
    failures = [kept for kept in writer.lines if kept.failed]
    await write_output(url, segments, final_lines(writer.lines), failures, rollouts)
    before = (tmp_path / "out.jsonl").read_bytes()
    rows = [json.loads(each) for each in before.splitlines()]
    assert [row["_ng_rollout_id"] for row in rows] == ids
    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows[:3]] == [(0, 0), (0, 1), (1, 0)]
    [failed] = [json.loads(each) for each in (tmp_path / "out_failures.jsonl").read_bytes().splitlines()]
    assert failed["_ng_failure_class"] == "timeout"
    assert await write_output(url, segments, final_lines(writer.lines), failures, rollouts) == 1.0
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert [path async for path in anyio.Path(tmp_path).glob(".*")] == []


async def test_an_output_in_an_object_store_is_put_as_one_object(segments: Segments) -> None:
    """The same rows reach a store that takes objects whole."""
    rollouts = {r.rollout_id: r for r in plan_rollouts([{"n": 1}], 1)}
    writer = await write(segments, 1, [line(next(iter(rollouts)))])
    await write_output("memory://merged/out.jsonl", segments, final_lines(writer.lines), [], rollouts)
    opened = await open_backend("memory://merged", writable=False)
    assert json.loads(await opened.backend.get("out.jsonl", max_bytes=1000))["reward"] == 1.0


@pytest.mark.parametrize("storage", ["disk", "memory"])
async def test_failures_of_an_earlier_merge_go_where_there_are_none_any_more(
    segments: Segments, tmp_path: Path, storage: str
) -> None:
    """A merge without a failure removes the file of the one before, on a disk and in an object store."""
    folder = str(tmp_path) if storage == "disk" else "memory://stale"
    url = f"{folder}/out.jsonl"
    rollouts = {r.rollout_id: r for r in plan_rollouts([{"n": 1}], 1)}
    [rollout_id] = rollouts
    writer = await write(segments, 1, [line(rollout_id, failed=True)], [line(rollout_id)])
    failed, row = writer.lines
    opened = await open_backend(folder, writable=False)
    await write_output(url, segments, {rollout_id: failed}, [failed], rollouts)
    assert (await opened.backend.stat("out_failures.jsonl")).size > 0
    await write_output(url, segments, {rollout_id: row}, [], rollouts)
    with pytest.raises(NotFound):
        await opened.backend.stat("out_failures.jsonl")
    await opened.backend.aclose()


def test_the_failures_stand_beside_the_output() -> None:
    """`<stem>_failures.jsonl`, on any storage."""
    assert failures_url("s3://bucket/x.jsonl") == "s3://bucket/x_failures.jsonl"
    assert failures_url("rows") == "rows_failures.jsonl"
