"""What a fleet measures: every name of the table, no other, and the same checkpoint whatever a recorder does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from orchestrator.collect import Config
from orchestrator.coordination import abort, commit, prepare, restore, resume, retire
from orchestrator.fleet import adopt, discover
from orchestrator.links import HttpLink, http_client
from orchestrator.rounds import Blocked, Round, RoundLimits, checkpoint
from participants import CONTROL_PREFIX, Done, Modes, ParticipantError
from participants.cuts.policy import Verdict
from participants.inference.control import HoldOrder
from participants.telemetry import Span, install, names, span, uninstall
from participants.telemetry.names import TABLE
from participants.wire import Dispatched, Release, Renew, Submit, Submitted, Work, Worked
from store import CheckpointId, Controller, Life, Store, claim, open_checkpoint
from tests.orchestrator.collect.inside import Turns, inside
from tests.orchestrator.collect.test_in_process import OneTool, configured, run
from tests.support.checkpoints import memory_store
from tests.support.listening import listening
from tests.support.owners import Party, Pause, Server, controlled, lives, next_life, notebook, party, settle
from tests.support.placed_model import NEXT, cut_at, placed
from tests.support.recording import Recording, installed, recorded

from .test_hook import Blocking, Failing

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIVES = lives(3)
LIMITS = RoundLimits(prepare_timeout_s=5, more_time_s=0, commit_timeout_s=20, publish_timeout_s=10, lease_s=60)
SHORT = RoundLimits(prepare_timeout_s=0.02, more_time_s=0, lease_s=60)
LATER = Life("r1", 2, 0, 1)
TOTALS = {
    names.LEASE_EXPIRIES: 4,
    names.RESTARTS: 3,
    names.RETIRED: 4,
    names.NOT_STOPPED: 1,
    names.CUTS: 2,
    names.CUT_TOKENS: 6,
    names.TOKENS_CONTINUED: 3,
    names.TOKENS_REGENERATED: 3,
    names.HELD: 1,
}
"""What all ends of rounds and all kinds of cuts come to."""
ON_THE_PAGE = {names.SERVER_WORKERS, names.SERVER_WORKERS_MISSING}
"""What a server's page for Prometheus says of itself; its own tests see to them."""
TOKEN = "a-token"
MANY = 23
"""Blockers: more than a participant lists."""


@asynccontextmanager
async def fleet(store: Store) -> AsyncIterator[tuple[Party, Controller]]:
    """One participant of each kind, the agent with something to pin, and the controller of its run."""
    async with claim(store) as controller, party(store, epoch=controller.epoch) as at:
        at.of("agent").owner.pins = True
        yield at, controller


async def take(at: Party, controller: Controller, limits: RoundLimits = LIMITS, **fields: Any) -> Round:
    """One checkpoint of everything."""
    async with checkpoint(at.fleet, controller, limits) as opened:
        opened.take(**{"scope": LIVES, **fields})
    return opened


async def begin(at: Party) -> None:
    """Three lives at each."""
    for life in LIVES:
        await at.write(life, "a", creates=True)


def message(at: Party, server: Server, kind: Any, **fields: Any) -> Any:
    """One for a server of the fleet."""
    return kind(**at.fleet.envelope(at.member(server)), **fields)


# Spans


def root_of(spans: list[Span]) -> Span:
    """The one span without a parent; the parents of all others are there, in the same trace."""
    by_id = {span.span_id: span for span in spans}
    assert {span.trace_id for span in spans} == {spans[0].trace_id}
    [root] = [span for span in spans if span.parent_id is None]
    assert all(span.parent_id in by_id for span in spans if span is not root)
    return root


def path_of(span: Span, spans: list[Span]) -> list[str]:
    """The names from the root to a span."""
    by_id = {each.span_id: each for each in spans}
    path = [span.name]
    while span.parent_id is not None:
        span = by_id[span.parent_id]
        path.insert(0, span.name)
    return path


