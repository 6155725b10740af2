"""Which worker owns a piece of work."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.data import CallId, Request
from participants.errors import ParticipantError
from participants.routing import Place, routing_key, worker_of
from participants.servers import CounterServer
from store import Life

pytestmark = pytest.mark.unit

LIFE = Life("r7", 1, 0, 3)
BOTH = {"x-resources-session-id": "res", "x-agent-session-id": "age"}


def test_the_owner_of_a_name_never_changes() -> None:
    """A restart, another Python and another client find everything where it was: the numbers are fixed here."""
    assert [worker_of(f"rollout-{n}", 4) for n in range(8)] == [3, 1, 3, 1, 2, 0, 2, 0]
    assert worker_of("anything", 1) == 0


@given(st.lists(st.text(min_size=1), unique=True, max_size=60), st.integers(1, 9))
def test_the_shares_of_a_restore_are_a_partition(rollouts: list[str], workers: int) -> None:
    """Each rollout is in the share of exactly one worker, whichever worker looks."""
    shares = [{name for name in rollouts if Place(k, workers).owns(name)} for k in range(workers)]
    assert sum(map(len, shares)) == len(rollouts)
    assert set().union(*shares) == set(rollouts)


def test_the_shares_are_of_like_size() -> None:
    """No worker has more than a fifth over its part of many rollouts."""
    counts = [0] * 8
    for n in range(16_000):
        counts[worker_of(f"rollout-{n}", 8)] += 1
    assert max(counts) < 2000 * 1.2


@given(st.integers(1, 8), st.data())
def test_what_a_worker_mints_is_its_own(workers: int, data: st.DataObject) -> None:
    """A client without a life comes back to where its session is."""
    place = Place(data.draw(st.integers(0, workers - 1)), workers)
    assert worker_of(place.mint(), workers) == place.number


def asked(body: object = None, headers: Mapping[str, str] = {}, life: Life | None = None) -> Request:
    return Request(route="/seed_session", body=body, life=life, headers=headers)


@pytest.mark.parametrize(
    ("role", "request_", "key"),
    [
        ("resources.main", asked({}, BOTH, LIFE), "r7"),
        ("agent.main", asked({}, BOTH, LIFE), "r7"),
        ("model.main", asked({}, {}, LIFE), "r7"),
        ("resources.main", asked({}, BOTH), "res"),
        ("resources.main", asked({"resources_session_id": "res"}), "res"),
        ("resources.main", asked({}, {"cookie": "a=b; midflight-session=res"}), "res"),
        ("agent.main", asked({}, BOTH), "age"),
        ("agent.main", asked({"agent_session_id": "age"}), "age"),
        ("agent.main", asked({"agent_session_id": 7}), None),
        ("agent.main", asked(["no object"]), None),
        ("model.main", asked({}, BOTH), None),
        ("environment.main", asked({}), None),
        ("resources.main", asked({}), None),
    ],
)
def test_a_call_belongs_to_its_rollout_else_to_its_session(role: str, request_: Request, key: str | None) -> None:
    """The life comes first; a server of each kind looks at the session that is its own; the rest is anybody's."""
    assert routing_key(request_, role) == key


def test_two_sessions_in_one_call_are_refused() -> None:
    """Else it would depend on the worker which of them is meant."""
    with pytest.raises(ParticipantError, match="contradicts"):
        routing_key(asked({"resources_session_id": "a"}, BOTH), "resources.main")


@pytest.mark.anyio
async def test_a_session_without_a_life_is_minted_where_it_is_seeded() -> None:
    """The cookie of a plain client names a session of this very worker."""
    for number in range(3):
        server = CounterServer()
        server.place = Place(number, 3)
        reply = await server.handle(Request(route="/seed_session", body={"initial_count": 1}))
        following = Request(route="/get_counter_value", body={}, headers={"cookie": reply.headers["set-cookie"]})
        assert worker_of(routing_key(following, server.role) or "", 3) == number


def test_a_call_id_changes_nothing() -> None:
    """Repeats of a call go where the first one went."""
    life = Life("r1", 1, 0, 0)
    repeated = Request(route="/x", body={}, life=life, call=CallId("agent.main", 1, 2))
    assert routing_key(repeated, "model.main") == "r1"
