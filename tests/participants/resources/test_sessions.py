"""What happens to a session, call by call."""

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from participants.data import MODE_HEADER, REVISION_HEADER, VERIFY_HEADER, CallId, Reply
from participants.errors import Code, ParticipantError
from participants.gate import Gate
from participants.sessions import ResourcesSession
from store import Life

from .harness import LIFE, RESPONSE, Caller, Drawer, Notebook, ReplayNotebook

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

TYPED: dict[str, Any] = {
    "resources_session_id": "s",
    "episode_id": {"rollout_id": "r0", "attempt": 0},
    "task_id": {"taskset": "words", "task_id": "1"},
    "task_data": {"words": ["a"]},
}


async def refused(code: Code, caller: Caller, route: str, body: Any = None, **options: Any) -> ParticipantError:
    """The error of a call that must fail so."""
    with pytest.raises(ParticipantError) as caught:
        await caller(route, body, **options)
    assert caught.value.code is code, caught.value
    return caught.value


@pytest.mark.parametrize("body", [TYPED, {"words": ["a"], "resources_session_id": "s", "other": 1}])
async def test_both_bodies_seed_the_same_session(body: dict[str, Any]) -> None:
    """The typed body's task data and a flat row give the hook the same fields."""
    call = Caller(Notebook())
    reply = await call("/seed_session", body)
    assert reply.body == {"resources_session_id": "s", "size": 1}
    assert (reply.headers[MODE_HEADER], reply.headers[VERIFY_HEADER]) == ("exported", "wait")
    assert (await call("/add", {"word": "b"})).body == ["a", "b"]


@pytest.mark.parametrize(
    "change",
    [{"extra": 1}, {"episode_id": {"rollout_id": "r0"}}, {"episode_id": {"rollout_id": "other", "attempt": 0}}],
)
async def test_a_typed_body_refuses_what_it_does_not_know(change: dict[str, Any]) -> None:
    """Extra fields, missing ones, and an episode that contradicts the life are refused; nothing is seeded."""
    server = Notebook()
    await refused(Code.INVALID_REQUEST, Caller(server), "/seed_session", {**TYPED, **change})
    assert server.log == []


async def test_a_repeated_seed_returns_the_existing_session() -> None:
    """The same id and episode again, under another call id, neither seeds again nor resets."""
    server = Notebook()
    call = Caller(server)
    first = await call("/seed_session", TYPED)
    await call("/add", {"word": "b"})
    assert (await call("/seed_session", TYPED)).body == first.body
    assert (await call("/add", {"word": "c"})).body == ["a", "b", "c"]
    assert server.log.count("seed") == 1
    await refused(Code.INVALID_REQUEST, call, "/seed_session", {"words": ["a"]})


class Silent(Notebook):
    """Has nothing to say to a seed."""

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:  # type: ignore[override]
        await super().seed(session, row)


async def test_a_seed_that_returned_nothing_is_not_run_again() -> None:
    """That a session is seeded does not depend on what its hook returned."""
    server = Silent()
    call = Caller(server)
    await call("/seed_session", TYPED)
    await call("/add", {"word": "b"})
    await call("/seed_session", TYPED)
    assert (await call("/add", {"word": "c"})).body == ["a", "b", "c"]
    assert server.log.count("seed") == 1


async def test_a_seed_that_waited_behind_a_close_is_refused() -> None:
    """The first one fails while a close and another seed wait for it; the session is over then."""
    server, codes = Notebook(), list[Code]()
    server.hold = anyio.Event()

    async def seed(k: int, body: dict[str, Any]) -> None:
        try:
            await Caller(server)("/seed_session", body, call=CallId("environment.main", 0, k))
        except ParticipantError as error:
            codes.append(error.code)

    async with anyio.create_task_group() as group:
        group.start_soon(seed, 0, {**TYPED, "task_data": {"words": None}})
        await anyio.wait_all_tasks_blocked()
        group.start_soon(Caller(server), "/close_session", {"resources_session_id": "s"})
        await anyio.wait_all_tasks_blocked()
        group.start_soon(seed, 1, TYPED)
        await anyio.wait_all_tasks_blocked()
        server.hold.set()
    assert codes == [Code.INTERNAL, Code.STALE_CALL]
    assert server.log == ["seed"]