async def test_a_checkpoint_is_one_trace_of_its_stages_and_participants() -> None:
    """Every stage is under the checkpoint, every participant's part under its stage, and counts and bytes add up."""
    async with fleet(memory_store()) as (at, controller):
        await begin(at)
        async with recorded() as recording:
            opened = await take(at, controller)
    spans = recording.spans
    root = root_of(spans)
    call = [names.CALL, f"{names.OPERATION}commit"]
    assert root.name == names.CHECKPOINT
    parked = [span for span in spans if span.name == names.PARK]
    assert {span.attributes["participant"] for span in parked} == set(at.fleet.participants)
    asked = [names.CALL, f"{names.OPERATION}prepare", names.PARK]
    assert path_of(parked[0], spans) == [names.CHECKPOINT, names.PREPARE, names.PREPARE_KIND, *asked]
    for name in (names.FREEZE, names.EXPORT, names.WRITE_PARTS, names.WRITE_MANIFEST):
        assert len(recording.named(name)) == 4
        assert path_of(recording.named(name)[0], spans) == [names.CHECKPOINT, names.COMMIT, *call, name]
    [chain] = recording.named(names.PUBLISH_CHAIN)
    assert path_of(chain, spans) == [names.CHECKPOINT, names.PUBLISH, names.PUBLISH_CHAIN]
    written = [span.attributes for span in recording.named(f"{names.OPERATION}commit")]
    assert root.attributes["records"] == sum(each["records"] for each in written) == 12  # type: ignore[misc]
    assert root.attributes["round"] == str(opened.id)
    assert root.attributes["rollouts"] == 3
    assert recording.total(names.RECORDS, way="written") == 12
    assert recording.total(names.SIZE, way="written") == sum(each["bytes"] for each in written)  # type: ignore[misc]
    assert recording.total(names.CHECKPOINT_HOLD) == opened.held_s
    assert not any(span.error for span in spans)


async def test_a_commit_that_is_repeated_counts_once() -> None:
    """Its answer was lost: the same comes again, and nothing is written."""
    async with fleet(memory_store()) as (at, controller):
        await begin(at)
        round_ = controller.next_round()
        async with recorded() as recording:
            await prepare(at.fleet, round_, timeout_s=5, lease_s=60)
            answers = [await commit(at.fleet, round_, LIVES, None, timeout_s=20) for _ in range(2)]
            await abort(at.fleet, round_)
    assert answers[0] == answers[1]
    assert recording.total(names.RECORDS, way="written") == 12
    assert recording.total(names.SIZE, way="written") == sum(answer.bytes_written for answer in answers[0])


async def test_a_restore_is_one_trace() -> None:
    """Stage and activate are under it, and under stage what each participant verifies, reads and imports."""
    store = memory_store()
    async with fleet(store) as (at, controller):
        await begin(at)
        await take(at, controller)
    async with fleet(store) as (at, controller):
        assert controller.head is not None
        async with recorded() as recording:
            await restore(at.fleet, controller.next_round(), controller.head, LIVES, timeout_s=10)
    spans = recording.spans
    assert root_of(spans).name == names.RESTORE
    stage = [names.RESTORE, names.RESTORE_STAGE, names.CALL, f"{names.OPERATION}stage"]
    assert path_of(recording.named(names.VERIFY)[0], spans) == [*stage, names.VERIFY]
    assert path_of(recording.named(names.IMPORT)[0], spans) == [*stage, names.READ, names.IMPORT]
    assert [span.attributes["records"] for span in recording.named(names.READ)] == [3] * 4
    assert recording.total(names.RECORDS, way="restored") == 12
    assert recording.total(names.SIZE, way="restored") > 0


async def test_a_call_over_http_is_inside_the_span_of_its_caller() -> None:
    """The server carries it out in tasks of its own, and still its span has the caller's as its parent."""
    owner, store = notebook(), memory_store()
    async with controlled(owner, store).run() as plane, listening(plane, TOKEN) as url, http_client(TOKEN) as client:
        found = await discover([HttpLink(url, client)], store.run_id)
        async with recorded() as recording:
            await adopt(found, 1)
            with span(names.COMMIT):
                await HttpLink(url, client).status()
            await client.post(f"{url}{CONTROL_PREFIX}/abort", content="{}", headers={"traceparent": "junk"})
    [carried_out] = recording.named(f"{names.OPERATION}adopt")
    path = path_of(carried_out, [s for s in recording.spans if s.trace_id == carried_out.trace_id])
    assert path == [names.ADOPT, names.CALL, f"{names.OPERATION}adopt"]
    assert len(recording.spans) == 4


