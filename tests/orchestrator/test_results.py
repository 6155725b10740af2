"""Episodes over the control plane: submitted, read as they finish, and released, in this process and over HTTP."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from orchestrator.coordination import prepare, resume
from orchestrator.links import SILENCE_S, HttpLink, Link, LocalLink, http_client
from participants import Code, ControlPlane, Dispatched, Done, Finished, Floor, ParticipantError, Submitted, Worked
from participants.wire import BEAT_S, Beat, Began, Release, Results, Submit, Work
from participants.work import joined
from store import Life, Store
from tests.support.checkpoints import memory_store
from tests.support.journal import Journal
from tests.support.listening import listening
from tests.support.owners import ON_PUSHED_LOOP, push, settle
from tests.support.scripted import counter_row
from tests.support.waiting import until_asked
from tests.support.world import World, world

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

TOKEN = "a-token"
ROW = counter_row("r0", 2)
both = pytest.mark.parametrize("kind", ["local", "http"])


@dataclass
class Ends:
    """A world, and a link to its environment."""

    one: World
    link: Link

    @property
    def envelope(self) -> dict[str, Any]:
        [member] = self.one.fleet.of_kind("environment")
        return self.one.fleet.envelope(member)

    async def submit(self, *lives: Life, row: Any = None) -> Submitted:
        rows = {life: row or counter_row(life.rollout_id, 2) for life in lives}
        episodes = tuple(Dispatched(life=life, row=row) for life, row in rows.items())
        return await self.link.send(Submit(**self.envelope, episodes=episodes), Submitted)

    def results(self, after: int = 0) -> AsyncGenerator[Finished]:
        return self.link.results(self.envelope, after)

    async def read(self, count: int, after: int = 0) -> list[Finished]:
        """The next so many."""
        found: list[Finished] = []
        async with aclosing(self.results(after)) as stream:
            while len(found) < count:
                found.append(await anext(stream))
        return found


@asynccontextmanager
async def linked(kind: str, store: Store | None = None, journal: Journal | None = None) -> AsyncIterator[Ends]:
    """A world whose environment is reached through one kind of link."""
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(world(store, journal))
        [member] = one.fleet.of_kind("environment")
        if kind == "local":
            yield Ends(one, member.link)
            return
        assert isinstance(member.link, LocalLink)
        url = await stack.enter_async_context(listening(member.link._plane, TOKEN))
        client = await stack.enter_async_context(http_client(TOKEN))
        yield Ends(one, HttpLink(url, client))


def lives(count: int, epoch: int = 1) -> list[Life]:
    return [Life(f"r{n}", epoch, 0, n) for n in range(count)]


@both
async def test_what_is_submitted_comes_back_numbered_until_it_is_released(kind: str) -> None:
    """In the order in which it finished; a reader that comes again is sent what it has not, and nothing released."""
    async with linked(kind) as at:
        every = lives(3)
        at.one.open += every
        assert await at.submit(*every) == Submitted()
        found = await at.read(3)
        assert [one.n for one in found] == [1, 2, 3]
        assert {one.life for one in found} == set(every)
        assert [(one.row or {})["reward"] for one in found] == [1.0] * 3
        assert all((one.row or {})["mask_sample"] is False and one.failure is None for one in found)
        assert await at.read(2, after=1) == found[1:]
        assert await at.submit(*every) == Submitted()  # All of them are done: nothing begins.
        done = await at.link.send(Release(**at.envelope, lives=(found[0].life,)), Done)
        assert (done.phase, done.count) == ("idle", 1)
        assert await at.read(2) == found[1:]
        [refused] = (await at.submit(found[0].life)).refused
        assert refused.code == "stale_life"


@both
async def test_what_cannot_begin_is_named_and_holds_up_no_other(kind: str) -> None:
    """An epoch that is not the call's, a body that is none, another row under a life that runs."""
    async with linked(kind) as at:
        good, odd, old = Life("r0", 1, 0, 0), Life("r1", 1, 0, 1), Life("r2", 7, 0, 2)
        typed = {"episode_id": {"rollout_id": "other", "attempt": 0}, "task": {}}
        pause = at.one.hold("model r0 0")
        asked = (Dispatched(life=odd, row=typed), Dispatched(life=old, row=ROW), Dispatched(life=good, row=ROW))
        answer = await at.link.send(Submit(**at.envelope, episodes=asked), Submitted)
        named = {one.life: (one.code, one.terminal) for one in answer.refused}
        assert named == {odd: ("invalid_request", True), old: ("stale_epoch", False)}
        [other] = (await at.submit(good, row=counter_row("other", 5))).refused
        assert (other.code, "another row" in other.message) == ("invalid_request", True)
        pause.released.set()
        assert [one.life for one in await at.read(1)] == [good]


