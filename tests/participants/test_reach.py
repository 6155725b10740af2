"""Connections to hosts that vanish without a word: made in time or not at all, and watched by the kernel."""

import socket
from collections.abc import Iterator

import aiohttp
import anyio
import anyio.to_thread
import httpx
import pytest

from orchestrator.links import HttpLink, NoAnswer, http_client
from participants import reach
from participants.channels import Channels, client
from participants.data import Request
from participants.errors import Code, ParticipantError
from participants.serving.sockets import bind

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

TOLERABLE_S = 10.0


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address that drops whoever wants to connect, as a host that is cut off does: its queue is full."""
    for module in (reach, client):
        monkeypatch.setattr(module, "REACH_S", 0.3)
    monkeypatch.setattr(client, "MAX_TRIES", 2)
    callers = []
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(2):
            caller = socket.socket()
            caller.setblocking(False)
            caller.connect_ex(full.getsockname())
            callers.append(caller)
        yield f"http://127.0.0.1:{full.getsockname()[1]}"
        for caller in callers:
            caller.close()


async def test_a_control_call_or_stream_into_nowhere_ends_in_time(nowhere: str) -> None:
    """No deadline of the caller is needed for it, and it says what happened."""
    envelope = {"run": "r", "epoch": 1, "floor": (1, 0), "incarnation": "i"}
    with anyio.fail_after(TOLERABLE_S):
        async with http_client("token") as http:
            link = HttpLink(nowhere, http, {nowhere: "agent.main/w0 on b"})
            with pytest.raises(NoAnswer, match="nobody took the connection in time"):
                await link.capabilities()
            with pytest.raises(NoAnswer, match="nobody took the connection in time"):
                await anext(link.results(envelope, 0))
    assert repr(link) == "agent.main/w0 on b"


async def test_a_data_call_into_nowhere_ends_in_time(nowhere: str) -> None:
    """Also one that is tried again; it is as unreachable as where the connection is refused."""
    with anyio.fail_after(TOLERABLE_S):
        async with Channels() as channels:
            for peer in (channels.peer(nowhere, "agent.main"), channels.worker(nowhere, "agent.main")):
                with pytest.raises(ParticipantError) as caught:
                    await peer.call(Request(route="/run", body={}))
                assert caught.value.code is Code.UNREACHABLE


def watched(found: socket.socket) -> dict[str, int]:
    """What the kernel does about a silent other side."""
    tcp = socket.IPPROTO_TCP
    return {
        "asks": found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        "ends_s": found.getsockopt(tcp, socket.TCP_KEEPIDLE)
        + found.getsockopt(tcp, socket.TCP_KEEPINTVL) * found.getsockopt(tcp, socket.TCP_KEEPCNT),
        "unacknowledged_ms": found.getsockopt(tcp, socket.TCP_USER_TIMEOUT),
    }


async def test_the_kernel_watches_every_connection_of_callers_and_servers() -> None:
    """A process may take as long as it likes to answer; a host that acknowledges nothing is noticed."""
    caller = {"asks": 1, "ends_s": reach.GONE_S, "unacknowledged_ms": reach.GONE_S * 1000}
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n{}"  # Not to its end, or the connection would be let go.
    accepted: list[socket.socket] = []
    listener = bind("127.0.0.1", 0)
    listener.settimeout(TOLERABLE_S)

    def serve() -> None:
        for _ in range(2):
            taken = listener.accept()[0]
            accepted.append(taken)
            taken.recv(65_536)
            taken.sendall(answer)

    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with anyio.fail_after(TOLERABLE_S):
        async with anyio.create_task_group() as group, http_client("token") as http:
            group.start_soon(anyio.to_thread.run_sync, serve)
            async with http.stream("GET", url) as response:
                found = response.extensions["network_stream"].get_extra_info("socket")
                assert watched(found) == caller
            connector = aiohttp.TCPConnector(socket_factory=reach.watched_socket)
            async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as reply:
                assert reply.connection is not None
                assert reply.connection.transport is not None
                assert watched(reply.connection.transport.get_extra_info("socket")) == caller
    assert [watched(taken)["ends_s"] for taken in accepted] == [reach.GONE_S] * 2
    for each in (*accepted, listener):
        each.close()


def test_long_answers_are_waited_for() -> None:
    """The limits are of connections and silence of hosts, never of a prepare that takes its time."""
    assert reach.timeout_of() == httpx.Timeout(None, connect=reach.REACH_S)
    assert reach.timeout_of(3.0).read == 3.0
