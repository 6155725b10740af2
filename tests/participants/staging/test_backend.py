"""The deterministic backend with a token store: a cut continues the same inline and staged, in every dialect."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread
import orjson
import pytest

from participants.data import CALL_HEADER, LIFE_HEADER
from participants.inference import Backend, Settings, serving
from participants.inference.control import HoldOrder, Match
from participants.staging import Identity, Key, Staged, Wanted, client
from store import CheckpointId
from tests.support.checkpoints import life
from tests.support.tiers import sampled

from .made import CALL, RUN, all_staged

pytestmark = pytest.mark.anyio

SCRIPT = '<script>[{"filler": 6, "text": "é ünd", "call": {"name": "f", "arguments": {"a": 1}}}]</script>'
TOOL = {"name": "f", "parameters": {"type": "object"}}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "once upon a time", "max_tokens": 14, "ignore_eos": True},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": SCRIPT}],
        "tools": [{"type": "function", "function": TOOL}],
    },
    "/v1/responses": {"input": SCRIPT, "tools": [{"type": "function"} | TOOL]},
}
DIALECTS = sorted(ASKED)


def headers_of(who: Identity) -> dict[str, str]:
    """What the proxy sends."""
    return {LIFE_HEADER: str(who.life), CALL_HEADER: who.call}


def caller(n: int, attempt: int = 0) -> Identity:
    """The caller of rollout `r<n>`."""
    return Identity(life(f"r{n}", attempt=attempt), CALL)


def events(data: bytes) -> list[dict[str, Any]]:
    """The JSON events of a stream."""
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line.startswith(b"data: {")]
    return [orjson.loads(line) for line in lines]


def named(data: bytes, name: str) -> list[int]:
    """The ids that chunks name, wherever the dialect has them, in order."""
    found: list[int] = []
    for event in events(data):
        created = [event["response"]] if event.get("type") == "response.created" else []
        for place in (event, *created, *(event.get("choices") or [])):
            found += place.get(name) or []
    return found


@dataclass(slots=True)
class Uncut:
    """A generation that nothing stopped."""

    prompt: list[int]
    ids: list[int]


class Rig:
    """A backend in this event loop, and one session for it."""

    def __init__(self, backend: Backend, url: str, session: aiohttp.ClientSession) -> None:
        self.backend, self.url, self.session = backend, url, session
        self.post = client.posting(session, f"{url}/v1")

    def body(self, route: str, **more: Any) -> dict[str, Any]:
        """A streaming request that wants ids."""
        return {"model": self.backend.settings.model, "stream": True, "return_token_ids": True, **ASKED[route], **more}

    async def ask(self, route: str, body: dict[str, Any], who: Identity | None = None) -> tuple[int, bytes]:
        """One request to its end."""
        headers = headers_of(who) if who else {}
        async with self.session.post(self.url + route, json=body, headers=headers) as reply:
            return reply.status, await reply.read()

    async def uncut(self, route: str, **more: Any) -> Uncut:
        """Generate it whole."""
        status, data = await self.ask(route, self.body(route, **more))
        assert status == 200, data
        ids = named(data, "token_ids")
        completed = [event["response"] for event in events(data) if event.get("type") == "response.completed"]
        if completed:  # The end mark of a response stands in its last event alone.
            assert ids == completed[0]["token_ids"][:-1]
            ids = completed[0]["token_ids"]
        return Uncut(named(data, "prompt_token_ids"), ids)

    async def cut(self, route: str, k: int, who: Identity, **more: Any) -> Staged:
        """Hold it after k tokens, stage it, and hang up."""
        hold = self.backend.board.hold(HoldOrder(match=Match(headers=headers_of(who)), after_tokens=k))
        async with self.session.post(self.url + route, json=self.body(route, **more), headers=headers_of(who)):
            await self.backend.calls.wait(lambda: self.backend.calls.counts()["held"] == 1)
            [staged] = all_staged(await client.stage_all(self.post, [Wanted(who)], 30))
        await self.backend.calls.wait(lambda: self.backend.calls.counts()["held"] == 0)
        self.backend.board.release(hold)
        return staged

    async def rest(self, prompt: list[int], who: Identity, **more: Any) -> list[int]:
        """Continue by `/v1/completions`; the ids that come."""
        body = self.body("/v1/completions") | {"prompt": prompt, "max_tokens": None, "ignore_eos": False} | more
        status, data = await self.ask("/v1/completions", body, who)
        assert status == 200, data
        return named(data, "token_ids")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """A fresh backend with a token store."""
    settings = Settings(control=True, token_store=tmp_path / "tokens")
    backend = await anyio.to_thread.run_sync(Backend, settings)
    async with serving(backend) as url, aiohttp.ClientSession() as session:
        yield Rig(backend, url, session)
    backend.close()


def claim(staged: Staged, **more: Any) -> dict[str, Any]:
    """`staged` in a request."""
    return {"key": staged.key, "count": staged.count, "digest": staged.digest} | more


@sampled(5)
@pytest.mark.parametrize("route", DIALECTS)
async def test_a_cut_at_every_token_continues_the_same_inline_and_staged(rig: Rig, route: str, step: int) -> None:
    """Prefix and rest are the uncut ids both ways, and the backend saw the same prompt; also inside a tool's call."""
    whole = await rig.uncut(route)
    limits = {"max_tokens": len(whole.ids), "ignore_eos": True} if route == "/v1/completions" else {}
    assert len(whole.ids) > 12
    for k in range(1, len(whole.ids), step):
        staged = await rig.cut(route, k, caller(k))
        prefix = list((await rig.backend.stager.store.read(Key.parse(staged.key))).ids) if rig.backend.stager else []
        assert prefix == whole.ids[: staged.count]
        assert k - 4 < staged.count <= k  # some bytes of a character may be kept back
        more = limits | ({"max_tokens": len(whole.ids) - staged.count} if limits else {})
        inline = await rig.rest(whole.prompt + prefix, caller(k, 1), continued_tokens=len(prefix), **more)
        by_key = await rig.rest(whole.prompt, caller(k, 2), staged=claim(staged), **more)
        assert prefix + inline == whole.ids
        assert by_key == inline
        one, two = list(rig.backend.calls.since(0))[-2:]
        assert (one.prompt_sha256, one.continued) == (two.prompt_sha256, two.continued)
        assert (one.continued, one.generated) == (len(prefix), two.generated)


