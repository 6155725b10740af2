"""The control plane over HTTP: the token, the border, every error with its status, and a description that is true."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from participants import CONTROL_PREFIX, OPERATIONS, Code, ControlPlane, Modes, ParticipantError, control_app
from participants import control_http as module
from participants.control_http import describe, error_response
from participants.errors import CODES_BY_STATUS, HINT, STATUS
from participants.wire import RESULTS
from tests.support.checkpoints import memory_store
from tests.support.control_page import PAGE, current, rendered
from tests.support.owners import ON_PUSHED_LOOP, Notebook, controlled, notebook

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

TOKEN = "a-token"
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


class Site:
    """A mounted plane, and a client that reaches it without a socket."""

    def __init__(self, plane: ControlPlane, owner: Notebook, http: httpx.AsyncClient) -> None:
        self.plane = plane
        self.owner = owner
        self.http = http

    async def post(self, operation: str, **fields: Any) -> httpx.Response:
        """One operation of the first epoch and round."""
        book = self.plane.book
        body = {"run": book.run, "epoch": 1, "incarnation": book.incarnation, **fields}
        return await self.http.post(f"{CONTROL_PREFIX}/{operation}", json=body, headers=AUTHORIZED)

    async def prepare(self, **fields: Any) -> httpx.Response:
        return await self.post("prepare", **{"round": "1.1", "timeout_s": 1, "lease_s": 30, **fields})


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """An adopted participant behind the app."""
    owner = notebook()
    async with controlled(owner, memory_store()).run() as plane:
        app = Starlette(routes=[Mount(CONTROL_PREFIX, control_app(plane, TOKEN))])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://here") as http:
            made = Site(plane, owner, http)
            assert (await made.post("adopt")).status_code == 200
            yield made


def code_of(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


# The token


@pytest.mark.fault(65)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer "},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"authorization": f"bearer {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": "Bearer \u00e4"},
        {"x-token": TOKEN},
    ],
)
@pytest.mark.parametrize("operation", [*OPERATIONS, RESULTS, "capabilities", "status", "openapi.json"])
async def test_no_route_answers_without_the_token(operation: str, headers: dict[str, str]) -> None:
    """It is 401 before the body is looked at, and nothing has changed."""
    encoded = {key.encode(): value.encode("latin-1") for key, value in headers.items()}
    async with site() as at:
        before = repr(at.plane)
        method = "POST" if operation in (*OPERATIONS, RESULTS) else "GET"
        path = f"{CONTROL_PREFIX}/{operation}"
        reply = await at.http.request(method, path, headers=list(encoded.items()), content=b"{")
        assert (reply.status_code, code_of(reply)) == (401, "unauthorized")
        assert repr(at.plane) == before


def test_an_empty_token_is_no_token() -> None:
    """It would let anybody in."""
    with pytest.raises(ValueError, match="token"):
        control_app(ControlPlane(notebook(), None), "")


@pytest.mark.fault(56, 65)
async def test_a_replayed_request_changes_nothing() -> None:
    """A recorded prepare, sent again after its round, is refused by round; after an adopt, by epoch."""
    async with site() as at:
        assert (await at.prepare()).json()["prepared"]
        assert (await at.post("resume", round="1.1")).json()["phase"] == "idle"
        assert code_of(await at.prepare()) == "stale_round"
        await at.post("adopt", epoch=2)
        assert code_of(await at.prepare()) == "stale_epoch"
        assert not at.owner.gate.closed


# The border


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[]", "body"),
        (b'{"epoch": 1}', "run"),
        (b'\xff\xfe"', "body"),
        (b'{"a":' * 5000, "body"),
    ],
)
async def test_a_body_that_is_no_message_is_refused(content: bytes, says: str) -> None:
    """422, with the field; nothing has changed."""
    async with site() as at:
        reply = await at.http.post(f"{CONTROL_PREFIX}/prepare", content=content, headers=AUTHORIZED)
        assert (reply.status_code, code_of(reply)) == (422, "invalid_request")
        assert says in reply.json()["error"]["message"]
        assert not at.owner.gate.closed


@pytest.mark.parametrize(
    "doubled",
    [
        '{"epoch":9,%s',
        r'{"\u0065poch":9,%s',
        '{"floor":[0,0],"floor":[1,0],%s',
        '{"episodes":[{"life":"r0/1.0#0","row":{"a":{"b":1,"b":2}}}],%s',
    ],
)
async def test_a_body_in_which_a_key_stands_twice_is_refused(doubled: str) -> None:
    """At whatever depth and however it is written: somebody between us may have read the other one."""
    async with site() as at:
        before, book = repr(at.plane), at.plane.book
        envelope = {"run": book.run, "incarnation": book.incarnation, "epoch": 1}
        body = doubled % json.dumps(envelope).removeprefix("{")
        operation = "submit" if "episodes" in doubled else "adopt"
        reply = await at.http.post(f"{CONTROL_PREFIX}/{operation}", content=body, headers=AUTHORIZED)
        assert (reply.status_code, code_of(reply)) == (422, "invalid_request")
        assert "a key twice" in reply.json()["error"]["message"]
        assert repr(at.plane) == before


async def test_what_is_wrong_with_a_question_is_told_without_it() -> None:
    """Nothing that a client sent is said again."""
    async with site() as at:
        reply = await at.http.get(f"{CONTROL_PREFIX}/status?blockers={TOKEN}", headers=AUTHORIZED)
        assert reply.status_code == 422
        assert TOKEN not in reply.text


@pytest.mark.parametrize("operation", [*OPERATIONS, RESULTS])
async def test_an_unknown_field_is_refused_by_name(operation: str) -> None:
    """A newer controller finds out at once that this server does not know what it asks for."""
    async with site() as at:
        before = repr(at.plane)
        reply = await at.post(operation, surprise=1)
        assert reply.status_code == 422
        assert repr(at.plane) == before


async def test_a_body_that_is_too_large_is_refused_while_it_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read to its end."""
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 1000)
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b" " * 100

    async with site() as at:
        reply = await at.http.post(f"{CONTROL_PREFIX}/prepare", content=body(), headers=AUTHORIZED)
    assert (reply.status_code, code_of(reply)) == (422, "invalid_request")
    assert "1000 bytes" in reply.json()["error"]["message"]