async def test_concurrent_seeds_run_once() -> None:
    """Duplicates in flight, with one call id or several, wait for the one that runs."""
    server = Notebook()
    server.hold = anyio.Event()
    replies: list[Reply] = []

    async def seed(k: int) -> None:
        replies.append(await Caller(server)("/seed_session", TYPED, call=CallId("environment.main", 0, k)))

    async with anyio.create_task_group() as group:
        for k in (0, 0, 1):
            group.start_soon(seed, k)
        await anyio.wait_all_tasks_blocked()
        server.hold.set()
    assert server.log == ["seed"]
    assert [reply.body for reply in replies] == [replies[0].body] * 3


async def test_a_close_that_comes_first_fences_the_seed() -> None:
    """A seed that was slower than the close of its session is refused, and runs no hook."""
    server = Notebook()
    call = Caller(server)
    assert (await call("/close_session", {"resources_session_id": "s"})).ok
    await refused(Code.STALE_CALL, call, "/seed_session", TYPED)
    assert server.log == []


async def test_close_frees_once_and_may_be_repeated() -> None:
    """The author's hook runs once, a second close is fine, and later calls of the session are refused."""
    server = Drawer()
    call = Caller(server)
    await call("/seed_session", {})
    assert [(await call("/close_session", {})).status for _ in range(2)] == [200, 200]
    assert server.closed == ["s"]
    await refused(Code.STALE_CALL, call, "/put", {"thing": "x"})


async def test_verify_frees_nothing() -> None:
    """After a verify the session still answers."""
    call = Caller(Drawer())
    await call("/seed_session", {})
    assert (await call("/verify", {"response": RESPONSE})).body["reward"] == 0.0
    assert (await call("/put", {"thing": "x"})).body == 1


async def test_sessions_of_one_life_are_apart() -> None:
    """A life may have several sessions, and each has its own state."""
    call = Caller(Notebook())
    for session in ("s", "t"):
        await call("/seed_session", {}, session=session)
        await call("/add", {"word": session}, session=session)
    assert (await call("/add", {"word": "x"}, session="t")).body == ["t", "x"]


async def test_a_repeated_call_gets_the_kept_reply() -> None:
    """The same call id again runs no tool; with another body it is refused."""
    server = Notebook()
    call = Caller(server)
    await call("/seed_session", {})
    again = CallId("agent.main", 5, 0)
    first = await call("/add", {"word": "a"}, call=again)
    assert await call("/add", {"word": "a"}, call=again) == first
    await refused(Code.STALE_CALL, call, "/add", {"word": "b"}, call=again)
    assert server.log == ["seed", "add a"]


async def test_a_stale_life_touches_nothing() -> None:
    """Once a newer life has seeded, calls of the older one, of any route, are refused before anything else."""
    server = Notebook()
    old = Caller(server)
    await old("/seed_session", {})
    new = Caller(server, Life("r0", 1, 0, 1))
    await new("/seed_session", {})
    for route in ("/add", "/verify", "/no_such_tool", "/seed_session", "/close_session"):
        await refused(Code.STALE_LIFE, old, route, {"word": "x"})
    assert (await new("/add", {"word": "y"})).body == ["y"]


async def test_a_session_that_is_not_here_is_an_error() -> None:
    """A known life without that session is a lost session; an unknown life, as after a restart, is refused."""
    server = Notebook()
    call = Caller(server)
    await refused(Code.STALE_LIFE, call, "/add", {"word": "x"})
    await call("/seed_session", {}, session="other")
    await refused(Code.LOST_SESSION, call, "/add", {"word": "x"})
    await refused(Code.LOST_SESSION, call, "/verify", {"response": RESPONSE})


async def test_an_unknown_route_is_a_404_that_is_kept_and_counted() -> None:
    """The model sees it like any other tool output, so both sides count it."""
    server = Notebook()
    call = Caller(server)
    await call("/seed_session", {})
    reply = await call("/no_such_tool", {})
    assert (reply.status, reply.headers[REVISION_HEADER]) == (404, "2")
    assert reply.body == {"error": "there is no tool named 'no_such_tool'"}


async def test_bad_arguments_are_shown_to_the_model() -> None:
    """A missing, unknown or ill-typed argument is a reply that says so, and the tool does not run."""
    server = Notebook()
    call = Caller(server)
    await call("/seed_session", {})
    bodies: list[Any] = [{}, {"word": 3}, {"word": "a", "size": 1}, []]
    for body in bodies:
        reply = await call("/add", body)
        assert reply.status == 422
        assert reply.body["error"].startswith("add: ")
    assert server.log == ["seed"]