@pytest.mark.unit
async def test_a_call_that_was_cut_twice_is_staged_whole_both_times(rig: Rig) -> None:
    """The second cut, of the continuation, has the first prefix in it and is continued from the same prompt."""
    route = "/v1/completions"
    whole = await rig.uncut(route)
    first = await rig.cut(route, 4, caller(0))
    more = {"prompt": whole.prompt, "max_tokens": 10}
    second = await rig.cut(route, 5, caller(0, 1), staged=claim(first, life=str(caller(0).life), call=CALL), **more)
    assert (first.count, second.count) == (4, 9)
    source = {"life": str(caller(0, 1).life), "call": CALL}
    rest = await rig.rest(whole.prompt, caller(0, 2), staged=claim(second, **source), max_tokens=5, ignore_eos=True)
    assert rest == whole.ids[9:]


@pytest.mark.unit
async def test_a_call_that_was_continued_inline_is_staged_with_its_prefix(rig: Rig) -> None:
    """Where the caller says how much of the prompt is output already; its key then continues the prompt alone."""
    route = "/v1/completions"
    whole = await rig.uncut(route)
    more = {"prompt": whole.prompt + whole.ids[:4], "continued_tokens": 4, "max_tokens": 10}
    second = await rig.cut(route, 5, caller(0, 1), **more)
    assert second.count == 9
    rest = await rig.rest(whole.prompt, caller(0, 2), staged=claim(second), max_tokens=5, ignore_eos=True)
    assert rest == whole.ids[9:]


@pytest.mark.unit
async def test_generation_goes_on_while_it_is_staged(rig: Rig) -> None:
    """Nothing is aborted: after the hold the stream ends whole, and can still be staged at what its caller had read."""
    route, who = "/v1/completions", caller(0)
    whole = await rig.uncut(route)
    hold = rig.backend.board.hold(HoldOrder(match=Match(headers=headers_of(who)), after_tokens=5))
    async with rig.session.post(rig.url + route, json=rig.body(route), headers=headers_of(who)) as reply:
        await rig.backend.calls.wait(lambda: rig.backend.calls.counts()["held"] == 1)
        [held] = all_staged(await client.stage_all(rig.post, [Wanted(who)], 30))
        rig.backend.board.release(hold)
        assert named(await reply.read(), "token_ids") == whole.ids
    [again, ended] = all_staged(await client.stage_all(rig.post, [Wanted(who, 5), Wanted(who)], 30))
    assert (again.key, held.count, ended.count, ended.ended) == (held.key, 5, len(whole.ids), True)


