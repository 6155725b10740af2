"""Folders of the verifiers of programs: gone after use, and after a process that was killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from participants.verifiers.scratch import scratch_folder
from participants.workfolder import Place

HOLDS = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
import anyio
from participants.verifiers.scratch import scratch_folder

async def main():
    async with scratch_folder() as folder:
        (folder / "program").write_text("x")
        print(folder, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.unit
@pytest.mark.anyio
async def test_a_folder_is_gone_after_use() -> None:
    """With all that is in it; two at once are two."""
    async with scratch_folder() as folder, scratch_folder() as other:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("x", encoding="utf-8")
        assert list(other.iterdir()) == []
    assert not folder.exists()
    assert not other.exists()


@pytest.mark.process
def test_what_a_killed_process_left_is_removed_and_what_a_live_one_has_is_not(tmp_path: Path) -> None:
    """By whoever comes next; a lock tells the two apart, not a number of a process."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as live,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed,
    ):
        assert live.stdout is not None
        assert killed.stdout is not None
        kept, left = Path(live.stdout.readline().strip()), Path(killed.stdout.readline().strip())
        killed.kill()
        killed.wait()
        assert left.exists()
        Place(left.parents[1]).close()
        assert (kept / "program").exists()
        assert not left.parent.exists()
        live.kill()
