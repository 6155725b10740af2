"""The control plane under attack, over raw sockets: nothing changes, nothing is said, and it answers afterwards."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from participants import CONTROL_PREFIX, OPERATIONS
from participants.serving.bounded import MAX_WAITING
from tests.support.waiting import until

from .attacked import (
    AUTHORIZED,
    RUN,
    TOKEN,
    Target,
    channel,
    descriptors,
    flood,
    heard,
    limited,
    message_of,
    status_of,
    target,
    unharmed,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

BEARER = f"authorization: Bearer {TOKEN}"
CONNECTIONS = 10_000
FILES = 150
"""Of a server that is short of them."""
SOON_S = 10.0
MIB = 2**20


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One server for all attacks."""
    with target(tmp_path_factory.mktemp("attacked")) as made:
        yield made


@pytest.mark.parametrize("operation", [*OPERATIONS, "results"])
def test_no_operation_is_done_without_the_token(attacked: Target, operation: str) -> None:
    """None, a wrong one, a part of it, one of another kind, twice, and the right one in every wrong place."""
    body = json.dumps({"run": RUN, "epoch": 2, "incarnation": None}).encode()
    wrong = [[], ["authorization: Bearer x"], [BEARER[:-1]], [BEARER + "x"], [f"authorization: Basic {TOKEN}"],
             [f"authorization: {TOKEN}"], ["authorization: Bearer"], [f"x-authorization: Bearer {TOKEN}"],
             [f"cookie: token={TOKEN}"], [f"proxy-authorization: Bearer {TOKEN}"],
             ["authorization: Bearer x", BEARER], ["authorization: Bearer \xe9\xff"]]  # fmt: skip
    with unharmed(attacked):
        for headers in wrong:
            assert attacked.ask(f"POST {CONTROL_PREFIX}/{operation}", headers, body) == 401, headers
        for place in (f"?token={TOKEN}", f"?authorization=Bearer%20{TOKEN}"):
            assert attacked.ask(f"POST {CONTROL_PREFIX}/{operation}{place}", (), body) == 401
        assert attacked.ask(f"POST {CONTROL_PREFIX}/{operation}", (), b'{"token":"%b"}' % TOKEN.encode()) == 401


TRICKS = ["..", "../..", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%2f..%2fetc%2fpasswd", "%00", "r0%00", "r0%0a",
          "%ff", "%c0%ae%c0%ae", "\u202er0", "r\u00e9", "r0/../../x", "....//", "..;/x", "~", "%252e%252e",
          "r0%5c..%5cx",
          "a" * 5000, "-", ".hidden", "r0-a99999999999999999999", "%", "%zz", "{x}", "?x", "#x"]  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS, ids=range(len(TRICKS)))
def test_a_name_is_no_path(attacked: Target, trick: str) -> None:
    """In every place of a URL where a name may stand, with the token as without: refused, and never a defect."""
    with unharmed(attacked):
        for way in (f"{CONTROL_PREFIX}/{trick}", f"{CONTROL_PREFIX}/status/{trick}", f"{trick}{CONTROL_PREFIX}/status",
                    f"/ledger/v1/{trick}/rows", f"/ledger/v1/{trick}/manifest", f"/rollouts/{trick}/1.0.3/v1/models",
                    f"/{trick}", f"/ledger/v1/r0/rows?version={trick}"):  # fmt: skip
            for method in ("GET", "POST"):
                for headers in ([], [BEARER]):
                    found = attacked.ask(f"{method} {way}", headers)
                    assert found in {0, 307, 400, 401, 404, 405, 410, 422} or (method, found) == ("GET", 200), way
        inside = Path(attacked.server.folder / "ledger")
        assert {path.name for path in inside.rglob("*") if path.is_file()} <= {"lock"} or not list(inside.rglob("r0*"))


@pytest.mark.parametrize("name", ["../x", "r0\0", "\u202er0", "r0/../../x", "a" * 5000, "", "r0-a1", "\ud800", ".."])
def test_a_name_in_a_message_is_no_path(attacked: Target, name: str) -> None:
    """Lives, rounds, checkpoints and rollouts are refused by their form, before anything is looked for."""
    ref = {"checkpoint": f"{name}.1", "digest": "0" * 64, "run_id": RUN}
    envelope = {"run": RUN, "epoch": 1, "incarnation": "x", "floor": [0, 0]}
    messages = {
        "retire": {**envelope, "lives": [f"{name}/1.0#0"], "timeout_s": 1},
        "release": {**envelope, "lives": [f"{name}/1.0#0"]},
        "renew": {**envelope, "round": name, "lease_s": 1},
        "commit": {**envelope, "round": "1.1", "scope": [], "parent": ref},
        "submit": {**envelope, "episodes": [{"life": f"{name}/1.0#0", "row": {}}]},
    }
    with unharmed(attacked):
        for operation, message in messages.items():
            body = json.dumps(message).encode()
            assert attacked.ask(f"POST {CONTROL_PREFIX}/{operation}", [BEARER], body) == 422, operation


