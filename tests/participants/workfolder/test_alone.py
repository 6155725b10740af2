"""A server that is killed, one without rights, and one that holds more than memory: each in a process of its own."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from participants.servers import ShellServer
from tests.participants.resources.harness import Caller
from tests.support.waiting import until
from tests.tidy.tree import ROOT

pytestmark = pytest.mark.process

COUNT, MIB = 12, 40
COMMIT_MIB, RESTORE_MIB = 64, 128
"""What a commit may have read and not written, and a restore read and not imported."""
ELSE_MIB = 110
"""Threads, buffers and what the allocator keeps."""


@pytest.fixture
def root() -> Iterator[Path]:
    """One that other users can reach."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        os.chmod(path, 0o711)
        yield Path(path)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.participants.workfolder.alone", *map(str, arguments)]


def running_in(folder: str) -> list[str]:
    """Processes whose working folder is this one or one that was."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                found.append(os.readlink(each / "cwd"))
            except OSError:
                continue
    return [path for path in found if path.startswith(folder)]


@pytest.mark.timeout(120)
def test_a_killed_server_leaves_no_process_and_the_next_one_removes_its_folders(root: Path) -> None:
    """While one of its commands runs, with a child in a session of its own."""
    work = root / "work"
    with subprocess.Popen(command("serve", work), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        until((folder / "begun").exists)
        anyio.run(come_and_go, work)
        assert folder.exists()
        os.kill(process.pid, signal.SIGKILL)
    until(lambda: not running_in(str(folder)))
    assert (folder / "begun").exists()
    anyio.run(come_and_go, work)
    assert [path.name for path in work.iterdir()] == [".lock"]


async def come_and_go(work: Path) -> None:
    """Another server of the same root begins a session, and ends."""
    server = ShellServer(root=str(work))
    await Caller(server)("/seed_session", {"files": {}})
    await server.aclose()


def test_a_folder_that_its_owner_may_not_read_is_exported_all_the_same(root: Path) -> None:
    """By a server that is not root, which such permissions would stop."""
    found = subprocess.run(command("locked", root), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.split()) == (0, ["0o300", "0o300"]), found.stderr


@pytest.mark.timeout(180)
def test_what_sessions_hold_is_never_in_memory_all_together(root: Path) -> None:
    """Neither while a checkpoint is written nor while it is restored, with sessions of 480 MiB in sum."""
    (root / "store").mkdir()
    found = subprocess.run(command("memory", root, COUNT, MIB), cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    written, restored = map(int, found.stdout.split())
    assert written < COMMIT_MIB + ELSE_MIB < COUNT * MIB / 2
    assert restored < RESTORE_MIB + ELSE_MIB
