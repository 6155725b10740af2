"""Control calls over real sockets, to participants in processes of their own: refused, broken off, hanging, paused."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.coordination import GRACE_S, prepare, resume
from orchestrator.errors import ControlFailed, PrepareFailed
from orchestrator.fleet import CALL_TIMEOUT_S, Fleet, adopt, ask_all, discover
from orchestrator.links import HttpLink, http_client
from participants import Adopt, Code, ParticipantError
from participants.wire import Adopted, Prepare
from tests.support.fault_proxy import Fault, Reply, fault_proxy
from tests.support.owners import KINDS, round_id
from tests.support.served import TOKEN, Served, served

pytestmark = [pytest.mark.process, pytest.mark.anyio]

RUN = "a" * 32
ADOPT = Adopt(run=RUN, epoch=1)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Served]:
    """One participant."""
    with served("agent", tmp_path) as at:
        yield at


@pytest.mark.fault(65)
@pytest.mark.parametrize("token", ["wrong", TOKEN[:-1], f"{TOKEN}x"])
async def test_without_the_token_nothing_is_told_and_nothing_changes(agent: Served, token: str) -> None:
    """Every operation is refused as unauthorized; with the token the participant is as it was."""
    async with http_client(token) as http:
        link = HttpLink(agent.url, http)
        for asked in (link.capabilities(), link.status(), link.send(ADOPT, Adopted)):
            with pytest.raises(ParticipantError) as caught:
                await asked
            assert caught.value.code is Code.UNAUTHORIZED
    async with http_client(TOKEN) as http:
        assert (await HttpLink(agent.url, http).capabilities()).epoch == 0


@pytest.mark.parametrize(
    ("path", "change", "code", "status"),
    [
        ("v1/adopt", {"colour": "red"}, Code.INVALID_REQUEST, 422),
        ("v1/adopt", {"epoch": "one"}, Code.INVALID_REQUEST, 422),
        ("v2/adopt", {}, None, 404),
        ("v1/no_such_operation", {}, None, 404),
    ],
)
async def test_a_call_of_another_version_is_refused_and_changes_nothing(
    agent: Served, path: str, change: dict[str, Any], code: Code | None, status: int
) -> None:
    """An unknown field, a field of another type, another version of the whole, an operation that is none."""
    async with http_client(TOKEN) as http:
        body = {"run": RUN, "epoch": 1, **change}
        answer = await http.post(f"{agent.url}/checkpoint/{path}", json=body)
        assert answer.status_code == status
        if code is not None:
            assert answer.json()["error"]["code"] == code.value
        assert (await HttpLink(agent.url, http).capabilities()).epoch == 0


@pytest.mark.fault(37, 56)
@pytest.mark.parametrize("fault", [Fault(method="POST", drop=True), Fault(method="POST", lose_reply=True)])
async def test_a_connection_that_breaks_off_is_named_and_the_same_call_may_be_sent_again(
    agent: Served, fault: Fault
) -> None:
    """Whether or not the call took effect; the answer is then the same."""
    async with fault_proxy(agent.port) as proxy, http_client(TOKEN) as http:
        link = HttpLink(f"http://127.0.0.1:{proxy.port}", http)
        proxy.inject(fault)
        with pytest.raises(ConnectionError, match=f"127.0.0.1:{proxy.port}/checkpoint/v1/adopt"):
            await link.send(ADOPT, Adopted)
        assert (await link.capabilities()).epoch == (1 if fault.lose_reply else 0)
        assert (await link.send(ADOPT, Adopted)).lives == ()


def _with(body: bytes) -> Fault:
    return Fault(rewrite=lambda reply: reply.with_body(body))


@pytest.mark.parametrize(
    "fault",
    [
        _with(b"<html>busy</html>"),
        _with(b'{"incarnation":"x","lives":[],"colour":"red"}'),
        _with(b'{"incarnation":"x"}'),
        _with(b'{"incarnation":"x","lives":["../../etc"]}'),
        _with(b""),
        Fault(answer=Reply(200, (("Content-Length", "9"),), b"\xff\xfe{}[]..!")),
        Fault(answer=Reply(502, (("Content-Length", "3"),), b"bad")),
    ],
)
async def test_an_answer_that_is_not_ours_is_a_typed_error(agent: Served, fault: Fault) -> None:
    """No JSON, a field that this version does not know, one that is missing or malformed, and a proxy's own page."""
    async with fault_proxy(agent.port) as proxy, http_client(TOKEN) as http:
        proxy.inject(fault)
        with pytest.raises(ParticipantError, match="not midflight's") as caught:
            await HttpLink(f"http://127.0.0.1:{proxy.port}", http).send(ADOPT, Adopted)
        assert caught.value.code is Code.INTERNAL


