"""Servers of one role that span two hosts, as two operators start them: found, called and controlled as one."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from orchestrator.fleet import Fleet, adopt, discover
from orchestrator.links import HttpLink, http_client
from participants.channels import Channels
from participants.data import Request
from participants.routing import worker_of
from participants.sessions import SESSION_COOKIE, SESSION_HEADER
from tests.support.fleet import Server
from tests.support.processes import free_block, program
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

TOKEN = "a-token"
HOSTS = ("127.0.0.2", "127.0.0.3")
WORKERS = 2
ASK_S = 20.0


@pytest.fixture
def spanned(tmp_path: Path) -> Iterator[list[Server]]:
    """Two servers of one role, of two workers each, on two hosts and at one port."""
    port = free_block(1 + WORKERS)
    span = [f"{host}:{port}" for host in HOSTS]
    with ExitStack() as stack:
        servers = []
        for host in HOSTS:
            (folder := tmp_path / host).mkdir()
            spec = {
                "server": "tests.support.served_parts:HeldServer",
                "options": {"folder": str(folder)},
                "workers": WORKERS,
                "span": span,
                "token_env": "TOKEN",
            }
            server = Server("resources.held", spec, folder, {"TOKEN": TOKEN}, port=port, host=host, forked=True)
            stack.callback(server.kill)
            server.begin()
            servers.append(server)
        for server in servers:
            server.await_ready()
        yield servers


def urls_at(server: Server) -> list[str]:
    """The workers of its role, as it tells anybody."""
    return list(httpx.get(f"{server.url}/midflight/v1/workers", timeout=ASK_S).json()["workers"])


def health(url: str) -> tuple[str, int, int, int]:
    """What a worker says of itself and of its server: process, workers, ready, replaced."""
    told = httpx.get(f"{url}/health", timeout=ASK_S).json()
    return told["process"], told["workers"], told["ready"], told["replaced"]


def test_workers_are_numbered_through_and_counted_by_their_server(spanned: list[Server]) -> None:
    """Either server tells of all; process names are unique; health, logs and replacements are those of one host."""
    here, there = spanned
    urls = urls_at(here)
    assert urls == urls_at(there) == [f"http://{s.host}:{s.port + 1 + k}" for s in spanned for k in range(WORKERS)]
    assert [health(url) for url in urls] == [(f"w{number}", 2, 2, 0) for number in range(4)]
    assert [{event["process"] for event in server.events("worker_started")} for server in spanned] == [
        {"w0", "w1"},
        {"w2", "w3"},
    ]
    assert there.events("ready")[0]["workers"] == urls[2:]
    there.kill_worker(3)
    until(lambda: [health(url)[2:] for url in urls] == [(2, 0), (2, 0), (2, 1), (2, 1)], told=there.told)
    assert {httpx.get(f"{server.url}/readyz", timeout=ASK_S).status_code for server in spanned} == {200}


def test_a_call_that_comes_in_at_any_host_reaches_the_owner(spanned: list[Server]) -> None:
    """Of clients that know nothing of workers: at each public and each private address one process answers."""
    places = [*(server.url for server in spanned), *urls_at(spanned[0])]
    owners: dict[int, str] = {}
    with httpx.Client(limits=httpx.Limits(max_keepalive_connections=0), timeout=ASK_S) as client:  # One for each call.
        while {number // WORKERS for number in owners} != {0, 1}:
            session = client.post(f"{places[len(owners) % 2]}/seed_session", json={}).cookies[SESSION_COOKIE]
            client.cookies.clear()
            asked = {client.post(f"{url}/pid", json={}, headers={SESSION_HEADER: session}).text for url in places}
            assert len(asked) == 1, asked
            owners[worker_of(session, 4)] = asked.pop()
    assert len(set(owners.values())) == len(owners)


@pytest.mark.anyio
async def test_clients_and_controllers_that_ask_any_server_cover_all_workers(spanned: list[Server]) -> None:
    """One link to one host discovers and adopts four workers; peers through either host call the owners themselves."""
    for server in spanned:
        async with http_client(TOKEN) as client:
            fleet = await discover([HttpLink(server.url, client)], "run")
            assert sorted(shape(fleet)) == [(f"resources.held/w{number}", number, 4) for number in range(4)]
    async with http_client(TOKEN) as client, Channels() as channels:
        fleet = await discover([HttpLink(server.url, client) for server in spanned], "run")
        assert len(fleet.members) == 4
        workers = await anyio.to_thread.run_sync(lambda: {spanned[n // WORKERS].worker(n) for n in range(4)})
        for server in spanned:
            peer, pids = channels.peer(server.url, "resources.held"), set[int]()
            while len(pids) < len(workers):
                seeded = await peer.call(Request(route="/seed_session", body={}))
                headers = {SESSION_HEADER: session_in(seeded.headers)}
                pids.add((await peer.call(Request(route="/pid", body={}, headers=headers))).body["pid"])
            assert pids == workers
        _, adopted = await adopt(fleet, 1)
        assert len(adopted) == 4
        found = [await member.link.capabilities() for member in fleet.members]
        assert {one.epoch for one in found} == {1}


def test_the_command_takes_a_span_and_refuses_one_without_itself() -> None:
    """As an operator says it, with spaces or without; the place is the address that the server was given."""
    counter = "participants.servers.counter:CounterServer"
    said = ["serve", "resources", counter, "--listen", "127.0.0.2:9100", "--span", "127.0.0.3:9100, 127.0.0.4:9100"]
    ran = subprocess.run([program("midflight"), *said], capture_output=True, text=True, timeout=ASK_S)
    assert ran.returncode == 2
    assert "127.0.0.2:9100, where this server listens, is not among them" in ran.stderr


def session_in(headers: Mapping[str, str]) -> str:
    """The session that a seed has begun."""
    return headers["set-cookie"].partition(f"{SESSION_COOKIE}=")[2].partition(";")[0]


def shape(fleet: Fleet) -> list[tuple[str, int, int]]:
    """Name, number and count of each member."""
    return [(member.name, member.capabilities.worker, member.capabilities.workers) for member in fleet.members]


def test_a_port_of_a_worker_that_is_taken_is_named(spanned: list[Server]) -> None:
    """The same server once more cannot start, and says which address is in use."""
    there = spanned[1]
    folder = there.folder.parent
    again = Server(
        "resources.held", there.spec, folder, {"TOKEN": TOKEN}, port=there.port, host=there.host, forked=True
    )
    again.begin()
    try:
        assert again.process is not None
        assert again.process.wait(ASK_S) == 2
        assert f"cannot listen on {there.host}:{there.port}" in again.events("cannot_start")[0]["message"]
    finally:
        again.kill()
    assert health(there.url)[1:] == (2, 2, 0)
