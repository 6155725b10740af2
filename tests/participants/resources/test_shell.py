"""The shell server around its commands: folders that come and go with sessions, checkpoints, and the reward."""

import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from participants import Code, ParticipantError
from participants.data import Reply
from participants.servers import ShellServer
from participants.workfolder import reading
from store import Life, RawRecord, claim
from tests.participants.workfolder.trees import facts
from tests.support.checkpoints import memory_store
from tests.support.shells import HandShell

from .harness import LIFE, NEXT, RESPONSE, Caller, checkpoint, restore
from .test_bytes import restored_at, round_at, round_of
from .test_plane import controlled

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LARGE = 100_000
ROW: dict[str, Any] = {"files": {"a.txt": "one\n", "sub/b.txt": "two"}, "expected_files": {"a.txt": "one\n"}}
COMMANDS = ["write c/d.txt three", f"large big {LARGE}", "link out /etc", "drop sub/b.txt"]
EXPECTED = {"a.txt": "one\n", "c/d.txt": "three", "sub/b.txt": None, "big": "b" * LARGE}
FULL_ROW = {**ROW, "expected_files": EXPECTED, "check": {"command": "count", "stdout": "6\n"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Below which folders lie."""
    return tmp_path / "root"


@pytest.fixture
async def server(root: Path) -> AsyncIterator[HandShell]:
    """One without a session."""
    made = HandShell(root=str(root))
    yield made
    await made.aclose()


def folders(root: Path) -> list[Path]:
    """Of all sessions and checks."""
    return [path for path in root.glob("server-*/*") if path.name != ".lock"]


async def run(call: Caller, *commands: str) -> None:
    for command in commands:
        reply = await call("/run_command", {"command": command})
        assert (reply.body["exit_code"], reply.body["ended"]) == (0, "exited"), command


async def begun(server: ShellServer, *commands: str, life: Life = LIFE, row: Any = ROW) -> Caller:
    call = Caller(server, life)
    await call("/seed_session", row)
    await run(call, *commands)
    return call


async def verified(call: Caller, row: Any) -> Reply:
    return await call("/verify", {**row, "response": RESPONSE})


async def refused(call: Caller, row: Any) -> None:
    with pytest.raises(ParticipantError) as error:
        await call("/seed_session", row)
    assert error.value.code is Code.INVALID_REQUEST


# A session and its folder


async def test_a_session_begins_with_the_rows_files_and_ends_with_its_folder(server: HandShell, root: Path) -> None:
    """Closing removes it; so does the next life, and a retire."""
    call = await begun(server)
    [folder] = folders(root)
    assert (folder / "sub/b.txt").read_text() == "two"
    await begun(server, life=Life("other", 1, 0, 0))
    await call("/close_session")
    assert [path.name[:5] for path in folders(root)] == ["other"]
    later = await begun(server, life=Life("other", 1, 0, 1))
    await run(later, "count")
    assert len(folders(root)) == 1
    await server.retire([Life("other", 1, 0, 1)], 5)
    assert folders(root) == []


@pytest.mark.parametrize(
    "files",
    [{"../x": ""}, {"/x": ""}, {"a": "", "a/b": ""}, {"": ""}, {"a/": ""}, {"a": 1}, ["a"], {"n" * 256: ""}],
    ids=repr,
)
async def test_a_row_with_files_that_cannot_be_is_refused(server: HandShell, root: Path, files: Any) -> None:
    """As the row's fault, with nothing left behind."""
    await refused(Caller(server), {"files": files})
    assert folders(root) == []
    assert not (root / "x").exists()


async def test_files_are_read_and_written_as_text_inside_the_folder(server: HandShell, root: Path) -> None:
    """A link or path that leads out is said no to, and the session goes on."""
    call = await begun(server, "link out /etc", "link pass /etc/passwd")
    assert (await call("/write_file", {"path": "new/file", "content": "é"})).body == {"written": True}
    assert (await call("/read_file", {"path": "new/file"})).body == {"content": "é"}
    for path in ("out/passwd", "pass", "../x", "none", "new"):
        assert (await call("/read_file", {"path": path})).status == 400
    for path in ("out/x", "pass", "a.txt/x"):
        body = (await call("/write_file", {"path": path, "content": "x"})).body
        assert body["written"] is False
    assert (await call("/write_file", {"path": "../x", "content": "x"})).status == 400
    assert (await call("/run_command", {"command": "count", "timeout_s": 0})).status == 400
    assert (await call("/run_command", {"command": "a\0b"})).status == 400
    assert (await call("/run_command", {"command": "a" * 131_072})).status == 400
    await run(call, "count")


# The reward


@pytest.mark.parametrize(
    ("wanted", "reward"),
    [
        ({"expected_files": {"a.txt": "one\n"}}, 1.0),
        ({"expected_files": {"a.txt": "one"}}, 0.0),
        ({"expected_files": {"a.txt": "one\n\n"}}, 0.0),
        ({"expected_files": {"a.txt": None}}, 0.0),
        ({"expected_files": {"gone": None, "sub/b.txt": "two"}}, 1.0),
        ({"expected_files": {"sub": None}}, 0.0),
        ({"expected_files": {"link": "one\n"}}, 0.0),
        ({"expected_files": {"link": None}}, 0.0),
        ({"check": {"command": "exit 0"}}, 1.0),
        ({"check": {"command": "exit 3"}}, 0.0),
        ({"check": {"command": "exit 3", "exit_code": 3}}, 1.0),
        ({"check": {"command": "count", "stdout": "4\n"}}, 1.0),
        ({"check": {"command": "count", "stdout": "5\n"}}, 0.0),
        ({"check": {"command": "exit 0"}, "expected_files": {"a.txt": "x"}}, 0.0),
    ],
    ids=str,
)
async def test_the_reward_is_all_or_nothing(server: HandShell, wanted: Any, reward: float) -> None:
    """The folder has a.txt, link to it, sub and sub/b.txt; every expectation must hold."""
    call = await begun(server, "link link a.txt")
    assert (await verified(call, {"files": {}, **wanted})).body["reward"] == reward


async def test_a_check_changes_nothing_and_leaves_no_copy(server: HandShell, root: Path) -> None:
    """It runs on a copy: the same verify a second time sees the same."""
    call = await begun(server)
    [folder] = folders(root)
    before = facts(folder)
    row = {**ROW, "check": {"command": "count", "stdout": "3\n"}}
    assert [(await verified(call, row)).body["reward"] for _ in range(2)] == [1.0, 1.0]
    assert facts(folder) == before
    assert folders(root) == [folder]


@pytest.mark.parametrize("row", [{}, {"expected_files": {"../x": ""}}, {"check": {"exit_code": 0}}, {"check": "true"}])
async def test_a_row_that_cannot_be_scored_is_an_error_and_no_reward(server: HandShell, row: Any) -> None:
    """Of the request, and not of the model."""
    call = await begun(server)
    with pytest.raises(ParticipantError) as error:
        await verified(call, row)
    assert error.value.code is Code.INVALID_REQUEST


# Checkpoints


@pytest.mark.parametrize("boundary", range(len(COMMANDS) + 1))
async def test_a_session_killed_at_any_boundary_goes_on_as_if_nothing_had_been(root: Path, boundary: int) -> None:
    """The same folder, down to modes and times of what was there, and the same reward, as without the crash."""
    store, old = memory_store(), HandShell(root=str(root))
    call = await begun(old, *COMMANDS[:boundary])
    [folder] = folders(root)
    async with claim(store) as controller:
        ref, _ = await round_of(old, store, controller, LIFE)
    before = facts(folder)
    new = HandShell(root=str(root))
    async with claim(store) as controller, controlled(new, store, controller.epoch) as (plane, base):
        await restored_at(plane, base, controller, ref)
        [again] = [path for path in folders(root) if path != folder]
        assert facts(again) == before
        continued = Caller(new, NEXT, boundary=call.boundary)
        await run(continued, *COMMANDS[boundary:])
        await run(call, *COMMANDS[boundary:])
        names = {path: fact[3] for path, fact in facts(folder).items()}
        assert {path: fact[3] for path, fact in facts(again).items()} == names
        rewards = [(await verified(each, FULL_ROW)).body["reward"] for each in (call, continued)]
        assert rewards == [1.0, 1.0]
    await old.aclose()
    await new.aclose()


async def test_a_second_checkpoint_writes_what_has_changed(server: HandShell, root: Path) -> None:
    """Of two large files the changed one; then nothing, also after a restore and a command."""
    store = memory_store()
    call = await begun(server, f"large x {LARGE}", f"large y {LARGE}")
    async with claim(store) as controller:
        _, first = await round_of(server, store, controller, LIFE)
        await run(call, f"large y {LARGE + 1}")
        _, second = await round_of(server, store, controller, LIFE)
        ref, third = await round_of(server, store, controller, LIFE)
    assert [each.blob_bytes for each in (first, second, third)] == [2 * LARGE, LARGE + 1, 0]
    new = HandShell(root=str(root))
    async with claim(store) as controller, controlled(new, store, controller.epoch) as (plane, base):
        await restored_at(plane, base, controller, ref)
        await run(Caller(new, NEXT, boundary=call.boundary), f"large z {LARGE}")
        _, fourth = await round_at(plane, base, controller, NEXT)
    assert fourth.blob_bytes == LARGE
    await new.aclose()


async def test_a_checkpoint_during_a_verify_has_the_folder_as_the_verify_found_it(server: HandShell) -> None:
    """And a command afterwards is in the next one."""
    call = await begun(server)
    await verified(call, ROW)
    [first] = await checkpoint(server, [LIFE])
    await run(call, "write a.txt changed")
    server.thaw()
    [second] = await checkpoint(server, [LIFE])
    contents = [b"".join(packs_in(record)) for record in (first, second)]
    assert contents == [b"one\ntwo", b"changedtwo"]


def packs_in(record: RawRecord) -> Sequence[bytes]:
    packs: Sequence[bytes] = record.parse().payload["state"]["sessions"]["s"]["state"]["packs"]
    return packs


async def test_a_folder_that_is_too_large_makes_a_restart_and_verify_goes_on(root: Path) -> None:
    """The model is not told, and its work counts; only a crash would cost it."""
    server = HandShell(root=str(root), max_session_bytes=LARGE)
    call = await begun(server, f"large x {LARGE}")
    await server.freeze()
    assert list(server.restarts()) == [LIFE]
    assert (await verified(call, ROW)).body["reward"] == 1.0
    await server.aclose()


# Restores


def spoiled(record: RawRecord, old: bytes, new: bytes) -> RawRecord:
    assert old in record.line
    return RawRecord(record.life, record.line.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"a.txt"', b'"../a.txt"'),
        (b'"a.txt"', b'"/etc/x"'),
        (b'"sub","folder",493', b'"sub","link",493'),
        (b'"version":1', b'"version":9'),
        (b'"packs":[', b'"packs":[{"$$bytes":"AA=="},'),
    ],
    ids=["up", "absolute", "a link for a folder", "version", "packs"],
)
async def test_a_spoiled_record_activates_nothing_and_leaves_no_folder(
    server: HandShell, root: Path, old: bytes, new: bytes
) -> None:
    """Also of the sessions beside it, once the restore is given up."""
    other = Life("other", 1, 0, 0)
    await begun(server)
    await begun(server, life=other)
    good, bad = await checkpoint(server, [LIFE, other])
    await server.aclose()
    fresh = HandShell(root=str(root))
    with pytest.raises(ParticipantError) as error:
        await restore(fresh, [good, spoiled(bad, old, new)])
    assert error.value.code is Code.CORRUPT_CHECKPOINT
    await fresh.discard()
    assert folders(root) == []
    assert fresh.counts()["sessions"] == 0
    await restore(fresh, [good, bad])
    assert len(folders(root)) == 2
    await fresh.aclose()


async def test_an_older_attempt_cannot_touch_the_folder_of_the_next(root: Path) -> None:
    """It has another folder, and every call of it is refused once the next has begun."""
    server = HandShell(root=str(root))
    call = await begun(server)
    records = await checkpoint(server, [LIFE])
    await restore(server, records)
    [old, new] = sorted(folders(root), key=os.path.getctime)
    continued = Caller(server, NEXT, boundary=call.boundary)
    await run(continued, "write mine yes")
    for route, body in (("/run_command", {"command": "write mine no"}), ("/close_session", {}), ("/seed_session", ROW)):
        with pytest.raises(ParticipantError) as error:
            await call(route, body)
        assert error.value.code is Code.STALE_LIFE
    assert (new / "mine").read_text() == "yes"
    await server.retire([LIFE], 5)
    assert folders(root) == [new]
    assert not old.exists()
    await server.aclose()


async def test_a_folder_past_the_limits_is_no_way_around_its_check(root: Path) -> None:
    """The reward is 0, and no failure: a model could have it as it likes."""
    row = {"check": {"command": "exit 0"}}
    server = HandShell(root=str(root), max_session_bytes=LARGE)
    call = await begun(server, f"large big {LARGE}", row=row)
    assert (await verified(call, row)).body["reward"] == 1.0
    await run(call, "large more 1")
    body = (await verified(call, row)).body
    assert (body["reward"], body["check_ended"], body["check_exit_code"]) == (0.0, "stopped", None)
    await server.aclose()


async def test_three_restores_of_one_checkpoint_keep_one_folder(root: Path) -> None:
    """What an earlier one has imported and nobody took up goes with it."""
    server = HandShell(root=str(root))
    await begun(server)
    records = await checkpoint(server, [LIFE])
    for _ in range(3):
        await restore(server, records)
        await server._close_freed()
    assert len(folders(root)) == 1
    await server.aclose()
    assert folders(root) == []


@pytest.mark.parametrize("where", ["/dev/shm", "/var/tmp"])
async def test_a_change_that_times_may_not_tell_is_exported(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in memory that is mapped, read and then written keeps its size and all its times."""
    monkeypatch.setattr(reading, "TICK_NS", -1_000_000_000)  # As if all had been written long ago.
    with tempfile.TemporaryDirectory(dir=where) as root:
        server = HandShell(root=root)
        call = await begun(server)
        before = await checkpoint(server, [LIFE])
        await run(call, "patch a.txt")
        await restore(server, await checkpoint(server, [LIFE]))
        continued = Caller(server, NEXT, boundary=call.boundary)
        assert (await continued("/read_file", {"path": "a.txt"})).body == {"content": "nne\n"}
        assert before
        await server.aclose()


def test_its_cases_are_many_and_plain_data() -> None:
    """JSON, the same every time, and calls of tools that there are."""
    cases, again = ShellServer.conformance().cases, ShellServer.conformance().cases
    assert len(cases) >= 50
    assert [orjson.dumps(case.row) for case in cases] == [orjson.dumps(case.row) for case in again]
    assert all(call.name in ShellServer(root="unused").tools for case in cases for call in case.calls)
