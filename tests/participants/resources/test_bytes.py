"""Bytes in an author's export: blobs that checkpoints share, back as bytes, and never too many in memory."""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from participants import Code, ParticipantError
from participants.budget import Budget
from participants.exact import exact_export
from participants.resources import ResourcesServer
from participants.sessions import ResourcesSession
from participants.tools import tool
from participants.wire import Activate, Commit, Prepare, Renew, Resume, Stage
from store import (
    DEFAULT_LIMITS,
    Controller,
    CorruptCheckpoint,
    Draft,
    LazyBytes,
    Life,
    ParticipantManifest,
    Ref,
    Retention,
    Store,
    claim,
    copy_checkpoint,
    open_checkpoint,
    prune,
    verify_store,
)
from tests.support.checkpoints import memory_store

from .harness import LIFE, NEXT, RESPONSE, Caller, Notebook, checkpoint, restore
from .test_plane import controlled

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LARGE = DEFAULT_LIMITS.inline_payload_bytes + 1


class Album(ResourcesServer):
    """Keeps pictures, which are bytes, by name."""

    checkpoint_mode = "exported"
    checkpoint_verify = "replay"
    max_session_bytes = 4 * LARGE

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        """No picture."""
        session.state = {}

    @tool
    async def paint(self, session: ResourcesSession, name: str, size: int, lazily: bool = False) -> int:
        """A picture of one colour, which is that of its name."""
        data = name[:1].encode() * size
        lazy = LazyBytes(hashlib.sha256(data).hexdigest(), size, lambda: data)
        session.state[name] = lazy if lazily else data
        return size

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """The number of pictures."""
        return {"reward": len(session.state)}

    async def export_session(self, session: ResourcesSession) -> Any:
        """All of them, each with its name as a key that a record escapes."""
        return {"pictures": [{f"${name}": data} for name, data in session.state.items()]}

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        """The pictures again; refused where one is no bytes."""
        pictures = {key[1:]: data for picture in exported["pictures"] for key, data in picture.items()}
        if not all(isinstance(data, bytes) for data in pictures.values()):
            raise TypeError("not a picture")
        session.state = pictures


async def round_of(
    server: ResourcesServer, store: Store, controller: Controller, scope: Life
) -> tuple[Ref, ParticipantManifest]:
    """One whole round, which continues the head."""
    async with controlled(server, store, controller.epoch) as (plane, base):
        return await round_at(plane, base, controller, scope)


async def round_at(plane: Any, base: Any, controller: Controller, scope: Life) -> tuple[Ref, ParticipantManifest]:
    head, round_ = controller.head, controller.next_round()
    call = {**base, "round": round_}
    assert (await plane.prepare(Prepare(**call, timeout_s=1, lease_s=30))).restarts == ()
    committed = await plane.commit(Commit(**call, scope=(scope,), parent=head))
    await plane.renew(Renew(**call, lease_s=30))
    parent = head.checkpoint if head else None
    draft = Draft(checkpoint=round_, parent=parent, participants=[committed.manifest], scope=[scope])
    ref = await controller.publish(draft, timeout_s=30)
    await plane.resume(Resume(**call))
    [share] = (await open_checkpoint(plane._store, ref)).processes
    return ref, share.manifest


async def restored_at(plane: Any, base: Any, controller: Controller, ref: Ref) -> None:
    call = {**base, "round": controller.next_round()}
    await plane.stage(Stage(**call, checkpoint=ref, scope=(LIFE,)))
    await plane.activate(Activate(**call))
    await plane.resume(Resume(**call))


async def album(*pictures: tuple[str, int, bool]) -> tuple[Album, Caller]:
    server = Album()
    call = Caller(server)
    await call("/seed_session", {})
    for name, size, lazily in pictures:
        await call("/paint", {"name": name, "size": size, "lazily": lazily})
    return server, call


@pytest.mark.parametrize("lazily", [False, True], ids=["bytes", "lazy"])
async def test_bytes_come_back_from_records_and_blobs(lazily: bool) -> None:
    """Small ones stand in the record, large ones in a blob; import gets both as bytes."""
    store = memory_store()
    old, call = await album(("small", 3, lazily), ("large", LARGE, lazily), ("empty", 0, lazily))
    async with claim(store) as controller:
        ref, manifest = await round_of(old, store, controller, LIFE)
    assert (manifest.blobs, manifest.blob_bytes) == (1, LARGE)
    new = Album()
    async with claim(store) as controller, controlled(new, store, controller.epoch) as (plane, base):
        await restored_at(plane, base, controller, ref)
        reply = await Caller(new, NEXT, boundary=call.boundary)("/verify", {"response": RESPONSE})
        assert reply.body["reward"] == 3
        session = (await new.enter(NEXT)).state.open["s"]
        assert session.state == {"small": b"sss", "large": b"l" * LARGE, "empty": b""}
    assert not (await verify_store(store, deep=True)).findings


