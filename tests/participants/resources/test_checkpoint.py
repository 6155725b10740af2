"""What a checkpoint writes of sessions, and what a restore makes of it."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import orjson
import pytest

from participants.data import CallId, Reply, Request
from participants.errors import Code, ParticipantError
from participants.fences import Floor
from participants.resources import ResourcesServer
from participants.sessions import ResourcesSession
from participants.tally import Sum
from store import Life, RawRecord

from .harness import LIFE, NEXT, RESPONSE, Caller, Drawer, Notebook, ReplayNotebook, checkpoint, restore

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


async def test_a_restored_session_goes_on_under_the_next_life() -> None:
    """State, revision, kept replies and closed ids survive; the next life needs no seed."""
    old = Notebook()
    call = Caller(old)
    await call("/seed_session", {"words": ["a"]})
    await call("/close_session", {}, session="closed")
    again = CallId("agent.main", 7, 0)
    first = await call("/add", {"word": "b"}, call=again)
    new = Notebook()
    await restore(new, await checkpoint(old, {LIFE}))
    continued = Caller(new, NEXT, boundary=7)
    assert await continued("/add", {"word": "b"}, call=again) == first
    assert (await continued("/add", {"word": "c"})).body == ["a", "b", "c"]
    assert (await new.enter(NEXT)).state.open["s"].revision == 2
    assert new.log == ["add c"]
    with pytest.raises(ParticipantError) as caught:
        await continued("/seed_session", {}, session="closed")
    assert caught.value.code is Code.STALE_CALL


async def test_the_dead_life_is_refused_after_a_restore() -> None:
    """Activation fences the life that the record is of."""
    old = Notebook()
    await Caller(old)("/seed_session", {})
    new = Notebook()
    await restore(new, await checkpoint(old, {LIFE}))
    with pytest.raises(ParticipantError) as caught:
        await Caller(new)("/add", {"word": "x"})
    assert caught.value.code is Code.STALE_LIFE


async def test_a_restored_rollout_is_exported_unchanged_until_it_is_taken_up() -> None:
    """A checkpoint right after a restore has the same line, byte for byte."""
    old = Notebook()
    await Caller(old)("/seed_session", {})
    records = await checkpoint(old, {LIFE})
    new = Notebook()
    await restore(new, records)
    assert await checkpoint(new, {LIFE}) == records


async def test_an_export_is_a_point_in_time() -> None:
    """What happens after it was made is not in it."""
    server = Notebook()
    call = Caller(server)
    await call("/seed_session", {"words": ["a"]})
    await server.freeze({LIFE})
    [record] = (await server.export({LIFE})).records
    await call("/add", {"word": "b"})
    assert not isinstance(record, RawRecord)
    assert record.payload["state"]["sessions"]["s"]["state"] == {"words": ["a"]}


async def test_a_change_after_the_freeze_is_refused() -> None:
    """An export made ready is never written once its session has changed."""
    server = Notebook()
    call = Caller(server)
    await call("/seed_session", {})
    await server.freeze({LIFE})
    await call("/add", {"word": "b"})
    with pytest.raises(ParticipantError) as caught:
        list((await server.export({LIFE})).records)
    assert caught.value.code is Code.INVALID_PHASE


async def test_a_tool_in_flight_is_waited_for_and_blocks_the_export() -> None:
    """It is named as a blocker until it ends, and its result is in the record."""
    server = Notebook()
    call = Caller(server)
    await call("/seed_session", {})
    server.hold = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: call("/add", {"word": "x"}))
        await anyio.wait_all_tasks_blocked()
        server.gate.close()
        [blocker], count = server.blockers(5)
        assert (blocker.life, blocker.step, count) == (LIFE, "add", 1)
        with pytest.raises(ParticipantError):
            server.check_export()
        server.hold.set()
        await server.gate.wait_quiet()
    [record] = await checkpoint(server, {LIFE})
    assert record.parse().payload["state"]["sessions"]["s"]["state"] == {"words": ["x"]}


async def test_a_call_that_comes_while_closed_parks() -> None:
    """It changes nothing until admission reopens."""
    server = Notebook()
    call = Caller(server)
    await call("/seed_session", {})
    server.gate.close()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: call("/add", {"word": "x"}))
        await anyio.wait_all_tasks_blocked()
        assert server.log == ["seed"]
        server.gate.reopen()
    assert server.log == ["seed", "add x"]


async def test_a_replay_verify_is_not_waited_for_and_its_session_is_frozen() -> None:
    """The record has the session from before the verify, which consumes it; after a crash verify runs once more."""
    old = ReplayNotebook()
    call = Caller(old)
    await call("/seed_session", {"words": ["a", "b"]})
    old.hold = anyio.Event()
    replies: list[Reply] = []

    async def verify() -> None:
        replies.append(await call("/verify", {"response": RESPONSE}))

    async with anyio.create_task_group() as group:
        group.start_soon(verify)
        await anyio.wait_all_tasks_blocked()
        old.gate.close()
        await old.gate.wait_quiet()
        records = await checkpoint(old, {LIFE})
        old.hold.set()
    assert [reply.body["reward"] for reply in replies] == [2.0]
    assert old.log.count("verify 2") == 1
    new = ReplayNotebook()
    await restore(new, records)
    assert (await Caller(new, NEXT, boundary=1)("/verify", {"response": RESPONSE})).body["reward"] == 2.0


async def test_a_replay_verify_changes_nothing() -> None:
    """Whatever it did to a JSON state is put back, so that a second one finds the same."""
    call = Caller(ReplayNotebook())
    await call("/seed_session", {"words": ["a"]})
    rewards = [(await call("/verify", {"response": RESPONSE})).body["reward"] for _ in range(2)]
    assert rewards == [1.0, 1.0]


async def test_a_wait_verify_blocks_and_its_result_is_kept() -> None:
    """Prepare names it; the record has its reply, so that it is not run again after a crash."""
    old = Notebook()
    call = Caller(old)
    await call("/seed_session", {"words": ["a"]})
    old.hold = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: call("/verify", {"response": RESPONSE}))
        await anyio.wait_all_tasks_blocked()
        assert [blocker.step for blocker in old.blockers(5)[0]] == ["verify"]
        old.hold.set()
    new = Notebook()
    await restore(new, await checkpoint(old, {LIFE}))
    reply = await Caller(new, NEXT, boundary=1)("/verify", {"response": RESPONSE})
    assert (reply.body["reward"], new.log) == (1.0, [])


async def test_a_server_that_declares_nothing_is_restart_only() -> None:
    """Its lives with open sessions are restarts and are not exported; a closed session needs no restart."""

    server = ResourcesServer()
    call = Caller(server)
    reply = await call("/seed_session", {})
    assert reply.headers["x-midflight-checkpoint-mode"] == "restart"
    assert list(server.restarts()) == [LIFE]
    assert await checkpoint(server, {LIFE}) == []
    await call("/close_session", {})
    assert list(server.restarts()) == []


async def test_a_stateless_server_that_keeps_a_state_is_found_out() -> None:
    """The declaration is checked after each call."""

    class Liar(ResourcesServer):
        checkpoint_mode = "stateless"

        async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
            session.state["words"] = []

    with pytest.raises(ParticipantError, match="declares stateless"):
        await Caller(Liar())("/seed_session", {})


async def test_own_hooks_export_and_import_before_anything_is_active() -> None:
    """A set goes through the author's hooks, once a commit, and is imported while staging."""
    old = Drawer()
    call = Caller(old)
    await call("/seed_session", {})
    await call("/put", {"thing": "x"})
    records = await checkpoint(old, {LIFE})
    assert old.exports == 1
    new = Drawer()
    await restore(new, records)
    assert (await Caller(new, NEXT, boundary=9)("/put", {"thing": "y"})).body == 2