@pytest.mark.unit
async def test_a_wrong_cut_is_refused_before_anything_is_generated(rig: Rig) -> None:
    """Each with its reason and status 422; the backend records no call."""
    route = "/v1/chat/completions"
    whole, other = await rig.uncut(route), await rig.uncut("/v1/completions")
    staged = await rig.cut(route, 6, caller(0))
    seen = rig.backend.calls.counts()["total"]
    prompt, later = whole.prompt, caller(0, 1)
    wrong: list[tuple[str, list[int], Identity, dict[str, Any]]] = [
        ("wrong_count", prompt, later, claim(staged, count=5)),
        ("wrong_digest", prompt, later, claim(staged, digest="0" * 64)),
        ("unknown_key", prompt, later, claim(staged, key="0" * 32 + ".0.9")),
        ("unknown_key", prompt, later, claim(staged, key="../../etc")),
        ("wrong_identity", prompt, later, claim(staged, life="r0/1.0#5", call=CALL)),
        ("wrong_identity", prompt, caller(1), claim(staged)),
        ("out_of_order", prompt, Identity(life("r0", epoch=0), CALL), claim(staged)),
        ("out_of_order", prompt + whole.ids[:6], later, claim(staged)),
        ("wrong_prompt", other.prompt, later, claim(staged)),
        ("invalid_request", prompt, later, claim(staged, life="r0/1.0#0")),
    ]
    for code, given, who, staged_field in wrong:
        body = rig.body("/v1/completions") | {"prompt": given, "max_tokens": None, "staged": staged_field}
        status, data = await rig.ask("/v1/completions", body, who)
        error = orjson.loads(data)["error"]
        assert (status, error["code"], error["param"]) == (422, code, "staged"), error
    assert rig.backend.stager is not None
    rig.backend.stager.context_length = len(prompt) + staged.count
    body = rig.body("/v1/completions") | {"prompt": prompt, "max_tokens": None, "staged": claim(staged)}
    status, data = await rig.ask("/v1/completions", body, later)
    assert (status, orjson.loads(data)["error"]["code"]) == (422, "too_long")
    status, data = await rig.ask("/v1/completions", body | {"staged": claim(staged, colour="red")}, later)
    assert (status, orjson.loads(data)["error"]["param"]) == (400, "staged.colour")
    assert rig.backend.calls.counts()["total"] == seen


@pytest.mark.unit
async def test_calls_without_an_identity_are_served_as_ever(rig: Rig) -> None:
    """They have no buffer; a staged cut may be continued by one of them too."""
    route = "/v1/completions"
    whole = await rig.uncut(route)
    assert rig.backend.stager is not None
    assert (rig.backend.stager.active, rig.backend.stager.ended) == (0, 0)
    staged = await rig.cut(route, 4, caller(0))
    body = rig.body(route) | {"prompt": whole.prompt, "max_tokens": 10, "staged": claim(staged)}
    _, data = await rig.ask(route, body)
    assert named(data, "token_ids") == whole.ids[4:]


@pytest.mark.unit
async def test_a_backend_without_a_token_store_says_so(tmp_path: Path) -> None:
    """No routes, and a staged cut is refused; nothing else changes."""
    backend = Backend(Settings())
    async with serving(backend) as url, aiohttp.ClientSession() as session:
        rig = Rig(backend, url, session)
        [outcome] = await client.stage_all(rig.post, [Wanted(caller(0))], 30)
        assert not isinstance(outcome, Staged)
        body = rig.body("/v1/completions") | {"staged": claim(Staged("k", 1, "0" * 64))}
        status, data = await rig.ask("/v1/completions", body, caller(0))
        assert (status, orjson.loads(data)["error"]["code"]) == (400, "unknown_key")


@pytest.mark.unit
async def test_many_calls_are_staged_at_one_moment_and_pinned(rig: Rig) -> None:
    """Forty streams held at once; each key has what its stream was shown, and outlives a sweep."""
    rig.backend.board.hold(HoldOrder(after_tokens=7))
    callers = [caller(n) for n in range(40)]
    shown: dict[Identity, bytes] = {}

    async def stream(who: Identity) -> None:
        body = rig.body("/v1/completions", prompt=f"prompt {who.life.rollout_id}", max_tokens=50)
        async with rig.session.post(rig.url + "/v1/completions", json=body, headers=headers_of(who)) as reply:
            shown[who] = b""
            async for chunk in reply.content.iter_any():
                shown[who] += chunk

    async with anyio.create_task_group() as tasks:
        for who in callers:
            tasks.start_soon(stream, who)
        await rig.backend.calls.wait(lambda: rig.backend.calls.counts()["held"] == 40)
        staged = all_staged(await client.stage_all(rig.post, [Wanted(who) for who in callers], 30))
        rig.backend.board.release(None)
    assert await client.pin_all(rig.post, RUN, CheckpointId(1, 1), [each.key for each in staged]) == 40
    await client.sweep(rig.post, 0)
    assert rig.backend.stager is not None
    for who, each in zip(callers, staged, strict=True):
        entry = await rig.backend.stager.store.read(Key.parse(each.key))
        assert entry.source == who
        assert list(entry.ids) == named(shown[who], "token_ids")[:7]
    status = await client.status(rig.session, rig.url, run=RUN)
    assert (status.active, status.ended, status.pinned) == (0, 40, (CheckpointId(1, 1),))
