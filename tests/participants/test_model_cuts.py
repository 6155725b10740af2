"""Cuts at the model server: a generation cut at some token continues after a crash as if it never had been."""

import shutil
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from participants import ParticipantError, Request
from participants.inference.control import FailOrder, HoldOrder
from store import CheckpointId, Life
from tests.participants.resources.harness import checkpoint, restore
from tests.support.placed_model import (
    BODIES,
    CUTS,
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

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


@pytest.mark.enumerated(4)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BODIES)
async def test_a_cut_call_continues_and_its_reply_is_the_uncut_one(name: str, stream: bool) -> None:
    """Content, calls, log probabilities, reason and usage; the tokens before the cut are not generated again."""
    async with placed() as place:
        uncut = await place.server.handle(place.request(name, Life("other", 1, 0, 0)))
        expected = comparable(uncut.body)
        total = place.generated[-1]
        place.backend.calls.clear()
        cut = CUTS.get(name, 3)
        before = await cut_at(place, place.request(name, stream=stream), cut)
        assert (before["cut"], before["anew"]) == (1, 0)
        place.backend.calls.clear()
        reply = await place.server.handle(place.request(name, NEXT, stream=stream))
        assert await whole_of(BODIES[name][0], reply) == expected
        assert place.generated == [total - cut]
        assert place.server.counts()["tokens_continued"] == cut
        again = await place.server.handle(place.request(name, NEXT, stream=stream))
        assert await whole_of(BODIES[name][0], again) == expected
        assert len(place.generated) == 1


async def test_the_usage_of_a_continued_reply_counts_the_whole() -> None:
    """Prompt tokens are those of the first prompt, generated ones those of both parts."""
    async with placed() as place:
        uncut = await place.server.handle(place.request("chat", Life("other", 1, 0, 0)))
        await cut_at(place, place.request("chat"), 5)
        reply = await place.server.handle(place.request("chat", NEXT))
        assert reply.body["usage"] == uncut.body["usage"]


async def test_a_generation_is_cut_again_and_again() -> None:
    """Each crash continues from what the one before had continued; every token is generated once."""
    async with placed() as place:
        uncut = await place.server.handle(place.request("completions", Life("other", 1, 0, 0)))
        total = place.generated[-1]
        await cut_at(place, place.request("completions"), 2)
        place.backend.calls.clear()
        lives = [Life("r0", 2, 1, 0), Life("r0", 3, 2, 0)]
        place.backend.board.hold(HoldOrder(after_tokens=4))
        async with anyio.create_task_group() as group:
            group.start_soon(place.server.handle, place.request("completions", lives[0]))
            await place.backend.calls.wait(lambda: place.backend.calls.counts()["held"] == 1)
            await until_heard(place.server, 4)
            server: Any = place.server
            records = await checkpoint(server, {lives[0]})
            place.server = place.fresh()
            await restore(place.server, records)  # type: ignore[arg-type]
            group.cancel_scope.cancel()
        await place.let_go()
        reply = await place.server.handle(place.request("completions", lives[1]))
        assert comparable(reply.body) == comparable(uncut.body)
        assert place.generated == [4, total - 6]


async def test_another_request_under_the_same_id_is_generated_anew() -> None:
    """The prefix answers only the request that it is the beginning of."""
    async with placed() as place:
        await cut_at(place, place.request("chat"), 4)
        place.backend.calls.clear()
        await place.server.handle(place.request("chat", NEXT, temperature=0.5))
        assert place.server.counts()["tokens_continued"] == 0
        assert len(place.generated) == 1


async def test_a_call_without_an_id_continues_a_cut_once() -> None:
    """By its digest; the next one of the same kind has a generation of its own."""
    async with placed() as place:
        await cut_at(place, place.request("completions", call=None), 6)
        await place.server.handle(place.request("completions", NEXT, None))
        await place.server.handle(place.request("completions", NEXT, None))
        assert place.server.counts()["tokens_continued"] == 6


async def test_a_stream_that_breaks_off_is_continued_by_a_repeat() -> None:
    """The reader is told; the same call again gets the whole, and only the rest is generated."""
    async with placed() as place:
        uncut = await place.server.handle(place.request("completions", Life("other", 1, 0, 0)))
        total = place.generated[-1]
        place.backend.calls.clear()
        place.backend.board.fail(FailOrder(after_tokens=7))
        broken = await place.server.handle(place.request("completions", stream=True))
        with pytest.raises(ParticipantError, match="broke off"):
            await text_of(broken)
        again = await place.server.handle(place.request("completions", stream=True))
        assert await whole_of("/v1/completions", again) == comparable(uncut.body)
        assert place.generated == [7, total - 7]