@pytest.mark.parametrize("damage", ['["x"]', '{"sessions":{"s":{}},"closed":[]}', '{"sessions":7}'])
async def test_a_bad_record_fails_the_stage_and_is_named(damage: str) -> None:
    """Nothing is active, and what was already imported is freed when the restore is discarded."""
    old = Drawer()
    await Caller(old)("/seed_session", {})
    other = Life("r1", 1, 0, 1)
    await Caller(old, other)("/seed_session", {})
    good, record = await checkpoint(old, {LIFE, other})
    payload = {"state": orjson.loads(damage), "replies": [], "waited": []}
    bad = RawRecord(record.life, b'{"life":"%s","payload":%s}' % (str(record.life).encode(), orjson.dumps(payload)))
    new = Drawer()

    async def records() -> AsyncIterator[RawRecord]:
        yield good
        yield bad

    with pytest.raises(ParticipantError, match="r1") as caught:
        await new.stage({LIFE, other}, records(), epoch=2)
    assert caught.value.code is Code.CORRUPT_CHECKPOINT
    assert (new.counts()["lives"], new.counts()["restored"]) == (0, 0)
    await new.discard()
    assert new.closed == ["s"]


async def test_an_import_that_fails_is_named() -> None:
    """The author's hook refuses: the message has session, life and reason."""
    old = Drawer()
    await Caller(old)("/seed_session", {})
    [record] = await checkpoint(old, {LIFE})
    bad = RawRecord(record.life, record.line.replace(b'"state":[]', b'"state":5'))
    with pytest.raises(ParticipantError, match=r"session s of r0/1.0#0 .*not a list of things"):
        await restore(Drawer(), [bad])