@both
async def test_no_result_leaves_while_admission_is_closed(kind: str) -> None:
    """Its reader waits, and has it after the resume."""
    async with linked(kind) as at:
        [life] = lives(1)
        pause = at.one.hold("verify resources-r0")  # It may go on while everybody else stands still.
        await at.submit(life)
        await pause.reached.wait()
        found: list[Finished] = []

        async def read() -> None:
            found.extend(await at.read(1))

        async with anyio.create_task_group() as group:
            round_ = at.one.controller.next_round()
            assert (await prepare(at.one.fleet, round_, timeout_s=5, lease_s=60)).prepared
            group.start_soon(read)
            pause.released.set()
            await settle(300)
            assert found == []
            await resume(at.one.fleet, round_)
        assert [one.life for one in found] == [life]


async def test_no_result_that_was_there_before_leaves_while_admission_is_closed() -> None:
    """A reader that comes while the gate is closed waits, too, and has it once that is open."""
    async with linked("local") as at:
        [life] = lives(1)
        await at.submit(life)
        await at.read(1)
        environment, found = at.one.environment, list[Any]()

        async def read() -> None:
            found.append(await environment.next_result(0))

        environment.gate.close()
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await settle()
            early = list(found)
            environment.gate.reopen()
        assert (early, [one.life for one in found]) == ([], [life])


@both
async def test_a_higher_epoch_ends_the_stream_and_refuses_the_next(kind: str) -> None:
    """It ends as a stream does that is over: there is no error to be taken for a loss."""
    async with linked(kind) as at:
        old, ended = at.envelope, anyio.Event()

        async def read() -> None:
            async with aclosing(at.link.results(old, 0)) as stream:
                assert [one async for one in stream] == []
            ended.set()

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await settle()
            [member] = at.one.fleet.of_kind("environment")
            assert isinstance(member.link, LocalLink)
            plane: ControlPlane = member.link._plane
            plane.book.epoch = 2
            at.one.environment.adopted(2)
            await ended.wait()
        with pytest.raises(ParticipantError) as caught:
            await anext(at.link.results(old, 0))
        assert caught.value.code is Code.STALE_EPOCH


@both
@pytest.mark.parametrize(
    ("change", "after", "code"),
    [
        ({"incarnation": "another"}, 0, Code.WRONG_INCARNATION),
        ({"run": "b" * 32}, 0, Code.INVALID_REQUEST),
        ({"floor": Floor(9, 0)}, 0, Code.INVALID_REQUEST),
        ({}, 1, Code.INVALID_REQUEST),
    ],
)
async def test_a_reader_that_is_not_of_this_process_is_refused(
    kind: str, change: dict[str, Any], after: int, code: Code
) -> None:
    """Also one that has more results than there were: it would never be sent those."""
    async with linked(kind) as at:
        with pytest.raises(ParticipantError) as caught:
            await anext(at.link.results({**at.envelope, **change}, after))
        assert caught.value.code is code


@both
async def test_a_reader_that_goes_away_leaves_nothing_behind(kind: str) -> None:
    """Closed or cancelled while it waits: the server's half has ended too."""
    async with linked(kind) as at:
        gate = at.one.environment.gate
        gate.close()

        async def read() -> None:
            async with aclosing(at.results()) as stream:
                await anext(stream)

        async def parked(count: int) -> bool:
            return gate.parked == count

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await until_asked(lambda: parked(1))
            group.cancel_scope.cancel()
        await until_asked(lambda: parked(0))
        gate.reopen()
        await at.submit(*lives(1))
        assert len(await at.read(1)) == 1


async def test_a_result_that_was_not_released_is_sent_once_after_a_restore() -> None:
    """Nothing runs again for it; its number is that of the new process, and released it is gone from everybody."""
    store, journal = memory_store(), Journal()
    async with linked("local", store, journal) as at:
        life = at.one.next_life("r0")
        await at.submit(life)
        [first] = await at.read(1)
        await at.one.checkpoint()
    whole = list(journal.order)
    async with linked("local", store, journal) as at:
        following = at.one.next_life("r0")
        assert await at.submit(following) == Submitted()
        [again] = await at.read(1)
        assert (again.n, again.life, again.row) == (1, following, first.row)
        with anyio.move_on_after(0.05):
            await anext(at.results(after=1))
            raise AssertionError("it came twice")
        for member in at.one.fleet.members:
            release = Release(**at.one.fleet.envelope(member), lives=(following,))
            assert (await member.link.send(release, Done)).count == 1
        assert at.one.left() == {}
    assert journal.order == whole


