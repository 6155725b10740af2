"""Servers of several processes: found as a whole, a restore shared out, and what one of them has not never counts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.adoption import standing
from orchestrator.coordination import commit, prepare, renew, restore, resume, retire
from orchestrator.errors import CommitFailed, ControlFailed, OtherStore, RestoreFailed, TalliesDiffer
from orchestrator.fleet import adopt, discover
from participants import Capabilities, Floor, Modes, ParticipantError
from participants.routing import worker_of
from store import Draft, Life, Ref, Store, claim, open_checkpoint
from tests.support.checkpoints import memory_store
from tests.support.owners import ON_PUSHED_LOOP, Party, Server, lives, party, round_id

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIVES = lives(12)


@pytest.fixture
def anyio_backend() -> Any:
    """A clock to push."""
    return ON_PUSHED_LOOP


# Discovery


@dataclass
class Told:
    """A link to a process that says what it is; `leads` are the processes behind URLs."""

    told: Capabilities
    leads: dict[str, "Told"] = field(default_factory=dict)
    asked: int = 0

    async def capabilities(self) -> Capabilities:
        self.asked += 1
        return self.told

    def at(self, url: str) -> Any:
        if url not in self.leads:
            raise ConnectionError(url)
        return self.leads[url]


def told(kind: str, worker: int, workers: int, *urls: str, process: str = "", run: str | None = None) -> Told:
    """One process of a server."""
    return Told(
        Capabilities(
            kind=kind,
            name="main",
            process=process or f"w{worker}",
            incarnation=f"{kind}{worker}",
            run=run,
            epoch=0,
            modes=Modes(),
            software={},
            worker=worker,
            workers=workers,
            urls=urls,
        )
    )


def server_of(kind: str, workers: int, *present: int) -> Told:
    """What answers at the public address of a server, of whose workers these are at their own."""
    urls = [f"http://{kind}:{number}" for number in range(workers)]
    every = [told(kind, number, workers, *urls) for number in range(workers)]
    leads = {url: every[number if number in present else present[0]] for number, url in enumerate(urls)}
    public = Told(every[present[-1]].told)
    for each in (public, *every):
        each.leads = leads
    return public


async def test_one_address_leads_to_every_worker_of_its_server() -> None:
    """Whoever of them answered; a server that is one process with no other address is itself."""
    one, two, alone = server_of("agent", 3, 0, 1, 2), server_of("model", 1, 0), told("resources", 0, 1)
    fleet = await discover([one, two, alone], "a" * 32)  # type: ignore[list-item]
    assert sorted(member.name for member in fleet.members) == [
        "agent.main/w0",
        "agent.main/w1",
        "agent.main/w2",
        "model.main/w0",
        "resources.main/w0",
    ]
    assert {member.capabilities.worker for member in fleet.of_kind("agent")} == {0, 1, 2}


async def test_two_addresses_of_one_server_are_one_server() -> None:
    """Its workers are asked once more, and are members once."""
    one = server_of("agent", 2, 0, 1)
    fleet = await discover([one, one, *one.leads.values()], "a" * 32)  # type: ignore[list-item]
    assert [member.name for member in fleet.members] == ["agent.main/w0", "agent.main/w1"]


@pytest.mark.parametrize(
    ("links", "named"),
    [
        ([told("agent", 0, 2)], "agent.main"),
        ([told("agent", 0, 2), told("agent", 1, 3)], "agent.main"),
        ([told("agent", 0, 2), told("agent", 0, 2, process="w9")], "agent.main"),
        ([told("agent", 0, 1), told("agent", 1, 1)], "agent.main"),
        ([server_of("agent", 3, 0, 2)], "agent.main/w0"),
    ],
)
async def test_a_server_that_is_not_complete_is_refused_by_name(links: list[Any], named: str) -> None:
    """One that is missing, that stands there twice, or that counts its fellows differently."""
    with pytest.raises(ControlFailed) as caught:
        await discover(links, "a" * 32)
    assert set(caught.value.failures) == {named}


@pytest.mark.parametrize(
    ("of_third", "said"),
    [
        ("bac", "its w0 is at http://a, and by .* at http://b"),
        ("ab", "it has 3 workers, and by .* 2"),
    ],
)
async def test_servers_that_do_not_agree_where_their_workers_are_are_refused(of_third: str, said: str) -> None:
    """Each worker is there just once, as where hosts stand in another order; calls would be handed to the wrong one."""
    lists = {"a": "abc", "b": "abc", "c": of_third}
    urls = {host: [f"http://{other}" for other in order] for host, order in lists.items()}
    servers = {
        f"http://{host}": told("agent", number, 3, *urls[host], process=f"w{number}")
        for number, host in enumerate(lists)
    }
    for server in servers.values():
        server.leads = servers
    with pytest.raises(ControlFailed, match=said) as caught:
        await discover(list(servers.values()), "a" * 32)  # type: ignore[arg-type]
    assert set(caught.value.failures) == {"agent.main"}
    assert "started from different files" in str(caught.value)


async def test_servers_with_the_store_of_another_run_are_refused_with_what_to_do() -> None:
    """As on a host that does not share the folder; nothing is claimed in its name, or adopted."""
    links = [told("agent", 0, 1, run="a" * 32), told("model", 0, 1, run="b" * 32), told("resources", 0, 1)]
    with pytest.raises(OtherStore, match="All must reach the same one") as caught:
        await discover(links, "a" * 32)  # type: ignore[arg-type]
    assert set(caught.value.failures) == {"model.main/w0"}


# Checkpoints and restores


def own(server: Server, life: Life) -> bool:
    """Whether a life belongs to a worker."""
    c = server.plane.capabilities()
    return worker_of(life.rollout_id, c.workers) == c.worker


@asynccontextmanager
async def shared_out(store: Store | None = None, *, workers: int = 2) -> AsyncIterator[Party]:
    """Every life at its own worker of each server; agents and resources servers have called each other."""
    async with party(store, workers=workers) as at:
        for server in at.servers:
            peer = {"agent": "resources.main", "resources": "agent.main"}.get(server.owner.kind, "")
            for life in LIVES:
                if own(server, life):
                    await server.owner.write(life, life.rollout_id, creates=True, peer=peer)
        yield at


async def save(at: Party, store: Store, scope: list[Life] = LIVES) -> Ref:
    """A whole checkpoint."""
    async with claim(store, take_over=True) as controller:
        await at.adopt(controller.epoch, Floor(1, 0))
        round_ = controller.next_round()
        assert (await prepare(at.fleet, round_, timeout_s=5, lease_s=500)).prepared
        answers = await commit(at.fleet, round_, scope, None, timeout_s=50)
        await renew(at.fleet, round_, lease_s=500)
        await resume(at.fleet, round_)
        manifests = [answer.manifest for answer in answers]
        draft = Draft(checkpoint=round_, parent=None, participants=manifests, scope=scope)
        return await controller.publish(draft, timeout_s=10)


@pytest.mark.parametrize("after", [1, 2, 3, 5])
async def test_a_restore_gives_each_worker_its_own_rollouts(after: int) -> None:
    """As many workers as wrote the checkpoint, fewer, or more: each record once, where its calls will come."""
    store = memory_store()
    async with shared_out(store, workers=2) as at:
        ref = await save(at, store)
    async with party(store, workers=after) as at:
        await at.adopt(9)
        await restore(at.fleet, round_id(1, 9), ref, LIVES, timeout_s=50)
        await resume(at.fleet, round_id(1, 9))
        for server in at.servers:
            mine = [life for life in LIVES if own(server, life)]
            assert server.owner.counts()["restored"] == len(mine)
            for life in mine:
                notes = await server.owner.write(Life(life.rollout_id, 9, 1, life.n), "b")
                assert notes == [life.rollout_id, "b"]
        stranger = next((server for server in at.servers if not own(server, LIVES[0])), None)
        if stranger is not None:
            with pytest.raises(ParticipantError, match="not known"):
                await stranger.owner.write(Life(LIVES[0].rollout_id, 9, 1, 0), "c")


@pytest.mark.parametrize("process", ["w0", "w1"])
@pytest.mark.parametrize("after", [1, 2, 3])
async def test_damage_in_the_share_of_any_process_is_found_however_many_restore(process: str, after: int) -> None:
    """Each worker verifies a part of the shares, together all of them; nothing is activated anywhere."""
    store = memory_store()
    async with shared_out(store, workers=2) as at:
        ref = await save(at, store)
    shares = (await open_checkpoint(store, ref)).shares("resources")
    share = next(share for share in shares if share.name.process == process)
    part = share.key_of(share.frames[0])
    data = await store.backend.get(part, max_bytes=2**20)
    await store.backend.put(part, data[:-4] + bytes(4))
    async with party(store, workers=after) as at:
        await at.adopt(9)
        with pytest.raises(RestoreFailed, match="corrupt_checkpoint"):
            await restore(at.fleet, round_id(1, 9), ref, LIVES, timeout_s=50)
        assert at.brought() == [0] * len(at.servers)


async def test_the_records_of_a_server_are_joined_over_its_workers() -> None:
    """Each worker writes its own lives of the scope, and what they have counted adds up on both sides."""
    store = memory_store()
    async with shared_out(store) as at:
        ref = await save(at, store)
        checkpoint = await open_checkpoint(store, ref)
        for share in checkpoint.processes:
            server = next(each for each in at.servers if each.name == f"{share.name.kind}.main/{share.name.process}")
            assert share.manifest.records == sum(own(server, life) for life in LIVES)


async def test_a_count_that_one_worker_has_alone_is_found() -> None:
    """Though every other pair of workers agrees."""
    async with shared_out() as at:
        at_worker = next(server for server in at.servers if server.owner.kind == "agent" and own(server, LIVES[0]))
        await at_worker.owner.write(LIVES[0], "one more", peer="resources.main")
        assert (await prepare(at.fleet, round_id(), timeout_s=5, lease_s=500)).prepared
        with pytest.raises(TalliesDiffer, match=r"agent\.main and resources\.main"):
            await commit(at.fleet, round_id(), LIVES, None, timeout_s=50)


@pytest.mark.parametrize("number", [0, 1])
async def test_a_life_that_stands_nowhere_is_named_by_the_worker_that_has_it(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have nothing against the commit; it fails as a whole."""
    async with shared_out() as at:
        at_worker = at.servers[number]
        monkeypatch.setattr(at_worker.owner, "dispatches", True)
        monkeypatch.setattr(at_worker.owner, "is_episode", lambda state: True)
        left_out = next(life for life in LIVES if own(at_worker, life))
        scope = [life for life in LIVES if life != left_out]
        assert (await prepare(at.fleet, round_id(), timeout_s=5, lease_s=500)).prepared
        with pytest.raises(CommitFailed) as caught:
            await commit(at.fleet, round_id(), scope, None, timeout_s=50)
        assert set(caught.value.failures) == {at_worker.name}
        assert str(left_out) in str(caught.value)


async def test_lives_are_retired_wherever_they_are() -> None:
    """A retire goes to every worker; who does not know a life fences it."""
    async with shared_out() as at:
        assert await retire(at.fleet, LIVES, timeout_s=5) == frozenset()
        assert all(server.owner.held() == [] for server in at.servers)


async def test_one_worker_that_was_started_again_breaks_its_own_lives_alone() -> None:
    """Those of its fellows go on."""
    async with shared_out() as at:
        lost = next(server for server in at.servers if server.owner.kind == "resources")
        for server in at.servers[:2]:  # The environment's.
            server.owner.dispatches = True
            server.owner.is_episode = lambda state: True  # type: ignore[method-assign]
            for held in server.owner.held():
                held.touched.add("resources.main")
        broken = {life for life in LIVES if own(lost, life)}
        await at.restart(lost)
        found = await discover([server.link for server in at.servers], at.store.run_id)
        fleet, answers = await adopt(found, 2, Floor())
        sorted_out = standing(fleet, answers)
        assert sorted_out.whole == set(LIVES) - broken
        assert sorted_out.broken == broken