async def test_checkpoints_share_what_has_not_changed_across_rounds_and_a_restore() -> None:
    """Written once: by the next round, by one after a restore before the session is used, and by one after that."""
    store = memory_store()
    old, call = await album(("a", LARGE, False), ("b", LARGE, True))
    async with claim(store) as controller:
        _, first = await round_of(old, store, controller, LIFE)
        await call("/paint", {"name": "c", "size": LARGE})
        ref, second = await round_of(old, store, controller, LIFE)
    assert (first.blob_bytes, second.blob_bytes, second.blobs) == (2 * LARGE, LARGE, 3)
    new = Album()
    async with claim(store) as controller, controlled(new, store, controller.epoch) as (plane, base):
        await restored_at(plane, base, controller, ref)
        for life, used in ((LIFE, False), (NEXT, False), (NEXT, True)):
            if used:
                await Caller(new, NEXT, boundary=call.boundary)("/paint", {"name": "d", "size": 1})
            ref, manifest = await round_at(plane, base, controller, life)
            assert (manifest.blob_bytes, manifest.blobs) == (0, 3), life
    async with (await open_checkpoint(store, ref)).records() as records:
        [record] = [record async for record in records]
    exported = record.payload["state"]["sessions"]["s"]["state"]["pictures"]
    assert exported == [{"$a": b"a" * LARGE}, {"$b": b"b" * LARGE}, {"$c": b"c" * LARGE}, {"$d": b"d"}]


async def test_what_checkpoints_share_outlives_a_prune_and_a_copy() -> None:
    """Deleting the one that wrote a blob leaves it to the one that names it, and a copy of that has it too."""
    store, elsewhere = memory_store(), memory_store()
    old, call = await album(("a", LARGE, True), ("gone", LARGE, True))
    async with claim(store) as controller:
        await round_of(old, store, controller, LIFE)
        (await old.enter(LIFE)).state.open["s"].state.pop("gone")
        await call("/paint", {"name": "b", "size": LARGE})
        await round_of(old, store, controller, LIFE)
    await prune(store, Retention(keep_last=1))
    assert len(await store.backend.list("blobs/")) == 2
    ref = await copy_checkpoint(store, elsewhere)
    for root in (store, elsewhere):
        assert not (await verify_store(root, deep=True)).findings
    new = Album()
    async with (
        claim(elsewhere, ref.checkpoint) as controller,
        controlled(new, elsewhere, controller.epoch) as (plane, base),
    ):
        await restored_at(plane, base, controller, ref)
        session = (await new.enter(NEXT)).state.open["s"]
        assert session.state == {"a": b"a" * LARGE, "b": b"b" * LARGE}
        _, manifest = await round_at(plane, base, controller, NEXT)
        assert (manifest.blobs, manifest.blob_bytes) == (2, 0)


async def test_too_many_bytes_make_a_restart_and_verify_goes_on() -> None:
    """The export is refused, the session is not: it goes on, and a checkpoint leaves it out."""
    server, call = await album(*((str(n), LARGE, n % 2 == 0) for n in range(5)))
    await server.freeze()
    assert list(server.restarts()) == [LIFE]
    [session] = server.held()[0].state.open.values()
    assert f"{5 * LARGE} bytes, and the limit is {4 * LARGE}" in session.unexportable
    assert (await call("/verify", {"response": RESPONSE})).body["reward"] == 5