@pytest.mark.parametrize("headers", [[], [BEARER]], ids=["without", "with"])
def test_a_body_that_is_deep_or_no_message_is_refused(attacked: Target, headers: list[str]) -> None:
    """A megabyte of brackets, of objects in objects, of digits, of nothing; rows that no record could hold."""
    expected = 422 if headers else 401
    row = b'{"run":"%b","epoch":1,"incarnation":"x","episodes":[{"life":"r/1.0#0","row":{"a":%%b}}]}' % RUN.encode()
    bodies = [b"[" * MIB, b'{"a":' * (MIB // 5), b'{"epoch":' + b"9" * MIB + b"}", bytes(MIB), b"", b"\xff" * 100,
              row % (b"[" * 190 + b"]" * 190), row % b"NaN", row % (b"9" * 400),
              b'{"' + b"k" * MIB + b'":1}']  # fmt: skip
    with unharmed(attacked):
        for body in bodies:
            reply = attacked.say(_request("submit", headers, len(body)), body)
            assert status_of(reply) == expected, body[:40]
            assert len(reply) < 2000


def test_a_body_of_the_data_plane_that_is_deep_is_refused(attacked: Target) -> None:
    """Deeper than can be written again is no defect of the server either."""
    for depth in (260, 500, 1000, 5000):
        body = b'{"messages":' + b"[" * depth + b"]" * depth + b"}"
        for headers in ([], ["x-midflight-life: r0/1.0#0", "x-midflight-call: agent.main:0.0"]):
            assert attacked.ask("POST /v1/chat/completions", headers, body) in {400, 409, 410, 422}, depth


def test_a_body_that_is_too_large_is_refused_before_it_is_read(attacked: Target) -> None:
    """With the token by what it announces, without by the token; an endless one is thrown away as it comes."""
    with unharmed(attacked):
        assert status_of(attacked.say(_request("submit", [BEARER], 300 * MIB))) == 422
        assert status_of(attacked.say(_request("submit", [BEARER], 10**30))) in {0, 400, 422}
        assert status_of(attacked.say(_request("submit", [], 300 * MIB))) == 401
        head = _request("submit", ["transfer-encoding: chunked"], None)
        piece = b"%x\r\n%b\r\n" % (MIB, bytes(MIB))
        assert status_of(attacked.say(head, *[piece] * 128)) == 401


def _request(operation: str, headers: list[str], length: int | None) -> bytes:
    lines = [f"POST {CONTROL_PREFIX}/{operation} HTTP/1.1", "host: x", "connection: close", *headers]
    return "\r\n".join([*lines, *([] if length is None else [f"content-length: {length}"]), "", ""]).encode()


@pytest.mark.parametrize(
    "begun",
    [
        b"GET /health HTTP/1.1\r\nx: ",
        b"GET /",
        b"GET /health HTTP/1.1\r\n",
        b"POST /checkpoint/v1/adopt HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ",
        b"POST /checkpoint/v1/adopt HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;",
    ],
    ids=["value", "target", "names", "trailer", "extension"],
)
def test_a_head_without_an_end_is_refused(attacked: Target, begun: bytes) -> None:
    """A megabyte is not read: the connection ends after some ten thousand bytes, and so for trailers."""
    fill = b"a" * 30 + (b": b\r\n" if begun.endswith(b"\n") else b"a")
    with unharmed(attacked), attacked.connect() as made:
        made.sendall(begun)
        assert flood(made, fill * 1000, 64 * MIB) < 8 * MIB  # What the kernel holds is among it.


def test_a_large_head_at_once_is_refused(attacked: Target) -> None:
    """Of one header, or of very many."""
    with unharmed(attacked):
        for headers in ([f"x: {'a' * 100_000}"], [f"x-{n}: {n}" for n in range(10_000)]):
            assert attacked.ask("GET /health", headers) in {0, 400, 431}


def test_ten_thousand_connections_leave_room_for_another_client(attacked: Target) -> None:
    """Each has begun a request and says no more, or trickles; whoever comes then is answered at once."""
    assert descriptors() > CONNECTIONS + 500
    with unharmed(attacked), ExitStack() as stack:
        begun = [b"", b"G", b"GET /checkpoint/v1/status HTTP/1.1\r\nx:", _request("adopt", [], 1000) + b"{"]
        held = []
        for number in range(CONNECTIONS):
            made = stack.enter_context(attacked.connect())
            made.sendall(begun[number % len(begun)])
            held.append(made)
        for made in held[::100]:
            _trickle(made)
        assert attacked.status()["phase"] == "idle"
        with unharmed(attacked):
            pass


SLOW = [
    b"",
    b"GET /health HTTP/1.1\r\nx:",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
]


def test_where_descriptors_run_out_whoever_has_the_token_is_heard(attacked: Target) -> None:
    """Connections without a head, and those without the end of a body, give way to others; then all is as before."""
    with unharmed(attacked), ExitStack() as stack, limited(attacked.pid, FILES):
        for number in range(3 * FILES):
            made = stack.enter_context(attacked.connect())
            with suppress(ConnectionError):
                made.sendall(SLOW[number % len(SLOW)])
        until(lambda: _is_heard(attacked), SOON_S)
        assert attacked.ask("GET /health") == 200


def _is_heard(of: Target) -> bool:
    with suppress(httpx.HTTPError):
        return bool(of.status()["phase"] == "idle")
    return False


def _trickle(made: socket.socket) -> None:
    try:
        made.sendall(b"a")
    except ConnectionError:
        return


def test_many_requests_at_once_on_one_connection_are_answered_in_order(attacked: Target) -> None:
    """As many as may wait, each refused; a client that sends more, and reads none of its answers, is cut off."""
    request = b"GET /checkpoint/v1/status HTTP/1.1\r\nhost: x\r\n\r\n"
    with unharmed(attacked), attacked.connect() as made:
        made.sendall(request * MAX_WAITING)
        assert heard(made, 1.0).count(b"HTTP/1.1 401 ") == MAX_WAITING
    with unharmed(attacked), attacked.connect() as made:
        assert flood(made, request * 1000, 64 * MIB) < 8 * MIB


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\xff not http at all\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /checkpoint/v1/status\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http:// HTTP/1.1\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /checkpoint/v1/adopt HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /checkpoint/v1/adopt HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /checkpoint/v1/adopt HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /checkpoint/v1/adopt HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"GET /checkpoint/v1/status HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /checkpoint/v1/status HTTP/1.1\r\na\x00b: c\r\n\r\n",
        b"GET /midflight/v1/channel HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"GET /midflight/v1/channel HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n\xff\xff\xff\xff\xff\xff\xff",
    ],
    ids=range(16),
)
def test_what_is_no_http_is_refused(attacked: Target, said: bytes) -> None:
    """Other protocols, lengths that do not agree, headers that are none."""
    with unharmed(attacked):
        assert status_of(attacked.say(said, wait=False) or b"") == 0
        with attacked.connect() as made:
            made.sendall(said)
            made.shutdown(socket.SHUT_WR)
            assert status_of(heard(made, 1.0)) in {0, 101, 400, 401, 404, 405, 422, 426}