@pytest.mark.parametrize(("method", "path"), [("GET", "prepare"), ("POST", "status"), ("GET", "nothing"), ("GET", "")])
async def test_another_method_or_path_is_not_there(method: str, path: str) -> None:
    """405 or 404, with the token as without."""
    async with site() as at:
        reply = await at.http.request(method, f"{CONTROL_PREFIX}/{path}", headers=AUTHORIZED)
        assert reply.status_code in (404, 405)


async def test_a_defect_is_an_error_of_the_table_too() -> None:
    """An owner that raises gives `internal`, with what it raised, and the server goes on."""
    async with site() as at:
        at.owner.modes = Broken()  # type: ignore[assignment]
        reply = await at.http.get(f"{CONTROL_PREFIX}/capabilities", headers=AUTHORIZED)
        assert (reply.status_code, code_of(reply)) == (500, "internal")
        at.owner.modes = Modes()
        assert (await at.http.get(f"{CONTROL_PREFIX}/capabilities", headers=AUTHORIZED)).status_code == 200


class Broken:
    """Not what a participant's modes may be."""


# Errors


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_status_a_hint_and_a_body(code: Code) -> None:
    """The body gives the same error back; only 503 says when to come again."""
    error = ParticipantError(code, "it happened", {"retry_after_s": 7})
    reply = error_response(error)
    body = json.loads(bytes(reply.body))
    assert (reply.status_code, body["error"]["hint"]) == (STATUS[code], HINT[code])
    assert reply.headers.get("retry-after") == ("7" if code is Code.ADMISSION_CLOSED else None)
    again = ParticipantError.from_body(reply.status_code, body)
    assert (again.code, again.message, again.details) == (code, "it happened", {"retry_after_s": 7})
    assert HINT[code] in str(again)


