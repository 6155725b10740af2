"""Whole rollouts at a shell, killed at every point: the row, reward included, is that of a run that nobody disturbs."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from participants.servers import ShellServer
from tests.support.checkpoints import memory_store
from tests.support.journal import Journal
from tests.support.scripted import scripted_row
from tests.support.shells import HandShell
from tests.support.world import Journaled, world

pytestmark = pytest.mark.anyio

SESSION = "resources-r0"
LARGE = 100_000
BY_HAND = ["write sub/a one", f"large big {LARGE}", "link out /etc"]
BY_SHELL = [
    "mkdir -p sub && echo one > sub/a && chmod 600 sub/a; sleep 1000 &",
    f"head -c {LARGE} /dev/zero | tr '\\0' b > big; mkfifo pipe; ln -s /etc out",
    "cat sub/a start > both; rm start; stat -c '%n %a %s' sub/a big > facts; exit 3",
]
WANTED_BY_HAND = {"sub/a": "one", "big": "b" * LARGE, "start": "here\n", "out": ""}
WANTED_BY_SHELL = {"both": "one\nhere\n", "facts": f"sub/a 600 4\nbig 644 {LARGE}\n", "start": None}
POINTS = [
    "before /seed_session 0",
    f"seed {SESSION}",
    "after /seed_session 0",
    "model r0 0",
    "before /run_command 0",
    f"tool {SESSION} run_command 0",
    "after /run_command 0",
    "model r0 1",
    f"tool {SESSION} run_command 1",
    "after /run_command 1",
    f"tool {SESSION} run_command 2",
    "after /run_command 2",
    "model r0 3",
    "before /verify 0",
    f"verify {SESSION}",
    "after /verify 0",
    "before /close_session 0",
    "after /close_session 0",
]


def row_of(commands: list[str], wanted: dict[str, Any], check: dict[str, Any]) -> dict[str, Any]:
    calls = [
        [{"type": "function_call", "call_id": f"c{n}", "name": "run_command", "arguments": json.dumps({"command": c})}]
        for n, c in enumerate(commands)
    ]
    row = scripted_row("r0", [*calls, "done"], tools=[ShellServer(root="unused").tools["run_command"].schema])
    return {**row, "files": {"start": "here\n"}, "expected_files": wanted, "check": check}


@pytest.fixture
def root() -> Iterator[Path]:
    """One that another user can reach, as a contained program of root's is; pytest's own folder is not."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o711)
        yield Path(path) / "root"


def at(kind: type[ShellServer], root: Path) -> Any:
    """The class, journaled, with its folders below the root."""

    class JournalShell(Journaled, kind):  # type: ignore[valid-type, misc]
        def __init__(self, journal: Journal) -> None:
            super().__init__(journal, root=str(root))

    return JournalShell


async def killed_at(kind: Any, row: dict[str, Any], point: str) -> None:
    store, journal = memory_store(), Journal()
    async with world(counter=kind) as undisturbed:
        await undisturbed.start({"r0": row})
        expected = (await undisturbed.results(1))["r0"].row
    async with world(store, journal, counter=kind) as one:
        kill = one.hold(point)
        await one.start({"r0": row})
        await one.checkpoint_at(kill, go_on=False)
    async with world(store, journal, counter=kind) as two:
        await two.start({"r0": row})
        await two.checkpoint()
        found = (await two.results(1))["r0"].row
        assert two.left() == {}
        await two.resources.aclose()
    assert expected is not None
    assert found == expected
    wrong = ["out"] if "out" in row["expected_files"] else []
    assert (expected["reward"], expected["wrong_files"]) == (float(not wrong), wrong)


@pytest.mark.enumerated(4)
@pytest.mark.unit
@pytest.mark.parametrize("point", POINTS[1::3])
@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
async def test_a_rollout_by_hand_comes_to_the_same_row(root: Path, point: str, right: bool) -> None:
    """A link is no file with text, so that what expects one there is a reward of 0.0, before and after a crash."""
    wanted = {path: text for path, text in WANTED_BY_HAND.items() if path != "out" or not right}
    row = row_of(BY_HAND, wanted, {"command": "count", "stdout": "5\n"})
    await killed_at(at(HandShell, root), row, point)


@pytest.mark.process
@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", POINTS)
async def test_a_rollout_at_a_real_shell_comes_to_the_same_row(root: Path, point: str) -> None:
    """With permissions, a fifo, a link out of the folder, and a process that does not outlive its call."""
    check = {"command": "test -p pipe && readlink out && stat -c %a sub/a", "stdout": "/etc\n600\n"}
    await killed_at(at(ShellServer, root), row_of(BY_SHELL, WANTED_BY_SHELL, check), point)