async def test_a_discarded_restore_leaves_nothing() -> None:
    """After stage and activate, discarding frees what was imported, and the rollout may start over."""
    old = Drawer()
    await Caller(old)("/seed_session", {})
    records = await checkpoint(old, {LIFE})
    new = Drawer()

    async def each() -> AsyncIterator[RawRecord]:
        for record in records:
            yield record

    await new.stage({LIFE}, each(), epoch=2)
    new.activate()
    await new.discard()
    assert (new.counts()["restored"], new.closed) == (0, ["s"])
    assert (await Caller(new, Life("r0", 3, 0, 0))("/seed_session", {})).ok


async def test_a_discarded_restore_puts_back_the_sessions_that_it_had_replaced() -> None:
    """They were not closed; the next life takes them up, and a restore that settles closes what it replaces."""
    old = Drawer()
    call = Caller(old)
    await call("/seed_session", {})
    await call("/put", {"thing": "x"})
    records = await checkpoint(old, {LIFE})
    new = Drawer()
    await restore(new, records)

    async def each() -> AsyncIterator[RawRecord]:
        for record in records:
            yield record

    await new.stage({LIFE}, each(), epoch=3)
    new.activate()
    await new.discard()
    assert new.closed == ["s"]
    await restore(new, records)
    later = Caller(new, Life("r0", 3, 1, 0), boundary=9)
    assert (await later("/put", {"thing": "y"})).body == 2
    assert new.closed == ["s", "s"]


async def test_sessions_that_a_restore_brought_are_closed_past_its_epoch() -> None:
    """With the floor, though nobody ever asked for them."""
    old = Drawer()
    await Caller(old)("/seed_session", {})
    new = Drawer()
    await restore(new, await checkpoint(old, {LIFE}))
    new.raise_floor(Floor(3, 0))
    await new.aclose()
    assert (new.closed, new.counts()["restored"]) == (["s"], 0)


