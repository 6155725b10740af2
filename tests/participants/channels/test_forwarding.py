"""A worker hands on what belongs to another one, once, and nobody can tell."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest

from participants.channels import Channels
from participants.data import CallId, Reply, Request
from participants.errors import Code, ParticipantError
from participants.forwarding import FORWARDED_HEADER, Forwarding
from participants.peer import HttpPeer
from participants.routing import worker_of
from participants.servers import CounterServer
from store import Life
from tests.support.channels import Recorder, Worker, served, settled

pytestmark = [pytest.mark.real, pytest.mark.anyio]

ROLE = "resources.main"
WORKERS = 3
CALL = CallId("agent.main", 2, 0)
OF_TRANSPORT = {"date", "server"}


def nowhere(count: int) -> list[str]:
    """Addresses at which nobody answers."""
    workers = [Worker() for _ in range(count)]
    for worker in workers:
        worker.socket.close()
    return [worker.url for worker in workers]


def life(n: int) -> Life:
    return Life(f"r{n}", 1, 0, n)


async def test_clients_of_ours_call_the_owner_at_once() -> None:
    """Whichever worker they were told of: nobody is there who would hand a call on."""
    recorders = [Recorder(str(number)) for number in range(WORKERS)]
    async with served(*recorders, forwarding=False) as (channels, urls):
        for n in range(24):
            reply = await channels.peer(urls[n % WORKERS], ROLE).call(Request(route="/x", body=n, life=life(n)))
            assert reply.body == {"worker": str(worker_of(f"r{n}", WORKERS)), "body": n}
    assert sum(len(each.asked) for each in recorders) == 24


@pytest.mark.parametrize("over", ["http", "channel"])
async def test_the_owner_gets_the_request_that_it_would_have_got_itself(over: str) -> None:
    """From every worker: life, id, body, cookies and all headers, and its reply comes back whole."""
    headers = {"cookie": "a=b; c=d", "x-resources-session-id": "s", "x-other": "1"}
    answer = Reply(207, {"é": [1, None]}, {"set-cookie": "x=y; Path=/", "x-midflight-revision": "4"})
    recorders = [Recorder(answers={"/v1/x": lambda _: answer}) for _ in range(WORKERS)]
    owner = worker_of("r5", WORKERS)
    request = Request(route="/v1/x", body={"a": 1}, life=life(5), call=CALL, headers=headers)
    async with served(*recorders) as (channels, urls), httpx.AsyncClient() as http:
        replies = []
        for url in urls:
            peer = HttpPeer(url, ROLE, http) if over == "http" else channels.worker(url, ROLE)
            reply = await peer.call(request)
            kept = {name: value for name, value in reply.headers.items() if name not in OF_TRANSPORT}
            replies.append((reply.status, reply.body, kept))
    assert [len(each.asked) for each in recorders] == [WORKERS * (number == owner) for number in range(WORKERS)]
    assert len({repr(each) for each in recorders[owner].asked}) == 1
    assert recorders[owner].asked[0].headers.items() >= headers.items()
    assert all(each == replies[owner] for each in replies)
    assert replies[0][2]["set-cookie"] == "x=y; Path=/"


async def test_errors_of_the_owner_come_back_as_they_are() -> None:
    """Code, message and details, and Retry-After with a closed admission."""

    def closed(_: Request) -> Reply:
        raise ParticipantError(Code.ADMISSION_CLOSED, "a checkpoint", {"retry_after_s": 2})

    recorders = [Recorder(answers={"/x": closed}) for _ in range(WORKERS)]
    async with served(*recorders) as (_, urls), httpx.AsyncClient() as http:
        said = []
        for url in urls:
            reply = await http.post(url + "/rollouts/r5/1.0.5/x", json={})
            said.append((reply.status_code, reply.json(), reply.headers["retry-after"]))
    assert said == [said[0]] * WORKERS
    assert (said[0][0], said[0][2]) == (503, "2")


async def test_a_stream_passes_event_by_event_and_ends_with_its_client() -> None:
    """The first event is there before the second exists; when the client goes, the source is closed at the owner."""
    more, closed = anyio.Event(), anyio.Event()

    async def events() -> AsyncIterator[bytes]:
        try:
            yield b"data: 1\n\n"
            await more.wait()
        finally:
            closed.set()

    recorders = [
        Recorder(role="model.main", answers={"/v1/responses": lambda _: Reply(200, None, {"x-a": "b"}, events())})
        for _ in range(2)
    ]
    other = 1 - worker_of("r5", 2)
    async with served(*recorders) as (_, urls), httpx.AsyncClient() as http:
        asked = http.stream("POST", urls[other] + "/rollouts/r5/1.0.5/v1/responses", json={"stream": True})
        async with asked as response:
            assert await anext(response.aiter_bytes()) == b"data: 1\n\n"
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["x-a"] == "b"
            assert len(response.headers.get_list("date")) == 1
            assert not closed.is_set()
        with anyio.fail_after(10):
            await closed.wait()


@pytest.mark.parametrize("ends", [True, False])
async def test_a_client_that_goes_ends_at_the_owner_what_ends_with_its_client(ends: bool) -> None:
    """As if it had called the owner itself."""
    recorders = [Recorder(ends_with_client=ends) for _ in range(2)]
    owner = recorders[worker_of("r5", 2)]
    async with served(*recorders) as (_, urls), httpx.AsyncClient(timeout=None) as http:
        async with anyio.create_task_group() as group:
            url = urls[1 - worker_of("r5", 2)] + "/rollouts/r5/1.0.5/hold"
            group.start_soon(lambda: http.post(url, json={}))
            await owner.held.wait()
            group.cancel_scope.cancel()
        await settled(lambda: owner.holding, 0.3)
        assert (owner.holding, owner.cancelled) == ((0, 1) if ends else (1, 0))
        owner.release.set()


async def test_a_loop_is_refused() -> None:
    """What was handed on already is handed on no more: the workers disagree about how many they are."""
    recorder = Recorder()
    async with Channels() as channels:
        front = Forwarding(recorder, 1 - worker_of("r5", 2), nowhere(2), channels)
        with pytest.raises(ParticipantError, match="disagree about how many") as caught:
            await front.handle(Request(route="/x", body={}, life=life(5), headers={FORWARDED_HEADER: "0"}))
    assert (caught.value.code, recorder.asked) == (Code.UNREACHABLE, [])


async def test_an_owner_that_is_gone_is_unreachable() -> None:
    """The caller is told which one."""
    async with Channels() as channels:
        urls = nowhere(2)
        number = worker_of("r5", 2)
        front = Forwarding(Recorder(), 1 - number, urls, channels)
        with pytest.raises(ParticipantError, match=urls[number]) as caught:
            await front.handle(Request(route="/x", body={}, life=life(5)))
    assert caught.value.code is Code.UNREACHABLE


async def test_a_plain_client_finds_its_session_through_any_worker() -> None:
    """It seeds, counts and verifies by its cookie alone, each time at another worker."""
    servers = [CounterServer() for _ in range(WORKERS)]
    async with served(*servers) as (_, urls):
        for n in range(6):
            async with httpx.AsyncClient() as http:
                steps: list[tuple[str, dict[str, Any]]] = [
                    ("/seed_session", {"initial_count": n}),
                    ("/increment_counter", {"count": 1}),
                    ("/verify", {"expected_count": n + 1, "response": {"output": []}}),
                ]
                for k, (route, body) in enumerate(steps):
                    reply = await http.post(urls[(n + k) % WORKERS] + route, json=body)
                    assert reply.status_code == 200
                assert reply.json()["reward"] == 1.0


async def test_one_cookie_jar_seeds_row_after_row_through_any_worker() -> None:
    """Each seed brings the cookie of the row before, and opens a session that its calls find from every worker."""
    servers = [CounterServer() for _ in range(WORKERS)]
    async with served(*servers) as (_, urls), httpx.AsyncClient() as http:
        for n in range(9):
            seeded = await http.post(urls[n % WORKERS] + "/seed_session", json={"initial_count": n})
            assert seeded.status_code == 200
            for url in urls:
                assert (await http.post(url + "/increment_counter", json={"count": 1})).status_code == 200
            row = {"expected_count": n + WORKERS, "response": {"output": []}}
            assert (await http.post(urls[0] + "/verify", json=row)).json()["reward"] == 1.0
            if n % 2:
                assert (await http.post(urls[1] + "/close_session", json={})).status_code == 200
    assert sum(server.counts()["sessions_without_life"] for server in servers) == 5


class NamesCohorts(Recorder):
    """Its calls belong together by a name in their bodies."""

    def routing_key(self, request: Request) -> str | None:
        return str(request.body["cohort"])


async def test_a_server_may_name_what_its_calls_are_routed_by() -> None:
    """Then rollouts do not count: all of a cohort meet at one worker, through whichever they come."""
    recorders = [NamesCohorts(str(number)) for number in range(WORKERS)]
    async with served(*recorders) as (_, urls), httpx.AsyncClient() as http:
        for n in range(6):
            peer = HttpPeer(urls[n % WORKERS], ROLE, http)
            reply = await peer.call(Request(route="/x", body={"cohort": "c"}, life=life(n)))
            assert reply.body["worker"] == str(worker_of("c", WORKERS))
