"""How calls at the model server end that are broken off, given up, or found out to be no generation at their end."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from participants import Code, ModelServer, ParticipantError, Reply, Request, data_app
from participants.backends import Feature
from participants.data import CALL_HEADER, LIFE_HEADER
from participants.inference.control import FailOrder, HoldOrder
from participants.ledger import Ledger
from store import Life
from tests.participants.resources.harness import checkpoint, restore
from tests.support.journal import Journal
from tests.support.placed_model import (
    CALL,
    LIFE,
    NEXT,
    Place,
    comparable,
    cut_at,
    placed,
    text_of,
    until_heard,
    whole_of,
)
from tests.support.scripted import STREAM, ScriptedUpstream, scripted_row

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

OTHER = Life("other", 1, 0, 0)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_continuation_that_is_given_up_keeps_all_that_had_come(stream: bool, named: bool) -> None:
    """Cancelled in the middle of the rest: the next one of its kind goes on from there."""
    call = CALL if named else None
    async with placed() as place:
        uncut = await place.server.handle(place.request("completions", OTHER))
        total = place.generated[-1]
        await cut_at(place, place.request("completions", LIFE, call, stream=stream), 3)
        place.backend.calls.clear()
        place.backend.board.hold(HoldOrder(after_tokens=4))
        async with anyio.create_task_group() as group:
            group.start_soon(place.server.handle, place.request("completions", NEXT, call, stream=stream))
            await place.backend.calls.wait(lambda: place.backend.calls.counts()["held"] == 1)
            await until_heard(place.server, 4)
            group.cancel_scope.cancel()
        await place.let_go()
        reply = await place.server.handle(place.request("completions", NEXT, call, stream=stream))
        assert await whole_of("/v1/completions", reply) == comparable(uncut.body)
        assert place.generated == [4, total - 7]


async def test_a_whole_call_that_is_given_up_keeps_what_had_come() -> None:
    """Without any crash."""
    async with placed() as place:
        await place.server.handle(place.request("completions", OTHER))
        total = place.generated[-1]
        place.backend.calls.clear()
        place.backend.board.hold(HoldOrder(after_tokens=5))
        async with anyio.create_task_group() as group:
            group.start_soon(place.server.handle, place.request("completions"))
            await place.backend.calls.wait(lambda: place.backend.calls.counts()["held"] == 1)
            await until_heard(place.server, 5)
            group.cancel_scope.cancel()
        await place.let_go()
        await place.server.handle(place.request("completions"))
        assert place.generated == [5, total - 5]


@pytest.mark.parametrize("named", [True, False])
async def test_a_stream_that_ends_while_closed_has_one_disposition(named: bool) -> None:
    """Held; and after a crash it is served once, with nothing left over for another call."""
    call = CALL if named else None
    async with placed() as place:
        place.backend.board.hold(HoldOrder(after_tokens=3))
        async with anyio.create_task_group() as group:

            async def client() -> None:
                await text_of(await place.server.handle(place.request("completions", LIFE, call, stream=True)))

            group.start_soon(client)
            await place.backend.calls.wait(lambda: place.backend.calls.counts()["held"] == 1)
            await until_heard(place.server, 3)
            place.server.gate.close()
            place.backend.board.release(None)
            with anyio.fail_after(10):
                while place.server.counts()["held"] == 0:
                    await anyio.lowlevel.checkpoint()
            counts = place.server.counts()
            assert {name: counts[name] for name in ("kept", "held", "cut", "anew")} == {
                "kept": 0, "held": 1, "cut": 0, "anew": 0
            }  # fmt: skip
            server: Any = place.server
            records = await checkpoint(server, {LIFE})
            place.server.gate.reopen()
        place.server = place.fresh()
        await restore(place.server, records)  # type: ignore[arg-type]
        place.backend.calls.clear()
        await text_of(await place.server.handle(place.request("completions", NEXT, call, stream=True)))
        assert place.generated == []
        if not named:
            await text_of(await place.server.handle(place.request("completions", NEXT, call, stream=True)))
            assert len(place.generated) == 1
            assert place.server.counts()["tokens_continued"] == 0


BROKEN = {
    "an error": [STREAM[0], b'data: {"error":{"message":"out of memory"}}\n\n'],
    "no end": list(STREAM[:3]),
    "garbage": [STREAM[0], b"data: {nothing\n\n"],
}
"""Streams that are no whole generation, though their connection ends as any other."""


@pytest.mark.parametrize("pieces", BROKEN.values(), ids=BROKEN)
async def test_a_stream_that_is_no_whole_generation_fails_and_is_kept_by_nobody(
    pieces: list[bytes], tmp_path: Path
) -> None:
    """Its client gets what came and then an error; the ledger has the failure; a repeat generates anew."""
    upstream = Broken(Journal(), pieces)
    ledger = Ledger(str(tmp_path))
    server = ModelServer(upstream, ledger=ledger)
    body = {**scripted_row("r0", ["done"])["responses_create_params"], "stream": True}
    request = placed_request(body)
    reply: Any = await server.handle(request)
    with pytest.raises(ParticipantError) as caught:
        await text_of(reply)
    assert caught.value.code.value == "model_failed"
    assert [row.outcome for row in await ledger.rows("r0")] == ["model_failed"]
    assert (server.counts()["kept"], server.counts()["in_flight"]) == (0, 0)
    upstream.pieces = list(STREAM)
    await text_of(await server.handle(request))
    assert [row.outcome for row in await ledger.rows("r0")] == ["model_failed", "completed"]


class Broken(ScriptedUpstream):
    """Streams what it is told to."""

    def __init__(self, journal: Journal, pieces: list[bytes]) -> None:
        super().__init__(journal)
        self.pieces = pieces

    def stream(self, *args: Any, **options: Any) -> Any:
        return _Streaming(self.pieces)


class _Streaming:
    """One stream of given pieces."""

    status = 200

    def __init__(self, pieces: list[bytes]) -> None:
        self._left = list(pieces)

    async def __aenter__(self) -> "_Streaming":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""

    def __aiter__(self) -> "_Streaming":
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)

    def close(self) -> None:
        self._left.clear()


def placed_request(body: dict[str, Any]) -> Any:
    """A call of Responses."""
    return Request(route="/v1/responses", body=body, life=LIFE, call=CALL)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_call_is_a_row_streamed_or_not(stream: bool, tmp_path: Path) -> None:
    """With its status."""
    ledger = Ledger(str(tmp_path))
    async with placed(ledger=ledger) as place:
        reply: Reply = await place.server.handle(place.request("chat", model="other", stream=stream))
        assert reply.status == 404
        assert [row.outcome for row in await ledger.rows("r0")] == ["status_404"]


async def test_what_clients_without_ids_have_given_up_is_bounded() -> None:
    """Only the newest beginnings are kept."""
    async with placed() as place:
        for number in range(20):
            place.backend.board.fail(FailOrder(after_tokens=2))
            reply = await place.server.handle(
                place.request("completions", call=None, stream=True, prompt=f"story {number}")
            )
            with pytest.raises(ParticipantError):
                await text_of(reply)
        [held] = place.server.held()
        assert len(held.state.cuts) == 16


async def test_a_row_that_cannot_be_written_costs_no_token(tmp_path: Path) -> None:
    """The call fails, typed; the same call again, when there is space, generates nothing."""
    ledger = Ledger(str(tmp_path))
    async with placed(ledger=ledger) as place:
        await place.server.handle(place.request("completions", OTHER))
        place.backend.calls.clear()
        await ledger.begin(LIFE)
        broken = ledger.append
        ledger.append = refusing  # type: ignore[method-assign]
        with pytest.raises(ParticipantError, match="store_failed"):
            await place.server.handle(place.request("completions"))
        ledger.append = broken  # type: ignore[method-assign]
        total = place.generated[0]
        await place.server.handle(place.request("completions"))
        assert sum(place.generated) == total


async def refusing(*_: Any, **__: Any) -> Any:
    """A disk that is full."""
    raise ParticipantError(Code.STORE_FAILED, "no space left")


@pytest.mark.parametrize("accepts", [True, False])
async def test_a_call_that_accepts_another_rest_is_a_cut(accepts: bool) -> None:
    """The status says so at once, and not only after the restore."""
    async with placed() as place:
        assert place.known is not None
        place.known = replace(place.known, declared=place.known.declared - {Feature.SEED})
        place.server = place.fresh()
        headers = {"x-midflight-accept": "resampled"} if accepts else {}
        request = replace(place.request("completions", temperature=0.5, seed=3), headers=headers)
        place.backend.board.hold(HoldOrder(after_tokens=3))
        async with anyio.create_task_group() as group:
            group.start_soon(place.server.handle, request)
            await place.backend.calls.wait(lambda: place.backend.calls.counts()["held"] == 1)
            await until_heard(place.server, 3)
            counts = place.server.counts()
            assert (counts["cut"], counts.get("anew_undeclared_feature", 0)) == ((1, 0) if accepts else (0, 1))
            group.cancel_scope.cancel()
        await place.let_go()


@pytest.mark.parametrize("named", [True, False])
async def test_a_client_that_goes_away_ends_its_generation(named: bool) -> None:
    """Over HTTP, without a stream: the backend stops, and the same call again generates only the rest."""
    async with placed() as place:
        await place.server.handle(place.request("completions", OTHER))
        total = place.generated[-1]
        place.backend.calls.clear()
        place.backend.board.hold(HoldOrder(after_tokens=5))
        request = place.request("completions", LIFE, CALL if named else None)
        gone = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(client_of, place, request, gone)
            await place.backend.calls.wait(lambda: place.backend.calls.counts()["held"] == 1)
            await until_heard(place.server, 5)
            gone.set()
            await place.backend.calls.wait(lambda: place.backend.calls.counts()["aborted"] == 1)
        await place.let_go()
        reply = await place.server.handle(request)
        assert reply.body["usage"]["completion_tokens"] == total
        assert place.generated == [5, total - 5]


async def client_of(place: Place, request: Request, gone: anyio.Event) -> None:
    """A client over HTTP that sends its call, and goes away when it is told to."""
    messages = [{"type": "http.request", "body": orjson.dumps(request.body), "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Nobody reads it."""

    identity = {LIFE_HEADER: request.life, CALL_HEADER: request.call}
    headers = [(name.encode(), str(value).encode()) for name, value in identity.items() if value]
    scope = {"type": "http", "method": "POST", "path": request.route, "headers": headers, "query_string": b""}
    await data_app(place.server)(scope, receive, send)