BAD = [b'{"i":1,"route":5,"headers":{"authorization":"Bearer %b"}}' % TOKEN.encode(), b"[" * 1000 + b"]" * 1000,
       b'{"i":1,"route":5,"body":' + b"[" * 1000 + b"]" * 1000 + b"}", TOKEN.encode(), b'{"i":1,"route":"\xff"}',
       b"[" + b"[]," * (4 * MIB) + b"[]]", b'{"i":99999999999999999999,"route":"/x"}']  # fmt: skip


@pytest.mark.parametrize("opcode", [1, 2], ids=["text", "bytes"])
def test_frames_that_are_none_end_their_channel(attacked: Target, opcode: int) -> None:
    """Of any kind, and again and again: with 1002, nothing of them in the log or the answer, and few lines in all."""
    with unharmed(attacked):
        for number in range(50):
            with attacked.connect() as made:
                assert status_of(channel(made)) == 101
                made.sendall(message_of(BAD[number if number < len(BAD) else number % 2], opcode))
                said = made.recv(65536)
            assert said[2:4] == b"\x03\xea", said[:100]  # The code 1002.
            assert TOKEN.encode() not in said


def test_whoever_leaves_in_the_middle_of_a_body_is_no_defect(attacked: Target) -> None:
    """With the token, too: nothing is logged."""
    with unharmed(attacked):
        before = len(attacked.server.log.read_bytes())
        for _ in range(20):
            attacked.say(_request("adopt", [BEARER], 1000) + b"{", wait=False)
        assert attacked.get("/health").status_code == 200
        assert b"Disconnect" not in attacked.server.log.read_bytes()[before:]
    assert AUTHORIZED["authorization"].endswith(TOKEN)