async def test_a_generation_whose_stream_breaks_off_goes_on_at_once() -> None:
    """A client that does not stream sees nothing of it."""
    async with placed() as place:
        uncut = await place.server.handle(place.request("chat", Life("other", 1, 0, 0)))
        total = place.generated[-1]
        place.backend.calls.clear()
        place.backend.board.fail(FailOrder(after_tokens=7))
        reply = await place.server.handle(place.request("chat"))
        assert comparable(reply.body) == comparable(uncut.body)
        assert place.generated == [7, total - 7]


async def test_what_the_backend_does_not_declare_is_generated_anew_and_counted_with_its_reason() -> None:
    """Unless the caller accepts another rest than the uncut one."""
    async with placed() as place:
        more: dict[str, Any] = {"response_format": {"type": "json_object"}}
        await cut_at_anew(place, place.request("chat", **more))
        place.backend.calls.clear()
        await place.server.handle(place.request("chat", NEXT, **more))
        assert place.server.counts()["tokens_continued"] == 0
        assert place.server.counts()["regenerated_undeclared_feature"] == 1


async def cut_at_anew(place: Place, request: Request) -> None:
    """As `cut_at`, for a call that will not be continued."""
    place.backend.board.hold(HoldOrder(after_tokens=4))
    async with anyio.create_task_group() as group:
        group.start_soon(place.server.handle, request)
        await place.backend.calls.wait(lambda: place.backend.calls.counts()["held"] == 1)
        counts = place.server.counts()
        assert (counts["cut"], counts["anew"], counts["anew_undeclared_feature"]) == (0, 1, 1)
        await until_heard(place.server, 4)
        await place.crash()
        group.cancel_scope.cancel()
    await place.let_go()


@pytest.mark.parametrize("name", BODIES)
async def test_a_cut_that_the_worker_keeps_continues_by_its_key(name: str, tmp_path: Path) -> None:
    """The record has a key and no ids; the continued reply is the uncut one, and the first tokens are not generated."""
    async with placed(tmp_path) as place:
        uncut = await place.server.handle(place.request(name, Life("other", 1, 0, 0)))
        total = place.generated[-1]
        place.backend.calls.clear()
        cut = CUTS.get(name, 3)
        await cut_at(place, place.request(name), cut)
        [stored] = place.server.brought("r0")["state"]["cuts"]
        assert (stored["prefix"]["ids"], stored["prefix"]["staged"]["count"]) == (None, cut)
        place.backend.calls.clear()
        reply = await place.server.handle(place.request(name, NEXT))
        assert comparable(reply.body) == comparable(uncut.body)
        assert place.generated == [total - cut]


async def test_a_worker_that_has_lost_its_tokens_generates_anew(tmp_path: Path) -> None:
    """The key is refused, the reason counted, and the reply is whole."""
    async with placed(tmp_path) as place:
        uncut = await place.server.handle(place.request("chat", Life("other", 1, 0, 0)))
        await cut_at(place, place.request("chat"), 3)
        await anyio.to_thread.run_sync(shutil.rmtree, tmp_path / "packs")
        reply = await place.server.handle(place.request("chat", NEXT))
        assert comparable(reply.body) == comparable(uncut.body)
        assert place.server.generator.anew == {"staged_lost": 1}
        assert place.server.generator.tokens == {"regenerated": 3}


async def test_pins_stand_until_their_checkpoint_is_gone(tmp_path: Path) -> None:
    """A commit pins its keys; a later one lets go of those whose checkpoint no longer stands."""
    async with placed(tmp_path) as place:
        place.backend.board.hold(HoldOrder(after_tokens=3))
        async with anyio.create_task_group() as group:
            group.start_soon(place.server.handle, place.request("chat"))
            await place.backend.calls.wait(lambda: place.backend.calls.counts()["held"] == 1)
            await until_heard(place.server, 3)
            first, second = CheckpointId(1, 1), CheckpointId(1, 2)
            await place.server.freeze({LIFE})
            await place.server.pin("run", first)
            await place.server.release("run", {first}, second)
            assert await pinned(place) == [str(first)]
            await place.server.freeze({LIFE})
            await place.server.pin("run", second)
            await place.server.release("run", set(), second)
            assert await pinned(place) == [str(second)]
            group.cancel_scope.cancel()
        await place.let_go()


async def pinned(place: Place) -> list[str]:
    """Checkpoints with pins, as the worker says."""
    reply = await place.endpoint.get("/midflight/v1/staging/status?run=run")
    found: list[str] = reply.body["pinned"]
    return found