@pytest.mark.parametrize("how", ["fail", "refuse"])
async def test_a_failed_tool_is_undone(how: str) -> None:
    """What it did to a JSON state is put back, the revision stays, and the next call finds the session whole."""
    server = Notebook()
    call = Caller(server)
    await call("/seed_session", TYPED)
    if how == "fail":
        await refused(Code.INTERNAL, call, "/add", {"word": "x", how: True})
    else:
        assert (await call("/add", {"word": "x", how: True})).status == 400
    session = (await server.enter(LIFE)).state.open["s"]
    assert (session.revision, session.state) == (0, {"words": ["a"]})
    assert (await call("/add", {"word": "b"})).body == ["a", "b"]


async def test_a_cancelled_tool_is_undone() -> None:
    """A caller that goes away in the middle of a call leaves the session as it was, and may repeat the call."""
    server = Notebook()
    call = Caller(server)
    await call("/seed_session", TYPED)
    server.hold = anyio.Event()
    again = CallId("agent.main", 5, 0)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: call("/add", {"word": "x"}, call=again))
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    server.hold.set()
    assert (await call("/add", {"word": "x"}, call=again)).body == ["a", "x"]


async def test_a_failed_tool_loses_a_session_that_cannot_be_put_back() -> None:
    """A state that is no JSON is not known after a failure: that is said, and its life becomes a restart."""
    server = Drawer()
    call = Caller(server)
    await call("/seed_session", {})
    await refused(Code.INTERNAL, call, "/put", {"thing": "x", "fail": True})
    assert "half done" in (await refused(Code.LOST_SESSION, call, "/put", {"thing": "y"})).message
    assert list(server.restarts()) == [LIFE]


async def test_a_kept_reply_is_nobody_elses_object() -> None:
    """A tool that returns its live state does not change the kept reply by changing that state."""
    call = Caller(Notebook())
    await call("/seed_session", {})
    again = CallId("agent.main", 5, 0)
    assert (await call("/add", {"word": "a"}, call=again)).body == ["a"]
    await call("/add", {"word": "b"}, call=CallId("agent.other", 0, 0))
    assert (await call("/add", {"word": "a"}, call=again)).body == ["a"]


async def test_verify_returns_the_row_with_the_score() -> None:
    """The fields that came in, and the four that a verify adds."""
    call = Caller(ReplayNotebook())
    await call("/seed_session", TYPED)
    row = {"words": ["a"], "responses_create_params": {"input": []}, "response": RESPONSE}
    reply = await call("/verify", {**row, "resources_session_id": "s"})
    assert reply.body == {**row, "reward": 1.0, "mask_sample": False, "failure_kind": None, "failure_reason": None}
    await refused(Code.INVALID_REQUEST, call, "/verify", {"words": []})


@pytest.mark.parametrize("given", [{}, {"reward": None}, {"reward": float("nan")}, {"reward": True}])
async def test_a_verify_without_a_reward_is_an_error(given: dict[str, Any]) -> None:
    """It is never a reward of 0."""

    class Careless(Notebook):
        async def verify(self, session: Any, row: Any) -> Any:
            return given

    call = Caller(Careless())
    await call("/seed_session", {})
    await refused(Code.INTERNAL, call, "/verify", {"response": RESPONSE})


async def test_idle_time_counts_only_while_admission_is_open() -> None:
    """A session outlives a long checkpoint, and not its limit."""
    now = [0.0]
    gate = Gate(clock=lambda: now[0])
    call = Caller(Notebook(gate=gate, session_ttl_s=10))
    await call("/seed_session", {})
    gate.close()
    now[0] += 100
    gate.reopen()
    assert (await call("/add", {"word": "a"})).ok
    now[0] += 11
    assert "not used" in (await refused(Code.LOST_SESSION, call, "/add", {"word": "b"})).message