@both
async def test_lives_are_released_while_a_round_is_open(kind: str) -> None:
    """A controller may hear late that a result is durable."""
    async with linked(kind) as at:
        [life] = lives(1)
        await at.submit(life)
        await at.read(1)
        round_ = at.one.controller.next_round()
        assert (await prepare(at.one.fleet, round_, timeout_s=5, lease_s=60)).prepared
        assert (await at.link.send(Release(**at.envelope, lives=(life,)), Done)).phase == "prepared"
        assert at.one.environment.held() == []
        await resume(at.one.fleet, round_)


@pytest.mark.parametrize("kind", ["agent", "model", "resources"])
async def test_only_an_environment_takes_episodes(kind: str) -> None:
    """Anybody else says so, and begins none."""
    async with world() as one:
        [member] = one.fleet.of_kind(kind)
        envelope = one.fleet.envelope(member)
        episode = Dispatched(life=one.next_life("r0"), row=ROW)
        with pytest.raises(ParticipantError, match="takes no episodes") as caught:
            await member.link.send(Submit(**envelope, episodes=(episode,)), Submitted)
        assert caught.value.code is Code.INVALID_REQUEST
        with pytest.raises(ParticipantError, match="takes no episodes"):
            await anext(member.link.results(envelope, 0))


async def test_nothing_is_submitted_into_an_open_restore() -> None:
    """It would wait for the resume, which waits for nobody."""
    store = memory_store()
    async with linked("local", store) as at:
        await at.submit(at.one.next_life("r0"))
        await at.read(1)
        await at.one.checkpoint()
        [member] = at.one.fleet.of_kind("environment")
        assert isinstance(member.link, LocalLink)
        book = member.link._plane.book
        book.phase = type(book.phase)("staged")
        with pytest.raises(ParticipantError) as caught:
            await at.submit(at.one.next_life("r5"))
        assert caught.value.code is Code.INVALID_PHASE


async def test_what_was_done_before_a_crash_is_counted_at_its_boundary() -> None:
    """Steps behind the agent's boundary, a reply that the model kept for the next; all of it past the activation."""
    store, journal = memory_store(), Journal()

    async def work(one: World, rollouts: tuple[str, ...] | None = None) -> dict[str, tuple[int, int]]:
        answers = []
        for member in one.fleet.members:
            asked = Work(**one.fleet.envelope(member), rollouts=rollouts)
            answers.append((member.kind, await member.link.send(asked, Worked)))
        return joined(answers)

    rows = {"r0": counter_row("r0", 2, 3), "r1": counter_row("r1", 4)}
    async with world(store, journal) as one:
        pause = one.hold("model r0 2")
        verify = one.hold("verify resources-r1")
        await one.start(rows)
        await pause.reached.wait()
        await verify.reached.wait()
        assert await work(one) == {"r0": (2, 6), "r1": (3, 9)}
        await one.checkpoint_at(pause)
    async with world(store, journal) as two:
        assert await work(two) == {"r0": (2, 6), "r1": (3, 9)}
        assert await work(two, ("r1", "r9")) == {"r1": (3, 9)}
        await two.start(rows)
        assert (await two.results(2))["r0"].row is not None


class TestSilence:
    """What a stream says while nothing finishes."""

    @pytest.fixture
    def anyio_backend(self) -> Any:
        """A clock to push."""
        return ON_PUSHED_LOOP

    async def test_a_stream_beats_while_nothing_finishes(self) -> None:
        """So that a reader can tell a server that is silent from one that is gone."""
        async with world() as one:
            [member] = one.fleet.of_kind("environment")
            assert isinstance(member.link, LocalLink)
            plane, lines = member.link._plane, list[Any]()

            async def read() -> None:
                async with aclosing(plane.results(Results(**one.fleet.envelope(member)))) as stream:
                    async for line in stream:
                        lines.append(line)

            async with anyio.create_task_group() as group:
                group.start_soon(read)
                await settle()
                assert [type(line) for line in lines] == [Began]
                for count in (1, 2):
                    await push(BEAT_S)
                    assert lines[1:] == [Beat()] * count
                group.cancel_scope.cancel()
        assert SILENCE_S > 2 * BEAT_S