async def test_many_small_ones_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand in the record, which the store takes up to a size only."""
    monkeypatch.setattr("participants.custody.MAX_SESSION_TEXT", 1000)
    server, call = await album(("a", 700, False))
    await server.freeze()
    assert list(server.restarts()) == []
    await call("/paint", {"name": "b", "size": 100})
    await server.freeze()
    assert list(server.restarts()) == [LIFE]


async def test_a_json_state_still_holds_no_bytes() -> None:
    """Neither as a hook leaves it nor as a record has it."""

    class Smudged(Notebook):
        async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
            session.state["ink"] = b"blue"
            return None

    server = Smudged()
    call = Caller(server)
    await call("/seed_session", {})
    with pytest.raises(ParticipantError, match="bytes b'blue'"):
        await call("/add", {"word": "x"})
    assert (await server.enter(LIFE)).state.open["s"].state == {"words": []}
    records = await checkpoint((await album(("a", 3, False)))[0], {LIFE})
    with pytest.raises(ParticipantError) as refused:
        await restore(Notebook(), records)
    assert refused.value.code is Code.CORRUPT_CHECKPOINT


async def test_a_record_that_names_a_blob_of_another_share_is_damage() -> None:
    """A restore reads what its own indexes name, and nothing else that may lie in the store."""
    store = memory_store()
    server, _ = await album(("a", LARGE, False))
    async with claim(store) as controller:
        ref, _ = await round_of(server, store, controller, LIFE)
    opened = await open_checkpoint(store, ref)
    [blob] = opened.blobs
    assert await opened.blob_reader(opened.processes)(blob) == b"a" * LARGE
    with pytest.raises(CorruptCheckpoint, match="no index does"):
        await opened.blob_reader([])(blob)


def change(value: list[Any]) -> None:
    value[0]["k"] = b"other"


@pytest.mark.parametrize(
    "value",
    [bytearray(b"x"), memoryview(b"x"), (b"x",), {b"x": 1}, type("B", (bytes,), {})(b"x"), {"a": 1j}],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_just_bytes_is_refused_in_an_export(value: Any) -> None:
    """Whatever would come back as another type, with its place."""
    with pytest.raises(TypeError, match="at "):
        exact_export([b"fine", {"here": value}], "it")


def test_an_export_is_a_copy_and_measured() -> None:
    """What an author changes later is not in it; text and bytes are counted apart, base64 with the text."""
    lazy = LazyBytes("0" * 64, 10 * LARGE, bytes)
    given = [{"k": b"123456"}, lazy, "text"]
    exported = exact_export(given, "it")
    change(given)
    assert exported.value == [{"k": b"123456"}, lazy, "text"]
    assert exported.payload_bytes == 6 + 10 * LARGE
    assert exported.text_bytes == len('[{"k":null},null,"text"]') + 8


async def _in_turn(budget: Budget, size: int, note: Callable[[int], Awaitable[None]]) -> None:
    async with budget.take(size):
        await note(size)


async def test_a_budget_is_never_passed_and_nobody_starves() -> None:
    """Takers come in their order; one that wants more than all gets it alone."""
    budget, held, log = Budget(10), [0], list[tuple[int, int]]()

    async def note(size: int) -> None:
        held[0] += size
        log.append((size, held[0]))
        await anyio.lowlevel.checkpoint()
        held[0] -= size

    async with anyio.create_task_group() as group:
        for size in (4, 4, 4, 99, 1, 10, 0):
            group.start_soon(_in_turn, budget, size, note)
    assert [size for size, _ in log] == [4, 4, 4, 99, 1, 10, 0]
    assert all(total <= 10 or total == size for size, total in log)
    assert max(total for size, total in log if size == 4) == 8


async def test_a_restore_reads_the_bytes_of_few_sessions_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty sessions of two blobs each never have more than the bound in hands."""
    held, most = [0], [0]

    class Careful(Album):
        async def import_session(self, session: ResourcesSession, exported: Any) -> None:
            await anyio.lowlevel.checkpoint()
            await super().import_session(session, exported)
            held[0] -= 2 * LARGE

    monkeypatch.setattr("participants.custody.IMPORT_BYTES", 5 * LARGE)
    old, server, scope = Album(), Careful(), [Life(f"r{n}", 1, 0, 0) for n in range(20)]
    for n, life in enumerate(scope):
        call = Caller(old, life)
        await call("/seed_session", {})
        await call("/paint", {"name": f"{n}a", "size": LARGE})
        await call("/paint", {"name": f"{chr(97 + n)}b", "size": LARGE})
    records = await checkpoint(old, scope)

    async def read(blob: Any) -> bytes:
        held[0] += blob.size
        most[0] = max(most[0], held[0])
        await anyio.lowlevel.checkpoint()
        return bytes(blob.size)

    async def each() -> Any:
        for record in records:
            yield record

    await server.stage(scope, each(), epoch=2, read_blob=read)
    assert held[0] == 0
    assert 2 * LARGE < most[0] <= 5 * LARGE