async def test_a_client_without_a_life_is_served_by_cookie() -> None:
    """A plain client finds its session by the cookie of its seed; without one there is none."""
    server = Notebook()
    plain = Caller(server, life=None, session="")
    reply = await plain("/seed_session", {"words": ["a"]})
    cookie = reply.headers["set-cookie"].partition(";")[0]
    named = Caller(server, life=None, session=cookie.partition("=")[2])
    assert reply.body == {"size": 1}
    assert (await named("/add", {"word": "b"})).body == ["a", "b"]
    await refused(Code.INVALID_REQUEST, plain, "/add", {"word": "c"})
    assert (await named("/close_session", {})).ok
    assert server.counts()["sessions_without_life"] == 0


async def test_a_retired_life_leaves_nothing() -> None:
    """Its tool is stopped, its sessions are freed with the author's hook, and its late calls are refused."""
    server = Drawer()
    call = Caller(server)
    await call("/seed_session", {})
    assert await server.retire([LIFE], 1) == []
    assert server.closed == ["s"]
    assert (server.counts()["sessions"], list(server.live())) == (0, [])
    await refused(Code.STALE_LIFE, call, "/seed_session", {})


class Careless(Notebook):
    """Its state may become what is no JSON."""

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        """Keep an object."""
        session.state["thing"] = object()


async def test_a_call_that_leaves_a_state_that_is_no_json_fails_and_is_undone() -> None:
    """It is found at the call that did it, rather than at a later call or a checkpoint."""
    server = Careless()
    call = Caller(server)
    await call("/seed_session", {"words": ["a"]})
    told = str(await refused(Code.INTERNAL, call, "/any"))
    assert "object at" in told
    assert "write export_session and import_session" in told
    assert (await server.enter(LIFE)).state.open["s"].state == {"words": ["a"]}


class Strange(Notebook):
    """Leaves and gives what a test says, at any of its hooks."""

    left: Any = None
    given: Any = None
    at = ""

    def _do(self, hook: str, session: ResourcesSession, otherwise: Any) -> Any:
        if hook != self.at:
            return otherwise
        if self.left is not None:
            session.state["strange"] = self.left
        return otherwise if self.given is None else self.given

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        session.state["words"] = ["a"]
        return self._do("seed", session, {})

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        return self._do(name, session, dict(session.state))

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        return self._do("verify", session, {"reward": 1})


@pytest.mark.parametrize("strange", [(1, 2), float("-inf"), datetime(2026, 1, 1, tzinfo=UTC), {"a": {1}}], ids=repr)
@pytest.mark.parametrize("what", ["left", "given"])
@pytest.mark.parametrize("at", ["seed", "tool", "verify"])
async def test_what_would_come_back_changed_is_refused_at_its_hook(at: str, what: str, strange: Any) -> None:
    """In the state or in the reply: a crash or a ToolError would change it, and nobody would say so."""
    server = Strange()
    server.at, given = at, {"reward": 1, "strange": strange}
    setattr(server, what, strange if what == "left" else given)
    call = Caller(server)
    if at == "seed":
        error = await refused(Code.INTERNAL, call, "/seed_session", {})
    else:
        await call("/seed_session", {})
        route = f"/{at}"
        error = await refused(Code.INTERNAL, call, route, {"response": RESPONSE} if at == "verify" else {})
        assert (await call("/show")).body == {"words": ["a"]}
    assert f"{at} {what if what == 'left' else 'gave'}" in error.message
    assert "['strange']" in error.message


@pytest.mark.parametrize("given", [[1.0], "1.0", 1.0, {"score": 1.0}])
async def test_a_verify_without_a_dict_with_reward_says_so(given: Any) -> None:
    """Whatever it gave instead, by name."""
    server = Strange()
    server.at, server.given = "verify", given
    call = Caller(server)
    await call("/seed_session", {})
    error = await refused(Code.INTERNAL, call, "/verify", {"response": RESPONSE})
    assert "verify must return a dict with `reward`, and not" in error.message
    assert repr(given) in error.message


class Exporting(Drawer):
    """Gives an export that would come back changed."""

    async def export_session(self, session: ResourcesSession) -> Any:
        return tuple(session.state)


async def test_an_export_that_would_come_back_changed_makes_a_restart() -> None:
    """A restore would import something else than it gave."""
    server = Exporting()
    await Caller(server)("/seed_session", {})
    await server.freeze()
    assert list(server.restarts()) == [LIFE]
    [session] = (await server.enter(LIFE)).state.open.values()
    assert "what it gave is not JSON that comes back the same: tuple ()" in session.unexportable
