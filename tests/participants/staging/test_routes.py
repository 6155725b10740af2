"""The staging routes and their client: an answer for each item, strict messages, typed refusals, bounded waits."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette

from participants import Code, ParticipantError
from participants.data import Reply
from participants.staging import (
    STAGING_PREFIX,
    Reason,
    Refused,
    Stager,
    StagingRefused,
    TokenStore,
    Wanted,
    digest_of_ids,
    staging_routes,
)
from participants.staging import client as staging
from participants.staging.wire import Begin, Source
from store import CheckpointId, IOFailed, MemoryBackend
from store.backends import Fault, MemorySpace

from .made import CALL, CONTEXT, PROMPT, RUN, SMALL, all_staged, identity, opened, some_ids, wanted

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

TOKEN = "secret"
FIRST = CheckpointId(1, 1)


class Worker:
    """A helper and its routes in this process, with a client of each sort."""

    def __init__(self, http: httpx.AsyncClient, backend: MemoryBackend, stager: Stager) -> None:
        self.http, self.backend, self.stager = http, backend, stager

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """As `staging.Post`."""
        reply = await self.http.post(path, json=dict(body))
        return Reply(reply.status_code, reply.json())

    async def refused(self, name: str, body: Any) -> ParticipantError:
        """What a route says no with."""
        reply = await self.http.post(f"{STAGING_PREFIX}/{name}", json=body)
        assert reply.is_error, reply.text
        return ParticipantError.from_body(reply.status_code, reply.json())


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    """One worker with a token."""
    backend = MemoryBackend(space=MemorySpace())
    stager = Stager(TokenStore(backend, replace(SMALL, max_items=50)), context_length=CONTEXT)
    transport = httpx.ASGITransport(Starlette(routes=staging_routes(stager, TOKEN)))
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://worker", headers=headers) as http:
        yield Worker(http, backend, stager)


async def test_many_calls_are_staged_pinned_checked_and_let_go(worker: Worker) -> None:
    """The whole life of staged tokens, through the client."""
    buffers = opened(worker.stager, 30)
    asked = [*wanted(buffers), Wanted(identity(99))]
    *outcomes, missing = await staging.stage_all(worker.post, asked, 30)
    staged = all_staged(outcomes)
    assert missing == Refused(Reason.NOT_ACTIVE, "nothing is generated for it here")
    assert [each.digest for each in staged] == [digest_of_ids(some_ids(n)) for n in range(30)]
    assert await staging.stage_all(worker.post, wanted(buffers), 30) == outcomes
    keys = [each.key for each in staged]
    assert await staging.pin_all(worker.post, RUN, FIRST, keys) == 30
    swept = await staging.sweep(worker.post, 0)
    assert (swept.packs, swept.kept) == (0, 0)
    cut = begin_of(keys[3], 3)
    answer = await staging.begin(worker.post, cut)
    assert (answer.life, answer.call, answer.count, answer.ids) == (identity(3).life, CALL, 8, tuple(some_ids(3)))
    assert (await staging.begin(worker.post, cut.model_copy(update={"return_ids": False}))).ids is None
    assert await staging.unpin(worker.post, RUN, FIRST) == 1
    assert (await staging.sweep(worker.post, 0)).packs == 10
    with pytest.raises(StagingRefused) as refused:
        await staging.begin(worker.post, cut)
    assert refused.value.reason is Reason.UNKNOWN_KEY
    with pytest.raises(StagingRefused):
        await staging.pin_all(worker.post, RUN, FIRST, keys)


def begin_of(key: str, n: int) -> Begin:
    """A true cut of rollout `r<n>`, continued by its next attempt."""
    later = Source(life=identity(n, attempt=1).life, call=CALL)
    return Begin(
        key=key, count=8, digest=digest_of_ids(some_ids(n)), life=identity(n).life, call=CALL, by=later,
        prompt_count=PROMPT.count, prompt_digest=PROMPT.digest, max_tokens=5, return_ids=True,
    )  # fmt: skip


async def test_each_thing_that_is_wrong_with_a_cut_is_told_by_its_reason(worker: Worker) -> None:
    """Over the wire as in process; nothing is begun."""
    [staged] = all_staged(await worker.stager.stage(wanted(opened(worker.stager, 1))))
    true = begin_of(staged.key, 0)
    wrong: list[tuple[Reason, dict[str, Any]]] = [
        (Reason.UNKNOWN_KEY, {"key": "x"}),
        (Reason.WRONG_COUNT, {"count": 7}),
        (Reason.WRONG_DIGEST, {"digest": "0" * 64}),
        (Reason.WRONG_IDENTITY, {"call": "agent.main:0.1"}),
        (Reason.WRONG_IDENTITY, {"by": Source(life=identity(1).life, call=CALL)}),
        (Reason.WRONG_PROMPT, {"prompt_digest": "0" * 64}),
        (Reason.OUT_OF_ORDER, {"prompt_count": 11}),
        (Reason.TOO_LONG, {"max_tokens": CONTEXT}),
    ]
    for reason, change in wrong:
        with pytest.raises(StagingRefused) as refused:
            await staging.begin(worker.post, true.model_copy(update=change))
        assert (refused.value.reason, refused.value.code) == (reason, Code.INVALID_REQUEST)
    assert worker.stager.counts["begun"] == 0


ITEM = {"life": "r0/1.0#0", "call": CALL}
CUT = {"key": "x", "count": 1, "digest": "0" * 64, "prompt_count": 1, "prompt_digest": "0" * 64}


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("stage", {"items": [ITEM | {"colour": "red"}]}, "colour"),
        ("stage", {"items": [ITEM | {"life": "r0"}]}, "life"),
        ("stage", {"items": [ITEM | {"count": -1}]}, "count"),
        ("stage", {"items": [ITEM | {"count": 1.5}]}, "count"),
        ("stage", {"items": [ITEM | {"digest": "x"}]}, "digest"),
        ("stage", {"items": [ITEM | {"call": "x" * 2_000}]}, "call"),
        ("stage", {"items": [ITEM] * 51}, "51 items"),
        ("stage", {}, "items"),
        ("stage", [], "body"),
        ("begin", {"key": "x"}, "count"),
        ("begin", CUT | {"colour": 1}, "colour"),
        ("begin", CUT | {"life": "r0/1.0#0"}, "a life and a call"),
        ("pin", {"run": "../x", "checkpoint": "1.1", "keys": []}, "run"),
        ("pin", {"run": RUN, "checkpoint": "1", "keys": []}, "checkpoint"),
        ("pin", {"run": RUN, "checkpoint": "1.1", "keys": ["x"] * 51}, "51 keys"),
        ("unpin", {"run": RUN, "checkpoint": "1.1", "keys": []}, "keys"),
        ("sweep", {"older_than_s": -1}, "older_than_s"),
    ],
)  # fmt: skip
async def test_a_message_that_is_not_ours_is_refused(worker: Worker, name: str, body: Any, says: str) -> None:
    """Unknown fields, wrong names and too many items: `invalid_request` that names the field, and nothing is done."""
    error = await worker.refused(name, body)
    assert error.code is Code.INVALID_REQUEST
    assert says in error.message
    assert worker.backend.calls == []


async def test_a_body_that_is_too_large_is_refused_while_it_comes(worker: Worker) -> None:
    """It is never held whole."""
    most = worker.stager.store.limits.max_body_bytes
    reply = await worker.http.post(f"{STAGING_PREFIX}/stage", content=b" " * (most + 1))
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("name", ["stage", "begin", "pin", "unpin", "sweep", "status"])
async def test_every_route_needs_the_token(worker: Worker, name: str) -> None:
    """A wrong one learns nothing."""
    method = "GET" if name == "status" else "POST"
    headers = {"authorization": "Bearer wrong"}
    reply = await worker.http.request(method, f"{STAGING_PREFIX}/{name}", headers=headers, content=b"{")
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "unauthorized")


async def test_the_status_says_what_can_be_staged_and_what_is_pinned(worker: Worker) -> None:
    """Counts of this process; the checkpoints of a run only where one is asked for."""
    first, _ = opened(worker.stager, 2)
    worker.stager.close(first)
    [staged, _] = all_staged(await worker.stager.stage([Wanted(identity(0)), Wanted(identity(1), 2)]))
    await staging.pin_all(worker.post, RUN, FIRST, [staged.key])
    status = (await worker.http.get(f"{STAGING_PREFIX}/status")).json()
    assert (status["active"], status["ended"], status["pinned"]) == (1, 1, None)
    assert status["counts"] == {"staged": 2, "staged_tokens": 10}
    assert (await worker.http.get(f"{STAGING_PREFIX}/status?run={RUN}")).json()["pinned"] == ["1.1"]
    assert (await worker.http.get(f"{STAGING_PREFIX}/status?run=A")).status_code == 422


async def test_an_error_of_the_store_is_an_error_of_the_route(worker: Worker) -> None:
    """Of a pin and a begin, which cannot do without; a stage answers item by item."""
    [staged] = all_staged(await worker.stager.stage(wanted(opened(worker.stager, 1))))
    worker.backend.inject(Fault(times=99, error=lambda call: IOFailed(call.verb, call.key, "broken")))
    for call in (
        staging.pin_all(worker.post, RUN, FIRST, [staged.key]),
        staging.begin(worker.post, begin_of(staged.key, 0)),
    ):
        with pytest.raises(ParticipantError) as failed:
            await call
        assert failed.value.code is Code.STORE_FAILED
    [outcome] = await staging.stage_all(worker.post, [Wanted(identity(0), 3)], 30)
    assert isinstance(outcome, Refused)
    assert outcome.reason is Reason.STORE_FAILED


# The client alone


def answering(answer: Any, status: int = 200) -> staging.Post:
    """A worker that always says the same."""

    async def post(path: str, body: Mapping[str, Any]) -> Reply:
        return Reply(status, answer)

    return post


STAGED = ITEM | {"key": "0" * 32 + ".0.1", "count": 8, "digest": "0" * 64}


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ("<html>", 200, Reason.UNREACHABLE),
        ({"items": []}, 200, Reason.UNREACHABLE),
        ({"items": [STAGED, STAGED]}, 200, Reason.UNREACHABLE),
        ({"items": [STAGED | {"life": "r1/1.0#0"}]}, 200, Reason.WRONG_IDENTITY),
        ({"items": [STAGED | {"count": 9}]}, 200, Reason.WRONG_COUNT),
        ({"items": [STAGED | {"digest": "1" * 64}]}, 200, Reason.WRONG_DIGEST),
        ({"items": [ITEM]}, 200, Reason.UNREACHABLE),
        ({"items": [ITEM | {"reason": "too_few"}]}, 200, Reason.TOO_FEW),
        ({"detail": "Not Found"}, 404, Reason.UNREACHABLE),
        ("busy", 503, Reason.UNREACHABLE),
        ({"error": {"code": "unauthorized", "message": "no"}}, 401, Reason.UNREACHABLE),
    ],
)
async def test_staging_has_an_outcome_whatever_a_worker_answers(answer: Any, status: int, reason: Reason) -> None:
    """It raises nothing, and takes no key of which the worker says something else than was asked for."""
    asked = Wanted(identity(0), 8, "0" * 64)
    [outcome] = await staging.stage_all(answering(answer, status), [asked], 30)
    assert isinstance(outcome, Refused)
    assert outcome.reason is reason


async def test_staging_ends_at_its_deadline_with_what_was_acknowledged() -> None:
    """A worker that hangs for some requests holds nothing up; the others count."""
    items = [Wanted(identity(n)) for n in range(3 * staging.STAGE_ITEMS)]

    async def post(path: str, body: Mapping[str, Any]) -> Reply:
        if body["items"][0]["life"] == str(items[staging.STAGE_ITEMS].identity.life):
            await anyio.sleep_forever()
        return Reply(200, {"items": [STAGED | {"life": item["life"]} for item in body["items"]]})

    outcomes = await staging.stage_all(post, items, 1.5)
    late = [isinstance(each, Refused) and each.reason is Reason.DEADLINE for each in outcomes]
    some = staging.STAGE_ITEMS
    assert late == [False] * some + [True] * some + [False] * some
    assert await staging.stage_all(post, [], 1) == []


@pytest.mark.parametrize("answer", [("<html>", 200), ({"detail": "Not Found"}, 404), ("x", 500)])
async def test_a_pin_raises_where_the_worker_cannot_confirm_it(answer: tuple[Any, int]) -> None:
    """`model_failed`, with what it said."""
    with pytest.raises(ParticipantError) as failed:
        await staging.pin_all(answering(*answer), RUN, FIRST, ["k"])
    assert failed.value.code is Code.MODEL_FAILED