async def test_blockers_are_counted_by_few_words() -> None:
    """By the step that is in flight, whatever the tool is called; those past the list are told as such."""
    pause = Pause()
    async with fleet(memory_store()) as (at, controller), recorded() as recording:
        tools, resources = at.of("agent").owner, at.of("resources").owner
        many = lives(MANY)
        async with anyio.create_task_group() as group:
            for life in many:
                group.start_soon(_tool_call, tools, life, f"tool:named-by-a-model-{life.n}", pause)
            group.start_soon(_tool_call, resources, many[0], "increment_counter", pause)
            group.start_soon(_tool_call, resources, many[1], "seed_session", pause)
            await settle()
            with pytest.raises(Blocked):
                await take(at, controller, SHORT)
            pause.released.set()
    assert recording.total(names.BLOCKERS, participant="agent.main", reason="tool") == 20
    assert recording.total(names.BLOCKERS, participant="agent.main", reason=names.UNLISTED) == MANY - 20
    assert recording.total(names.BLOCKERS, participant="resources.main", reason="tool") == 1
    assert recording.total(names.BLOCKERS, participant="resources.main", reason="seed") == 1
    outcomes = [(v.labels["operation"], v.labels["outcome"]) for v in recording.values if "operation" in v.labels]
    assert ("checkpoint", "blocked") in outcomes
    assert ("prepare", "blocked") in outcomes
    [root] = recording.named(names.CHECKPOINT)
    assert root.attributes["blockers"] == MANY + 2
    assert recording.total(names.CHECKPOINT_HOLD) >= SHORT.prepare_timeout_s
    assert recording.problems() == []


async def _tool_call(owner: Any, life: Life, what: str, pause: Pause) -> None:
    held = await owner.enter(life, creates=True)
    async with owner.gate.step(held.life, what, "wait"):
        await pause()


async def test_what_is_over_is_refused_and_counted_by_its_code() -> None:
    """At the control plane and at the door for calls; what never began is not among them."""
    async with fleet(memory_store()) as (at, controller), recorded() as recording:
        await begin(at)
        await take(at, controller)
        agent = at.of("agent")
        stale = message(at, agent, Renew, round=CheckpointId(1, 1), lease_s=5)
        for call in (stale, stale.model_copy(update={"incarnation": "another"})):
            with pytest.raises(ParticipantError):
                await agent.link.send(call, Done)
        with pytest.raises(ParticipantError, match="invalid_phase"):
            await agent.link.send(stale.model_copy(update={"round": CheckpointId(1, 9)}), Done)
        await agent.owner.write(next_life(LIVES[0], 1, 9), "b", creates=True)
        with pytest.raises(ParticipantError, match="stale_life"):
            await agent.owner.write(LIVES[0], "c")
    counted = {v.labels["code"]: v.value for v in recording.values if v.name == names.REFUSED}
    assert counted == {"stale_round": 1, "wrong_incarnation": 1, "stale_life": 1}


# Recorders


async def test_recorders_that_raise_or_block_change_nothing() -> None:
    """The checkpoint beside them has the same records and bytes, a restore takes it up, and everybody works on."""
    plain, _ = await checkpointed_and_restored()
    failing, blocking = Failing(), Blocking()
    try:
        async with installed(failing):
            install(blocking)
            beside, notes = await checkpointed_and_restored()
    finally:
        blocking.let_go.set()
        await anyio.to_thread.run_sync(uninstall, blocking)
    assert beside == plain
    assert notes == [["a", "b"]] * 4
    assert {"span", "add", "observe", "gauge"} <= set(failing.calls)
    assert len(blocking.calls) > 1


async def checkpointed_and_restored() -> tuple[list[Any], list[list[str] | None]]:
    """What the checkpoint has, and what each participant has noted after it was restored and worked on."""
    store = memory_store()
    async with fleet(store) as (at, controller):
        await begin(at)
        await take(at, controller)
        await at.assert_open()
    async with fleet(store) as (at, controller):
        assert controller.head is not None
        round_ = controller.next_round()
        await restore(at.fleet, round_, controller.head, LIVES, timeout_s=10)
        await resume(at.fleet, round_)
        await at.write(next_life(LIVES[0], controller.epoch), "b")
        found = await open_checkpoint(store, controller.head)
        await found.verify()
        parts = [(ref.process_name, ref.records, ref.bytes) for ref in found.manifest.participants]
        return [found.manifest.scope, sorted(parts, key=str)], at.notes("r0")