def test_the_callers_faults_are_4xx_and_the_servers_5xx() -> None:
    """As the design has them."""
    callers = (
        "unauthorized invalid_request stale_epoch stale_round stale_life stale_call wrong_incarnation invalid_phase "
        "checkpoint_conflict restart_in_scope scope_mismatch corrupt_checkpoint unsupported_version lease_expired"
    )
    for name in callers.split():
        assert 400 <= STATUS[Code(name)] < 500
    assert (STATUS[Code.ADMISSION_CLOSED], STATUS[Code.DEADLINE_EXCEEDED]) == (503, 504)
    assert set(HINT) == set(STATUS) == set(Code)


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (502, "<html>bad gateway</html>", Code.INTERNAL),
        (504, "", Code.DEADLINE_EXCEEDED),
        (408, None, Code.DEADLINE_EXCEEDED),
        (500, {"error": "broken"}, Code.INTERNAL),
        (500, {"error": {"code": "new_code"}}, Code.INTERNAL),
        (500, {"error": {}}, Code.INTERNAL),
        (400, [1], Code.INTERNAL),
    ],
)
def test_an_answer_that_is_not_ours_is_an_error_too(status: int, body: Any, code: Code) -> None:
    """A proxy in between may answer anything."""
    assert ParticipantError.from_body(status, body).code is code


# The description


async def test_the_description_is_served_and_agrees_with_the_routes() -> None:
    """Each route is described, and each that is described answers."""
    async with site() as at:
        document = (await at.http.get(f"{CONTROL_PREFIX}/openapi.json", headers=AUTHORIZED)).json()
        assert document == json.loads(json.dumps(describe()))
        served = {
            (f"{CONTROL_PREFIX}{route.path}", method.lower())  # type: ignore[attr-defined]
            for route in control_app(at.plane, TOKEN).routes
            for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
        }
        described = {(path, method) for path, methods in document["paths"].items() for method in methods}
        assert served - {(f"{CONTROL_PREFIX}/openapi.json", "get")} == described
        for path, method in described:
            reply = await at.http.request(method, path, headers=AUTHORIZED, json={})
            assert str(reply.status_code) in document["paths"][path][method]["responses"]


def test_the_description_is_whole() -> None:
    """Every reference leads somewhere, ids are unique, and each operation has its statuses and security."""
    document = describe()
    assert document["openapi"].startswith("3.1")
    assert document["security"] == [{scheme: []} for scheme in document["components"]["securitySchemes"]]
    schemas = document["components"]["schemas"]
    for ref in _refs(document):
        assert ref.removeprefix("#/components/schemas/") in schemas, ref
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids)) == len(OPERATIONS) + 3
    for operation in operations:
        assert {"200", *map(str, CODES_BY_STATUS)} == operation["responses"].keys()
        for response in operation["responses"].values():
            assert response["description"]


def _refs(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for value in node.values() for ref in _refs(value)]
    return [ref for value in node for ref in _refs(value)] if isinstance(node, list) else []


async def test_a_message_of_the_description_is_one_that_is_accepted() -> None:
    """What the schema requires is what the server requires."""
    schema = describe()["components"]["schemas"]["Prepare"]
    assert schema["additionalProperties"] is False
    values = {"run": None, "epoch": 1, "floor": [1, 0], "incarnation": None, "round": "1.1"}
    async with site() as at:
        book = at.plane.book
        fields = {**values, "run": book.run, "incarnation": book.incarnation, "timeout_s": 1, "lease_s": 2}
        assert set(fields) == set(schema["properties"])
        assert (await at.post("prepare", **fields)).status_code == 200
        for name in schema["required"]:
            less = {key: value for key, value in fields.items() if key != name}
            reply = await at.http.post(f"{CONTROL_PREFIX}/prepare", json=less, headers=AUTHORIZED)
            assert name in reply.json()["error"]["message"]


@pytest.mark.parametrize("block", ["operations", "errors"])
def test_the_page_lists_what_the_tables_have(block: str) -> None:
    """docs/control.md holds what the script writes; `python -m tests.support.control_page` brings it up to date."""
    assert current(PAGE.read_text(encoding="utf-8"), block) == rendered()[block]
