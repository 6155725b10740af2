"""Kept replies: a call happens once per id, whatever its caller repeats."""

from contextlib import suppress
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from participants import CallId, Code, ParticipantError, Replies, Reply, Request
from participants.replies import check_same
from store import Life
from tests.support.owners import Notebook, Pause

pytestmark = pytest.mark.unit

LIFE = Life("r0", 1, 0, 0)


def call(boundary: int, k: int = 0, caller: str = "agent.main", parent: str = "") -> CallId:
    return CallId(caller, boundary, k, parent)


def keep(replies: Replies, *calls: CallId) -> None:
    for each in calls:
        replies.finish(each, replies.begin(each, "digest"), Reply(200, {"call": str(each)}))


def kept(replies: Replies) -> list[str]:
    return [str(each) for each, _ in replies]


def test_a_reply_is_kept_until_the_caller_names_its_next_boundary() -> None:
    """All calls since a boundary are kept; the first of the next one drops them."""
    replies = Replies()
    keep(replies, call(1, 0), call(1, 1))
    assert kept(replies) == ["agent.main:1.0", "agent.main:1.1"]
    assert replies.find(call(2)) is None
    assert kept(replies) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from(["", "a.x:1.0"]), st.integers(0, 3))))
def test_the_counts_are_those_of_what_is_kept(steps: list[tuple[int, int, str, int]]) -> None:
    """Whatever begins, ends, fails, fails late or is dropped: the counts are what a look at everything gives."""
    replies, begun = Replies(), []
    for boundary, k, parent, what in steps:
        one = call(boundary, k, "b.y" if parent else "a.x", parent)
        if what < 2:
            with suppress(ParticipantError):
                begun.append((one, replies.begin(one, "digest")))
        elif begun:
            replies.finish(*begun[-1 - k % len(begun)], Reply(200, {}) if what == 2 else None)
        every = [item for _, item in replies]
        assert (replies.count, replies.finished) == (len(every), sum(each.reply is not None for each in every))


def test_a_call_below_the_boundary_last_named_is_stale() -> None:
    """It is refused, and what is kept stays."""
    replies = Replies()
    keep(replies, call(3))
    with pytest.raises(ParticipantError) as caught:
        replies.find(call(2))
    assert caught.value.code is Code.STALE_CALL
    assert kept(replies) == ["agent.main:3.0"]


def test_callers_have_boundaries_of_their_own() -> None:
    """One caller's progress drops nothing of another one."""
    replies = Replies()
    keep(replies, call(1), call(7, 0, "environment.main"))
    replies.find(call(2))
    assert kept(replies) == ["environment.main:7.0"]


def test_what_was_called_inside_a_call_is_kept_until_its_caller_moves_on() -> None:
    """A repeat of the outer call finds its inner ones; once the outer caller is past it they are gone."""
    replies = Replies()
    inner, other = call(0, 0, "resources.main", str(call(1))), call(0, 0, "resources.main", str(call(3)))
    keep(replies, call(1), inner, other)
    replies.find(call(1))
    assert kept(replies) == ["agent.main:1.0", str(inner), str(other)]
    replies.find(call(2))
    assert kept(replies) == [str(other)]


def test_an_export_has_the_finished_ones_and_loads_again() -> None:
    """What is in flight is left out: it is issued again."""
    replies = Replies()
    keep(replies, call(1, 0), call(4, 2, "environment.main"), CallId("tool.x", 0, 0, "environment.main:4.2"))
    refused = call(1, 2)
    replies.finish(refused, replies.begin(refused, "digest"), Reply(400, {"error": "no"}))
    replies.begin(call(1, 1), "digest")
    loaded = Replies.load(replies.export())
    inside = "tool.x:0.0@environment.main:4.2"
    assert kept(loaded) == ["agent.main:1.0", "agent.main:1.2", "environment.main:4.2", inside]
    assert loaded.export() == replies.export()
    found = loaded.find(call(1, 0))
    assert found is not None
    assert found.reply == Reply(200, {"call": "agent.main:1.0"})
    assert found.done.is_set()


@pytest.mark.parametrize(
    "items",
    [
        [{}],
        [{"call": "nobody", "digest": "d", "status": 200, "body": {}, "headers": {}}],
        [{"call": "agent.main:1.0", "digest": "d", "status": 200, "body": {}}],
        [3],
    ],
)
def test_a_malformed_export_is_refused(items: list[Any]) -> None:
    """A checkpoint is untrusted input."""
    with pytest.raises((KeyError, TypeError, ParticipantError)):
        Replies.load(items)


def test_an_id_that_comes_again_with_another_request_is_refused() -> None:
    """Nothing of the kept reply is given away."""
    replies, request = Replies(), Request(route="/add", body={"n": 1})
    item = replies.begin(call(1), request.digest)
    check_same(request, item)
    with pytest.raises(ParticipantError) as caught:
        check_same(Request(route="/add", body={"n": 2}, call=call(1)), item)
    assert caught.value.code is Code.STALE_CALL
    item.end(Reply(200, {}))
    with pytest.raises(ParticipantError):
        check_same(Request(route="/add", body={"n": 2}, call=call(1)), item)


@pytest.mark.anyio
async def test_concurrent_repeats_join_the_call_in_flight() -> None:
    """Three tries of one call run it once, and all get its reply."""
    owner, pause, runs = Notebook(), Pause(), 0
    held = await owner.enter(LIFE, creates=True)
    answers: list[Reply] = []

    async def run() -> Reply:
        nonlocal runs
        runs += 1
        await pause()
        return Reply(200, {"runs": runs})

    async def ask() -> None:
        answers.append(await owner.once(held, Request(route="/add", body={}, call=call(1)), run))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(ask)
        await pause.reached.wait()
        await checkpoint()
        pause.released.set()
    assert [answer.body for answer in answers] == [{"runs": 1}] * 3


@pytest.mark.anyio
async def test_a_failed_call_is_forgotten_and_a_waiting_repeat_runs_it() -> None:
    """Only a reply is kept: after a failure or a cancel the call runs again."""
    owner, pause, runs = Notebook(), Pause(), 0
    held = await owner.enter(LIFE, creates=True)
    request = Request(route="/add", body={}, call=call(1))

    async def run() -> Reply:
        nonlocal runs
        runs += 1
        if runs == 1:
            await pause()
            raise ParticipantError(Code.INTERNAL, "it broke")
        return Reply(200, {"runs": runs})

    async def fails() -> None:
        with pytest.raises(ParticipantError):
            await owner.once(held, request, run)

    async with anyio.create_task_group() as group:
        group.start_soon(fails)
        await pause.reached.wait()
        group.start_soon(owner.once, held, request, run)
        await checkpoint()
        pause.released.set()
    assert (runs, len(held.replies)) == (2, 1)


@pytest.mark.anyio
async def test_a_call_without_an_id_runs_each_time_it_comes() -> None:
    """Nothing is kept of it."""
    owner, runs = Notebook(), 0
    held = await owner.enter(LIFE, creates=True)

    async def run() -> Reply:
        nonlocal runs
        runs += 1
        return Reply(200, {})

    for _ in range(2):
        await owner.once(held, Request(route="/add", body={}), run)
    assert (runs, len(held.replies)) == (2, 0)