# Every name


async def test_every_name_of_the_table_is_measured_and_no_other(tmp_path: Path) -> None:
    """A small fleet, a model server and a collection run say each of them, with labels as they are declared."""
    config, another = await anyio.to_thread.run_sync(two_runs, tmp_path)
    async with recorded() as recording:
        await rounds_of_all_ends(recording)
        await cuts_of_all_kinds()
        async with inside(config, Turns(turns=1)) as at:
            assert await at.checkpoints.take()
            async with anyio.create_task_group() as group:
                group.start_soon(at.checkpoints.run)
                await settle()
                await recording.read_gauges()
                group.cancel_scope.cancel()
        await run(another, OneTool())
    assert recording.problems() == []
    assert recording.names == {one.name for one in TABLE} - ON_THE_PAGE
    totals = {name: recording.total(name) for name in TOTALS}
    assert totals == TOTALS


def two_runs(folder: Path) -> list[Config]:
    """Their configurations."""
    folders = [folder / "one", folder / "two"]
    for each in folders:
        each.mkdir()
    return [configured(each) for each in folders]


async def rounds_of_all_ends(recording: Recording) -> None:
    """A checkpoint that is published, one that is aborted, one whose lease runs out; a restore, and a retire."""
    store = memory_store()
    async with fleet(store) as (at, controller):
        await begin(at)
        agent = at.of("agent")
        agent.owner.modes = Modes(checkpoint_mode="restart")
        round_ = controller.next_round()
        assert (await prepare(at.fleet, round_, timeout_s=5, lease_s=60)).restarts == set(LIVES)
        await recording.read_gauges()
        await abort(at.fleet, round_)
        agent.owner.modes = Modes()
        await take(at, controller)
        await prepare(at.fleet, controller.next_round(), timeout_s=0.01, lease_s=0.02)
        for server in at.servers:
            await server.owner.gate.wait_open()
        pause = agent.owner.hooks["write"] = Pause(shielded=True)
        async with anyio.create_task_group() as group:
            group.start_soon(_write_stopped, agent, LIVES[0])
            await pause.reached.wait()
            with pytest.raises(Blocked):
                await take(at, controller, SHORT)
            assert await retire(at.fleet, LIVES[:1], timeout_s=0.01) == {LIVES[0]}
            pause.released.set()
        await agent.link.send(message(at, agent, Work), Worked)
        await agent.link.send(message(at, agent, Release, lives=(LIVES[1],)), Done)
        with pytest.raises(ParticipantError, match="takes no episodes"):
            await agent.link.send(message(at, agent, Submit, episodes=(Dispatched(life=LIVES[2], row={}),)), Submitted)
        with pytest.raises(ParticipantError, match="stale_life"):
            await agent.owner.write(LIVES[0], "b")
    async with fleet(store) as (at, controller):
        assert controller.head is not None
        round_ = controller.next_round()
        await restore(at.fleet, round_, controller.head, LIVES, timeout_s=10)
        await resume(at.fleet, round_)


async def _write_stopped(server: Server, life: Life) -> None:
    with pytest.raises(ParticipantError, match="stale_life"):
        await server.owner.write(life, "b")


async def cuts_of_all_kinds() -> None:
    """A cut that is continued, one that is generated anew, and a response that is held."""
    async with placed() as place:
        await cut_at(place, place.request("completions"), 3)
        await place.server.handle(place.request("completions", NEXT))
    async with placed() as place:
        place.policy = lambda prefix, weights: Verdict.ANEW
        await cut_at(place, place.request("completions"), 3)
        await place.server.handle(place.request("completions", NEXT))
        place.backend.board.hold(HoldOrder(after_tokens=3))
        async with anyio.create_task_group() as group:
            group.start_soon(place.server.handle, place.request("chat", LATER))
            await place.backend.calls.wait(lambda: place.backend.calls.counts()["held"] == 1)
            place.server.gate.close()
            place.backend.board.release(None)
            while place.server.counts()["held"] == 0:
                await anyio.lowlevel.checkpoint()
            place.server.gate.reopen()