async def test_an_answer_that_is_cut_off_is_a_connection_error(agent: Served) -> None:
    """Half of it is never taken for all of it."""
    async with fault_proxy(agent.port) as proxy, http_client(TOKEN) as http:
        proxy.inject(Fault(cut_body_at=10))
        with pytest.raises(ConnectionError, match="the connection broke"):
            await HttpLink(f"http://127.0.0.1:{proxy.port}", http).send(ADOPT, Adopted)


@pytest.mark.fault(36, 37)
async def test_the_deadline_holds_where_a_server_takes_the_call_and_never_answers(agent: Served) -> None:
    """It is an outcome of that member, by name; the same call to the others is answered."""
    async with fault_proxy(agent.port) as proxy, http_client(TOKEN) as http:
        links = [HttpLink(f"http://127.0.0.1:{proxy.port}", http)]
        fleet = await discover(links, RUN)
        fleet, _ = await adopt(fleet, 1)
        proxy.inject(Fault(method="POST", hang=True))

        def message(member: Any) -> Prepare:
            return Prepare(**fleet.envelope(member), round=round_id(), timeout_s=1, lease_s=9)

        with anyio.fail_after(5):
            [outcome] = await ask_all(fleet.members, message, Adopted, timeout_s=0.3)
        assert isinstance(outcome.failure, TimeoutError)
        assert outcome.member.name == "agent.main/w0"


@pytest.mark.fault(37)
async def test_a_server_that_is_not_there_is_named_by_discovery(tmp_path: Path) -> None:
    """Its process has ended; the other one is found."""
    with served("agent", tmp_path) as at:
        gone = at.url
    with served("model", tmp_path) as other:
        async with http_client(TOKEN) as http:
            with pytest.raises(ControlFailed) as caught:
                await discover([HttpLink(gone, http), HttpLink(other.url, http)], RUN)
    assert list(caught.value.failures) == [f"<HttpLink {gone}/checkpoint/v1>"]


# A process that stands still


@pytest.mark.fault(36, 50)
async def test_a_process_that_is_stopped_is_named_the_others_resume_and_it_comes_back(tmp_path: Path) -> None:
    """The kernel still takes its calls. Once it runs again it ends the old round by itself; the next one succeeds."""
    with ExitStack() as stack:
        at = {kind: stack.enter_context(served(kind, tmp_path)) for kind in KINDS}
        async with http_client(TOKEN) as http:
            fleet = await discover([HttpLink(each.url, http) for each in at.values()], RUN)
            fleet, _ = await adopt(fleet, 1)
            at["agent"].pause()
            began = anyio.current_time()
            with pytest.raises(PrepareFailed) as caught:
                await prepare(fleet, round_id(), timeout_s=0.5, lease_s=2)
            assert list(caught.value.failures) == ["agent.main/w0"]
            assert anyio.current_time() - began < 0.5 + GRACE_S + CALL_TIMEOUT_S + 3
            assert await _phases(fleet, but="agent") == {"idle"}
            at["agent"].go_on()
            assert (await prepare(fleet, round_id(2), timeout_s=5, lease_s=60)).prepared
            assert await _phases(fleet) == {"prepared"}
            await resume(fleet, round_id(2))
            assert await _phases(fleet) == {"idle"}


async def _phases(fleet: Fleet, but: str = "") -> set[str]:
    return {(await member.link.status()).phase for member in fleet.members if member.kind != but}
