"""Links: one suite over both, so that a participant behaves the same in this process and behind HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from orchestrator.links import NAMES, HttpLink, Link, LocalLink, http_client
from participants import (
    CONTROL_PREFIX,
    OPERATIONS,
    Code,
    ControlPlane,
    Done,
    Message,
    ParticipantError,
    Status,
    control_app,
)
from participants.control_http import LARGE_BODY_BYTES
from participants.wire import (
    Abort,
    Adopt,
    Adopted,
    Commit,
    Committed,
    Prepare,
    Prepared,
    Renew,
    Renewed,
    Resume,
    Retire,
    Retired,
)
from store import CheckpointId
from tests.support.checkpoints import memory_store
from tests.support.owners import ON_PUSHED_LOOP, Notebook, Pause, controlled, failing, lives, notebook, settle

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

TOKEN = "a-token"
[LIFE] = lives(1)


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


@dataclass
class Ends:
    """A link and what is behind it."""

    link: Link
    plane: ControlPlane
    owner: Notebook

    def call(self, **fields: Any) -> dict[str, Any]:
        """The envelope of round 1.1."""
        book = self.plane.book
        return {"run": book.run, "epoch": 1, "incarnation": book.incarnation, "round": CheckpointId(1, 1), **fields}


@asynccontextmanager
async def linked(kind: str, token: str = TOKEN) -> AsyncIterator[Ends]:
    """An adopted participant behind one kind of link."""
    owner, store = notebook(), memory_store()
    async with controlled(owner, store).run() as plane:
        await plane.adopt(Adopt(run=store.run_id, epoch=1))
        if kind == "local":
            yield Ends(LocalLink(plane), plane, owner)
            return
        app = Starlette(routes=[Mount(CONTROL_PREFIX, control_app(plane, TOKEN))])
        async with over(app, token) as http:
            yield Ends(HttpLink("http://here/", http), plane, owner)


def over(app: Any, token: str = TOKEN) -> httpx.AsyncClient:
    """A client like `http_client`, without a socket."""
    headers = http_client(token).headers
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), headers=headers, timeout=None)


both = pytest.mark.parametrize("kind", ["local", "http"])


@both
async def test_a_whole_round_goes_over_a_link(kind: str) -> None:
    """Each answer is of its type and equal to what the plane gave."""
    async with linked(kind) as ends:
        await ends.owner.write(LIFE, "a", creates=True)
        prepared = await ends.link.send(Prepare(**ends.call(timeout_s=1, lease_s=9)), Prepared)
        committed = await ends.link.send(Commit(**ends.call(scope=(LIFE,), parent=None)), Committed)
        assert (prepared.prepared, committed.manifest.records) == (True, 1)
        assert await ends.link.send(Renew(**ends.call(lease_s=9)), Renewed) == Renewed(lease_s=9)
        status = await ends.link.status()
        assert (status.phase, status.round) == ("prepared", CheckpointId(1, 1))
        assert await ends.link.send(Resume(**ends.call()), Done) == Done(phase="idle")
        envelope = {key: value for key, value in ends.call().items() if key != "round"}
        assert await ends.link.send(Retire(**envelope, lives=(LIFE,), timeout_s=1), Retired) == Retired()
        adopted = await ends.link.send(Adopt(run=ends.plane.book.run or "", epoch=2), Adopted)
        assert adopted.incarnation == (await ends.link.capabilities()).incarnation
        assert await ends.link.capabilities() == ends.plane.capabilities()


@both
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"epoch": 7}, Code.STALE_EPOCH),
        ({"incarnation": "other"}, Code.WRONG_INCARNATION),
        ({"run": "b" * 32}, Code.INVALID_REQUEST),
        ({}, Code.INVALID_PHASE),
    ],
)
async def test_a_refusal_is_the_same_error_over_either_link(kind: str, change: dict[str, Any], code: Code) -> None:
    """Code, message and details arrive as they were raised."""
    async with linked(kind) as ends:
        message = Commit(**{**ends.call(scope=(), parent=None), **change})
        with pytest.raises(ParticipantError) as raised:
            await ends.plane.commit(message)
        with pytest.raises(ParticipantError) as caught:
            await ends.link.send(message, Committed)
        assert caught.value.code is code
        assert vars(caught.value) == vars(raised.value)


@both
async def test_blockers_are_the_same_over_either_link(kind: str) -> None:
    """Life, participant, step and reason."""
    async with linked(kind) as ends, anyio.create_task_group() as group:
        pause = ends.owner.hooks["write"] = Pause()
        group.start_soon(lambda: ends.owner.write(LIFE, "a", creates=True))
        await pause.reached.wait()
        answer = await ends.link.send(Prepare(**ends.call(timeout_s=0.001, lease_s=9)), Prepared)
        named = [(b.life, b.participant, b.step, b.reason) for b in answer.blockers]
        assert named == [(LIFE, "agent.main", "write", "it writes a")]
        pause.released.set()


@both
async def test_a_status_names_as_many_blockers_as_are_asked_for(kind: str) -> None:
    """And always the number of all."""
    async with linked(kind) as ends, anyio.create_task_group() as group:
        pause = ends.owner.hooks["write"] = Pause()
        for life in lives(25):
            group.start_soon(partial(ends.owner.write, life, "a", creates=True))
        await settle()
        for asked, named in ((None, 20), (0, 0), (1, 1), (1000, 25)):
            status = await (ends.link.status() if asked is None else ends.link.status(asked))
            assert (len(status.blockers), status.blocker_count) == (named, 25)
        pause.released.set()


@pytest.mark.parametrize("given", ["-1", "x", "1.5", "9" * 12, "\u0663"])
async def test_a_number_of_blockers_that_is_none_is_refused(given: str) -> None:
    """By name, as any field of a message."""
    async with linked("http") as ends:
        assert isinstance(ends.link, HttpLink)
        with pytest.raises(ParticipantError, match="blockers") as caught:
            await ends.link._request("GET", f"status?blockers={given}", (), Status)
        assert caught.value.code is Code.INVALID_REQUEST


@both
async def test_a_link_leads_to_other_processes_only_over_http(kind: str) -> None:
    """With the same client; what is in this process has no address."""
    async with linked(kind) as ends:
        if kind == "http":
            assert repr(ends.link.at("http://there:1/")) == "<HttpLink http://there:1/checkpoint/v1>"
        else:
            with pytest.raises(ConnectionError, match="in this process"):
                ends.link.at("http://there:1/")


@both
async def test_a_hook_that_raises_is_internal_over_either_link(kind: str) -> None:
    """What it raised is in the message."""
    async with linked(kind) as ends:
        await ends.link.send(Prepare(**ends.call(timeout_s=1, lease_s=9)), Prepared)
        ends.owner.hooks["freeze"] = failing(ZeroDivisionError("planted"))
        with pytest.raises(ParticipantError) as caught:
            await ends.link.send(Commit(**ends.call(scope=(), parent=None)), Committed)
        assert caught.value.code is Code.INTERNAL
        assert "planted" in caught.value.message


@both
async def test_a_scope_of_very_many_lives_goes_over_either_link(kind: str) -> None:
    """Over HTTP it is parsed beside the event loop, and refused like any other where one of them is malformed."""
    async with linked(kind) as ends:
        envelope = {key: value for key, value in ends.call().items() if key != "round"}
        many = Retire(**envelope, lives=tuple(lives(40_000)), timeout_s=1)
        assert sum(map(len, many.written())) > LARGE_BODY_BYTES  # So that it goes in more than one piece.
        assert await ends.link.send(many, Retired) == Retired()
        bad = many.model_copy(update={"lives": (*many.lives, "../../etc")})
        if kind == "http":
            with pytest.raises(ParticipantError, match=r"lives\.40000") as caught:
                await ends.link.send(bad, Retired)
            assert caught.value.code is Code.INVALID_REQUEST


@both
async def test_an_abort_reaches_a_commit_that_is_going_on(kind: str) -> None:
    """Both calls are on their way at once, and both are answered."""
    async with linked(kind) as ends:
        await ends.link.send(Prepare(**ends.call(timeout_s=1, lease_s=9)), Prepared)
        pause = ends.owner.hooks["freeze"] = Pause()

        async def commit() -> None:
            with pytest.raises(ParticipantError) as caught:
                await ends.link.send(Commit(**ends.call(scope=(), parent=None)), Committed)
            assert caught.value.code is Code.STALE_ROUND

        async with anyio.create_task_group() as group:
            group.start_soon(commit)
            await pause.reached.wait()
            assert await ends.link.send(Abort(**ends.call()), Done) == Done(phase="idle")


def test_every_operation_has_one_message() -> None:
    """The route follows from the message."""
    assert {name: message for message, name in NAMES.items()} == {n: m for n, (m, _) in OPERATIONS.items()}
    assert all(issubclass(message, Message) for message in NAMES)


@pytest.mark.fault(65)
async def test_a_wrong_token_is_unauthorized() -> None:
    """The client is told, and nothing has changed."""
    async with linked("http", "wrong") as ends:
        with pytest.raises(ParticipantError) as caught:
            await ends.link.send(Prepare(**ends.call(timeout_s=1, lease_s=9)), Prepared)
        assert caught.value.code is Code.UNAUTHORIZED
        assert not ends.owner.gate.closed


@pytest.mark.fault(65, 66)
@pytest.mark.parametrize("token", ["", "secret ", "secret\n", "sécret"])
def test_what_no_header_can_hold_is_refused_without_showing_it(token: str) -> None:
    """As a token file with a line end has it; an error of the transport would show the token."""
    with pytest.raises(ValueError, match="printable ASCII") as caught:
        http_client(token)
    assert "cret" not in str(caught.value)


@pytest.mark.fault(37, 56)
async def test_a_server_that_is_gone_is_named_with_its_address() -> None:
    """A foreign error of the transport is translated at the link."""

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("")

    async with httpx.AsyncClient(transport=httpx.MockTransport(gone)) as http:
        link = HttpLink("http://here", http)
        for ask in (link.capabilities, link.status):
            with pytest.raises(ConnectionError, match=r"http://here/checkpoint/v1.*: the connection broke$"):
                await ask()


@pytest.mark.parametrize("status", [200, 404, 502])
async def test_an_answer_that_is_not_ours_is_an_error(status: int) -> None:
    """Whatever a proxy says, the caller gets an error of the participant."""

    async def answer(request: Request) -> Response:
        return PlainTextResponse("<html>", status)

    async with over(Starlette(routes=[Route("/{path:path}", answer)])) as http:
        with pytest.raises(ParticipantError) as caught:
            await HttpLink("http://here", http).capabilities()
    assert caught.value.code is Code.INTERNAL


async def test_its_repr_is_where_it_leads() -> None:
    """For errors of discovery."""
    async with http_client(TOKEN) as http:
        assert repr(HttpLink("http://here/", http)) == "<HttpLink http://here/checkpoint/v1>"
    async with linked("local") as ends:
        assert repr(ends.link) == "<LocalLink agent.main/w0>"
