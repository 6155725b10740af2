"""A second seed: it opens a session of its own, returns the one that it names, or is refused; it never goes astray."""

from typing import Any

import anyio
import httpx
import pytest

from participants import data_app
from participants.data import Request
from participants.errors import Code, ParticipantError
from participants.gate import Gate
from participants.resources import ResourcesServer
from store import RawRecord

from .harness import (
    LIFE,
    NEXT,
    RESPONSE,
    Caller,
    Notebook,
    ReplayNotebook,
    as_line,
    checkpoint,
    restore,
)

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
TYPED: dict[str, Any] = {
    "resources_session_id": "s",
    "episode_id": {"rollout_id": "r0", "attempt": 0},
    "task_id": {"taskset": "words", "task_id": "1"},
    "task_data": {"words": ["a"]},
}


def jar(server: ResourcesServer) -> httpx.AsyncClient:
    """A plain client, which keeps the cookies that it is given."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(data_app(server)), base_url="http://resources")


async def scored(http: httpx.AsyncClient, words: list[str]) -> float:
    """Seed, add a word and verify: the reward, which is the number of words."""
    assert (await http.post("/seed_session", json={"words": words})).status_code == 200
    assert (await http.post("/add", json={"word": "x"})).status_code == 200
    reward: float = (await http.post("/verify", json={"response": RESPONSE})).json()["reward"]
    return reward


@pytest.mark.parametrize("closes", [False, True])
async def test_one_cookie_jar_takes_row_after_row(closes: bool) -> None:
    """Each row has a session and a reward of its own, the same row again too, closed in between or not."""
    async with jar(Notebook()) as http:
        cookies = set()
        for words in (["a"], ["a", "b", "c"], ["a", "b", "c"], []):
            assert await scored(http, words) == len(words) + 1
            cookies.add(http.cookies["midflight-session"])
            if closes:
                assert (await http.post("/close_session", json={})).status_code == 200
        assert len(cookies) == 4


async def test_rollouts_of_one_row_that_send_one_cookie_do_not_share_a_session() -> None:
    """Each that is seeded with the cookie of an unchanged session gets another, and the first one stays."""
    async with jar(Notebook()) as http:
        seeded = [await http.post("/seed_session", json={"words": ["a"]}) for _ in range(3)]
        cookies = [each.headers["set-cookie"].partition(";")[0] for each in seeded]
        http.cookies.clear()
        for cookie in cookies:
            said = await http.post("/add", json={"word": "b"}, headers={"cookie": cookie})
            assert said.json() == ["a", "b"]


@pytest.mark.parametrize("how", ["header", "body"])
async def test_a_named_session_is_returned_to_its_row_and_refused_to_another(how: str) -> None:
    """Also where a cookie comes with the name; the session is untouched by a refused seed."""
    server = ReplayNotebook()
    body, headers = {"words": ["a"], "_ng_rollout_index": 0}, {"cookie": "midflight-session=elsewhere"}
    if how == "header":
        headers["x-resources-session-id"] = "s"
    else:
        body["resources_session_id"] = "s"
    call = Caller(server, life=None)
    first = await server.handle(Request(route="/seed_session", body=body, headers=headers))
    await call("/add", {"word": "b"})
    assert (
        await server.handle(Request(route="/seed_session", body=dict(reversed(body.items())), headers=headers)) == first
    )
    for other in ({"words": ["z"]}, {"_ng_rollout_index": 1}):
        with pytest.raises(ParticipantError, match="session s was seeded with another row or task") as caught:
            await server.handle(Request(route="/seed_session", body={**body, **other}, headers=headers))
        assert caught.value.code is Code.INVALID_REQUEST
    assert (await call("/add", {"word": "c"})).body == ["a", "b", "c"]


@pytest.mark.parametrize(
    "other", [{"task_id": {"taskset": "words", "task_id": "2"}}, {"task_id": None}, {"task_data": {"words": ["b"]}}]
)
async def test_another_task_under_one_life_is_refused(other: dict[str, Any]) -> None:
    """Of the same episode, by name and by data."""
    call = Caller(Notebook())
    await call("/seed_session", TYPED)
    with pytest.raises(ParticipantError, match="another row or task") as caught:
        await call("/seed_session", {**TYPED, **other})
    assert caught.value.code is Code.INVALID_REQUEST


async def test_another_row_for_the_session_of_a_life_that_names_none_is_refused() -> None:
    """A life has one session unless it names others, and the cookie of one is a name here."""
    call = Caller(Notebook(), session="")
    await call("/seed_session", {"words": ["a"]})
    with pytest.raises(ParticipantError, match="session main was seeded with another row"):
        await call("/seed_session", {"words": ["b"]})


async def test_seeds_of_two_rows_at_once_open_the_session_for_the_first() -> None:
    """The second waits for the seed that runs, and is then refused."""
    server = Notebook()
    server.hold = anyio.Event()
    codes: list[Code] = []

    async def second() -> None:
        with pytest.raises(ParticipantError) as caught:
            await Caller(server, life=None)("/seed_session", {"words": ["b"]})
        codes.append(caught.value.code)

    async with anyio.create_task_group() as group:
        group.start_soon(Caller(server, life=None), "/seed_session", {"words": ["a"]})
        await anyio.wait_all_tasks_blocked()
        group.start_soon(second)
        await anyio.wait_all_tasks_blocked()
        server.hold.set()
    assert (codes, server.log) == ([Code.INVALID_REQUEST], ["seed"])


async def test_a_restored_session_knows_its_row() -> None:
    """Also after a second restore: the same row gets it, and another one is refused."""
    old = Notebook()
    await Caller(old)("/seed_session", {"words": ["a"]})
    for _ in range(2):
        records = await checkpoint(old, {LIFE})
        old = Notebook()
        await restore(old, records)
    call = Caller(old, NEXT, boundary=7)
    assert (await call("/seed_session", {"words": ["a"]})).body == {"size": 1}
    with pytest.raises(ParticipantError, match="another row"):
        await call("/seed_session", {"words": ["b"]})
    assert old.log == []


async def test_a_record_that_does_not_say_what_it_was_seeded_with_still_loads() -> None:
    """As older versions wrote it: any row is taken for the same, as it was then."""
    old = Notebook()
    await Caller(old)("/seed_session", {"words": ["a"]})
    await old.freeze({LIFE})
    [record] = (await old.export({LIFE})).records
    assert not isinstance(record, RawRecord)
    del record.payload["state"]["sessions"]["s"]["digest"]
    new = Notebook()
    await restore(new, [as_line(record)])
    call = Caller(new, NEXT, boundary=7)
    assert (await call("/seed_session", {"words": ["b"]})).ok
    assert (await call("/add", {"word": "c"})).body == ["a", "c"]


@pytest.mark.parametrize("route", ["/add", "/verify", "/close_session"])
async def test_a_call_that_names_no_session_says_what_to_send(route: str) -> None:
    """It is the caller's mistake, and no lost session; nothing is closed or kept."""
    server = Notebook()
    plain = Caller(server, life=None, session="")
    for _ in range(2):
        with pytest.raises(
            ParticipantError, match="names no session: seed first, and send its cookie or x-res"
        ) as caught:
            await plain(route, {})
        assert caught.value.code is Code.INVALID_REQUEST


async def test_a_seed_that_failed_keeps_no_later_session_from_expiring() -> None:
    """It leaves a session that nobody can use, and that ends with its time as others do."""
    now = [0.0]
    server = Notebook(gate=Gate(clock=lambda: now[0]), session_ttl_s=10)
    plain = Caller(server, life=None, session="")
    with pytest.raises(ParticipantError):
        await plain("/seed_session", {"words": 3})
    await plain("/seed_session", {})
    now[0] += 11
    await plain("/seed_session", {})
    assert server.counts()["sessions_without_life"] == 1
