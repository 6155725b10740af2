"""A disk that is full: servers are ended all the same, and what went wrong is what is told."""

import errno
import os
from pathlib import Path

import anyio
import pytest

from orchestrator.deployment import Deployment, NotWritten
from orchestrator.deployment.processes import kill_marked
from orchestrator.deployment.state import STATE, replace_file
from tests.support.standin import COMMAND

from .test_deployment import Events, fleet, living, read

pytestmark = [pytest.mark.process, pytest.mark.anyio]


def fill(folder: Path, name: str) -> None:
    """The next write of a file finds no space left, as the kernel says it."""
    folder.mkdir(exist_ok=True)
    (folder / f".{name}.{os.getpid()}.tmp").symlink_to("/dev/full")


def test_a_write_that_fails_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    """The file stays as it was."""
    replace_file(tmp_path / "file", b"before")
    fill(tmp_path, "file")
    with pytest.raises(OSError, match="No space left") as failed:
        replace_file(tmp_path / "file", b"after")
    assert failed.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


async def test_the_end_of_a_fleet_needs_no_space(tmp_path: Path) -> None:
    """Every server is ended, an event says that the state was not written, and the folder is free for the next one."""
    events: Events = []
    async with fleet(tmp_path, events) as deployment:
        await deployment.start()
        fill(deployment.folder, STATE)
        assert await deployment.stop() == []
        assert await living(deployment) == {}
        [told] = [facts["message"] for name, facts in events if name == "state_not_written"]
        assert "No space left on device" in told
        config, table = await read(tmp_path)
        async with Deployment(config, table, command=COMMAND) as following:
            await following.start()
            assert await following.unanswering() == {}


async def test_a_full_disk_at_the_end_does_not_hide_why_it_ended(tmp_path: Path) -> None:
    """The error of the block comes out, and nothing is left; the fixture looks for it."""

    async def fail() -> None:
        async with fleet(tmp_path) as deployment:
            await deployment.start()
            fill(deployment.folder, STATE)
            raise RuntimeError("what really went wrong")

    with pytest.raises(RuntimeError, match="what really went wrong"):
        await fail()


@pytest.mark.parametrize("name", ["token", STATE, "agent.main.json"])
async def test_a_fleet_that_cannot_be_written_down_is_not_started(tmp_path: Path, name: str) -> None:
    """Whichever file it is: the folder and the reason are named, and what was started by then is ended."""
    async with fleet(tmp_path) as deployment:
        await anyio.to_thread.run_sync(fill, deployment.folder, name)
        with pytest.raises(NotWritten, match=r"fleet cannot be written: .*No space left on device.* Make room there"):
            await deployment.start()
        assert await living(deployment) == {}


async def test_a_lock_is_free_after_a_start_that_failed(tmp_path: Path) -> None:
    """The same command can be run again in the same process."""
    config, table = await read(tmp_path)
    await anyio.to_thread.run_sync(fill, Path(table.folder), "token")
    for _ in range(2):
        async with Deployment(config, table, command=COMMAND) as deployment:
            try:
                await deployment.start()
            except NotWritten:
                continue
            assert await deployment.unanswering() == {}
    assert await anyio.to_thread.run_sync(kill_marked, Path(table.folder)) == {}
