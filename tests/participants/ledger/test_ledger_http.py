"""The ledgers over HTTP: what trainers read, the ends, and the token."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from participants.ledger import LEDGER_PREFIX, Ledger, check, ledger_app
from tests.support.ledgers import files_of, life, lineage, quick, record

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

TOKEN = "a-token"


@asynccontextmanager
async def site(root: Path) -> AsyncIterator[tuple[Ledger, httpx.AsyncClient]]:
    """A ledger with two lives of two calls, and a client that has the token."""
    ledger = quick(root)
    await lineage(ledger, 2, 2)
    app = Starlette(routes=[Mount(LEDGER_PREFIX, ledger_app(ledger, TOKEN))])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url=f"http://here{LEDGER_PREFIX}",
        headers={"authorization": f"Bearer {TOKEN}"},
    ) as http:
        yield ledger, http


def lines(reply: httpx.Response) -> list[Any]:
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [orjson.loads(line) for line in reply.content.splitlines()]


async def test_a_trainer_reads_and_checks_a_lineage(tmp_path: Path) -> None:
    """Manifest, rows and records are those of the newest life of the attempt, and the checker finds nothing."""
    async with site(tmp_path) as (ledger, http):
        manifest = (await http.get("/r-a1/manifest")).json()
        rows = lines(await http.get("/r-a1/rows"))
        lives = [*manifest["origins"], manifest["life"]]
        assert check(rows, lives=lives, count=manifest["rows"], last=manifest["last"]) == []
        assert rows == ledger.export(life(1, 2))
        assert [each["record"] for each in lines(await http.get("/r-a1/records"))] == [record(2), record(3)]
        assert len(lines(await http.get("/r/rows"))) == 2


async def test_a_freeze_is_read_by_its_version(tmp_path: Path) -> None:
    """A frozen version is read as it was, and repeated gives the same receipt; an unknown one is refused."""
    async with site(tmp_path) as (ledger, http):
        receipt = (await http.post("/r-a1/freeze", json={"version": "v 1"})).json()
        assert (receipt["rows"], receipt["version"]) == (4, "v 1")
        assert (await http.post("/r-a1/freeze", json={"version": "v 1"})).json() == receipt
        assert len(lines(await http.get("/r-a1/rows", params={"version": "v 1"}))) == 4
        assert (await http.get("/r-a1/rows", params={"version": "v2"})).status_code == 422
        assert [each.to_json() for each in (await ledger.manifest("r-a1")).frozen] == [receipt]


async def test_the_two_ends_can_be_repeated(tmp_path: Path) -> None:
    """Retire gives the same receipt again; delete removes every life of the attempt and then finds nothing."""
    async with site(tmp_path) as (_, http):
        receipt = (await http.post("/r-a1/retire")).json()
        assert (receipt["rows"], receipt["records"], receipt["reason"]) == (4, 2, "retired")
        assert (await http.post("/r-a1/retire")).json() == receipt
        assert len(lines(await http.get("/r-a1/rows"))) == 4
        deleted = (await http.delete("/r-a1")).json()["receipts"]
        assert [(each["what"], each["last"]) for each in deleted] == [("deleted", receipt["last"])]
        assert (await http.delete("/r-a1")).json() == {"receipts": []}
        assert (await http.post("/r-a1/retire")).json()["found"] is False
        assert (await http.get("/r-a1/rows")).status_code == 422
        assert files_of(tmp_path) == ["1.0.0.ledger.jsonl", "1.0.0.records.jsonl"]


async def test_no_dead_life_comes_up_after_a_delete(tmp_path: Path) -> None:
    """Where an attempt had several lives, deleting its key deletes them all."""
    async with site(tmp_path) as (ledger, http):
        await ledger.begin(life(1, 3), ledger.export(life()), life())
        deleted = (await http.delete("/r-a1")).json()["receipts"]
        assert [each["life"] for each in deleted] == ["r/2.1#0", "r/3.1#0"]
        assert await ledger.lives("r-a1") == []


ROUTES = [
    ("GET", "manifest"),
    ("GET", "rows"),
    ("GET", "records"),
    ("POST", "freeze"),
    ("POST", "retire"),
    ("DELETE", ""),
]


@pytest.mark.parametrize(("method", "what"), ROUTES)
@pytest.mark.parametrize("token", ["", "Bearer", "Bearer b-token", TOKEN, "Bearer a-tokenü"])
async def test_every_route_needs_the_token(tmp_path: Path, method: str, what: str, token: str) -> None:
    """Without the token, or with another, every route is 401 and changes nothing."""
    async with site(tmp_path) as (ledger, http):
        path = f"/r-a1/{what}".rstrip("/")
        reply = await http.request(method, path, headers={b"authorization": token.encode()})
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "unauthorized")
        assert (await ledger.manifest("r-a1")).end is None


@pytest.mark.parametrize(
    "body", ["", "{}", '{"version": ""}', '{"version": 1}', '{"version": "v", "more": 1}', "[" * 9]
)
async def test_a_wrong_body_is_refused(tmp_path: Path, body: str) -> None:
    """A freeze without a version, or with more than one, is `invalid_request`."""
    async with site(tmp_path) as (_, http):
        reply = await http.post("/r/freeze", content=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("key", ["..", "%2e%2e", "r-a0", "x%2Fy", "-", "unknown", "r-a7"])
async def test_a_wrong_key_is_refused(tmp_path: Path, key: str) -> None:
    """What is no key, or names no ledger, is refused, and no path is made of it."""
    async with site(tmp_path) as (_, http):
        assert (await http.get(f"/{key}/manifest")).status_code in (404, 422)


def test_an_empty_token_lets_nobody_in(tmp_path: Path) -> None:
    """The app is not made with an empty token."""
    with pytest.raises(ValueError, match="empty"):
        ledger_app(quick(tmp_path), "")
