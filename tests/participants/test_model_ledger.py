"""The capture ledger of a model server: a row for each call that has ended, and one chain across a crash."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from participants import ModelServer, OpenAIEndpoint, ParticipantError, Reply
from participants.backends import LazyCapabilities
from participants.data import CallId
from participants.inference.control import FailOrder
from participants.ledger import Ledger, check
from store import Life
from tests.participants.resources.harness import checkpoint, restore
from tests.support.placed_model import LIFE, NEXT, Place, cut_at, placed, text_of

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

FIRST, SECOND = CallId("agent.main", 1, 0), CallId("agent.main", 2, 0)


async def findings(ledger: Ledger, key: str) -> list[Any]:
    """What the independent checker says of a key."""
    manifest = await ledger.manifest(key)
    rows = [row.to_json() for row in await ledger.rows(key)]
    return list(check(rows, last=manifest.last, count=manifest.rows, lives=[*manifest.origins, manifest.life]))


async def ask(place: Place, name: str, life: Life, call: CallId | None, **more: Any) -> Any:
    """One call to its end."""
    reply = await place.server.handle(place.request(name, life, call, **more))
    return await text_of(reply) if reply.stream is not None else reply.body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_has_its_row_when_its_reply_is_released(stream: bool, tmp_path: Path) -> None:
    """With the ids of prompt and output, the reason, and the complete record beside it."""
    ledger = Ledger(str(tmp_path))
    async with placed(ledger=ledger) as place:
        await ask(place, "completions", LIFE, FIRST, stream=stream)
        [row] = await ledger.rows("r0")
        assert (row.call, row.outcome, row.route) == (str(FIRST), "completed", "/v1/completions")
        assert row.generated_count == place.generated[0]
        assert row.inline is not None
        [record] = await ledger.records("r0")
        assert record["request"]["prompt"] == "hello"
        assert await findings(ledger, "r0") == []


async def test_the_chain_goes_on_over_a_crash_and_a_cut_exactly_once(tmp_path: Path) -> None:
    """The first call of the next life has the last completed one as its parent; the cut of the dead life is in none."""
    ledger = Ledger(str(tmp_path))
    async with placed(ledger=ledger) as place:
        await ask(place, "chat", LIFE, FIRST)
        await cut_at(place, place.request("completions", LIFE, SECOND), 4)
        await ask(place, "completions", NEXT, SECOND)
        rows = await ledger.rows("r0-a1")
        assert [(row.call, row.parent, row.life) for row in rows] == [
            (str(FIRST), "", LIFE),
            (str(SECOND), str(FIRST), NEXT),
        ]
        assert rows[1].continued == 4
        assert await findings(ledger, "r0-a1") == []
        dead = await ledger.manifest("r0")
        assert dead.end


async def test_what_a_dead_life_did_after_its_boundary_is_in_no_chain_and_is_cleared(tmp_path: Path) -> None:
    """Restored twice from one checkpoint: the second life that continues it finds nothing of the first."""
    ledger = Ledger(str(tmp_path))
    async with placed(ledger=ledger) as place:
        await ask(place, "chat", LIFE, FIRST)
        server: Any = place.server
        records = await checkpoint(server, {LIFE})
        again = Life("r0", 3, 1, 0)
        for life in (NEXT, again):
            place.server = place.fresh()
            await restore(place.server, records)  # type: ignore[arg-type]
            await ask(place, "completions", life, SECOND)
        assert await ledger.lives("r0-a1") == [again]
        rows = await ledger.rows("r0-a1")
        assert [row.life for row in rows] == [LIFE, again]
        assert (await ledger.manifest("r0")).end
        assert await findings(ledger, "r0-a1") == []


async def test_a_call_that_fails_is_a_row_and_nobodys_parent(tmp_path: Path) -> None:
    """Its outcome is the code of the failure."""
    ledger = Ledger(str(tmp_path))
    async with placed(ledger=ledger) as place:
        place.backend.board.fail(FailOrder(status=503))
        with pytest.raises(ParticipantError):
            await ask(place, "chat", LIFE, FIRST)
        await ask(place, "chat", LIFE, SECOND)
        rows = await ledger.rows("r0")
        assert [(row.outcome, row.parent) for row in rows] == [("model_failed", ""), ("completed", "")]
        assert await findings(ledger, "r0") == []


class SlowToProbe:
    """An endpoint whose probes wait."""

    def __init__(self, endpoint: OpenAIEndpoint) -> None:
        self._endpoint = endpoint
        self.go_on = anyio.Event()

    async def get(self, path: str) -> Reply:
        await self.go_on.wait()
        return await self._endpoint.get(path)

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        return await self._endpoint.post(path, body)


async def test_calls_beside_a_slow_probe_have_their_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls that come while another one probes, however long that takes: without ids a ledger is of no use."""
    monkeypatch.setattr("participants.model.PROBE_PATIENCE_S", 0.0)
    ledger, lives = Ledger(str(tmp_path)), [LIFE, Life("r1", 1, 0, 1)]
    async with placed() as place:
        slow = SlowToProbe(place.endpoint)
        cuts = LazyCapabilities(slow, place.backend.settings.model)
        place.server = ModelServer(place.endpoint, cuts=cuts, ledger=ledger)
        async with anyio.create_task_group() as group:
            for life in lives:
                group.start_soon(ask, place, "completions", life, FIRST)
            await anyio.wait_all_tasks_blocked()
            slow.go_on.set()
        rows = [row for life in lives for row in await ledger.rows(life.rollout_id)]
        assert [row.outcome for row in rows] == ["completed"] * len(lives)
        assert all(row.segments and row.inline is not None for row in rows)


async def test_a_retired_life_takes_no_row(tmp_path: Path) -> None:
    """Its ledger is retired with it and stays readable."""
    ledger = Ledger(str(tmp_path))
    async with placed(ledger=ledger) as place:
        await ask(place, "chat", LIFE, FIRST)
        assert await place.server.retire([LIFE], 5.0) == []
        assert (await ledger.manifest("r0")).end
        with pytest.raises(ParticipantError, match="stale_life"):
            await ask(place, "chat", LIFE, SECOND)
        assert len(await ledger.rows("r0")) == 1


async def test_a_finished_life_keeps_nothing_in_memory(tmp_path: Path) -> None:
    """Its rows are on the disk, and can be asked for."""
    ledger = Ledger(str(tmp_path))
    async with placed(ledger=ledger) as place:
        await ask(place, "chat", LIFE, FIRST)
        place.server.finish(LIFE)
        assert place.server.counts()["ledgers"] == 0
        assert len(await ledger.rows("r0")) == 1