async def test_a_rollout_that_starts_over_frees_what_was_imported() -> None:
    """A dispatch that does not continue the record drops it, with the author's hook."""
    old = Drawer()
    await Caller(old)("/seed_session", {})
    new = Drawer()
    await restore(new, await checkpoint(old, {LIFE}))
    over = Caller(new, Life("r0", 2, 0, 5), session="fresh")
    await over("/seed_session", {})
    await over("/put", {"thing": "x"})
    assert new.closed == ["s"]


async def test_waited_calls_are_counted_as_the_caller_counts_them() -> None:
    """One for each reply of a waited call, none for a repeat, a refusal or a replay verify; none once closed."""
    server = ReplayNotebook()
    environment, agent = Caller(server, role="environment.main"), Caller(server)
    await environment("/seed_session", {})
    again = CallId("agent.main", 1, 0)
    for _ in range(2):
        await agent("/add", {"word": "a"}, call=again)
    await agent("/no_such_tool", {}, call=CallId("agent.main", 2, 0))
    with pytest.raises(ParticipantError):
        await agent("/add", {"word": "a", "fail": True}, call=CallId("agent.main", 3, 0))
    await environment("/verify", {"response": RESPONSE})
    await server.freeze({LIFE})
    tallies = {tally.kind: tally for tally in (await server.export({LIFE})).tallies}
    assert tallies["environment"].digest == Sum.of([(LIFE, "s", 1)]).text
    assert tallies["agent"].digest == Sum.of([(LIFE, "s", 2)]).text
    await environment("/close_session", {})
    assert (await server.export({LIFE})).tallies == []


class Judge:
    """A model that is asked from inside a hook."""

    role = "model.main"

    def __init__(self) -> None:
        self.calls: list[Request] = []

    async def call(self, request: Request) -> Reply:
        self.calls.append(request)
        return Reply(200, {})


async def test_a_call_from_inside_a_tool_carries_its_parent_and_one_from_a_replay_verify_does_not() -> None:
    """The one must be admitted while closed, the other must park: a checkpoint does not wait for that verify."""
    judge = Judge()

    class Asking(ReplayNotebook):
        async def call_tool(self, session: object, name: str, arguments: object) -> object:
            await self.call(judge, "/v1/responses", {})
            return (await self.call(judge, "/v1/responses", {})).body

        async def verify(self, session: object, row: object) -> dict[str, float]:
            await self.call(judge, "/v1/responses", {})
            return {"reward": 1.0}

    call = Caller(Asking())
    await call("/seed_session", {})
    await call("/ask", {}, call=CallId("agent.main", 4, 0))
    await call("/verify", {"response": RESPONSE}, call=CallId("environment.main", 3, 0))
    assert [str(request.call) for request in judge.calls] == [
        "resources.main:0.0@agent.main:4.0",
        "resources.main:0.1@agent.main:4.0",
        "resources.main:3.0",
    ]
    assert {request.life for request in judge.calls} == {LIFE}


@pytest.mark.parametrize("problem", ["raises", "hangs", "ends", "gives no JSON"])
async def test_a_session_that_cannot_be_exported_is_a_restart_and_the_others_are_captured(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named once the sessions are frozen, and goes on working."""
    monkeypatch.setattr("participants.custody.EXPORT_TIMEOUT_S", 0.01)
    other = Life("r1", 1, 0, 1)

    async def export(self: Drawer, session: ResourcesSession) -> Any:
        if session.life == other:
            return []
        if problem == "raises":
            raise RuntimeError("no such sandbox")
        if problem == "hangs":
            await anyio.sleep_forever()
        if problem == "ends":
            raise SystemExit(1)
        return {object()}

    monkeypatch.setattr(Drawer, "export_session", export)
    server = Drawer()
    for life in (LIFE, other):
        await Caller(server, life)("/seed_session", {})
    assert server.restarts() == []
    await server.freeze()
    assert server.restarts() == [LIFE]
    assert [record.life for record in await checkpoint(server, {other})] == [other]
    assert (await Caller(server, boundary=5)("/put", {"thing": "pen"})).body == 1
