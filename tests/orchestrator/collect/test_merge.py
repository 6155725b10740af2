"""The merged output is on the disk before anybody is told that the run is over."""

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.collect import plan_rollouts
from orchestrator.collect.merge import failures_url, write_output
from orchestrator.collect.segments import Line, Writer, final_lines, open_segments

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """Every sync and replacement from here on: what was done, the path, and the bytes that it then had."""
    log: list[tuple[str, str, int]] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(fd: int) -> None:
        fsync(fd)
        log.append(("fsync", os.readlink(f"/proc/self/fd/{fd}"), os.fstat(fd).st_size))

    def noted_replace(source: Any, target: Any, **where: Any) -> None:
        replace(source, target, **where)
        log.append(("replace", str(target), os.stat(target).st_size))

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    return log


async def test_an_output_is_synced_before_it_takes_its_place_and_its_folder_after(
    tmp_path: Path, synced: list[tuple[str, str, int]]
) -> None:
    """Output and failures alike: all bytes of the file, then the name, then the folder; else a power loss has rows."""
    rollouts = {rollout.rollout_id: rollout for rollout in plan_rollouts([{"n": 1}, {"n": 2}], 1)}
    first, second = rollouts
    segments = await open_segments(str(tmp_path / "out.jsonl"), "run")
    writer = Writer(segments, 1)
    failed = Line(second, f"{second}/1.0#1", {"_ng_failure_class": "timeout"}, failed=True)
    await writer.append([Line(first, f"{first}/1.0#0", {"reward": 1.0}), failed])
    del synced[:]
    output = str(tmp_path / "out.jsonl")
    await write_output(output, segments, final_lines(writer.lines), [writer.lines[1]], rollouts)
    await segments.aclose()
    for path in (Path(output), Path(failures_url(output))):
        size = path.stat().st_size
        place = synced.index(("replace", str(path), size))
        (before, _, written), (after, folder, _) = synced[place - 1], synced[place + 1]
        assert (before, written, after, folder) == ("fsync", size, "fsync", str(tmp_path))
