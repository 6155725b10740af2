"""Tallies: order-free sums over what two participants hold of each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants import Sum
from participants.tally import Sums
from store import Life

pytestmark = pytest.mark.unit

LIVES = st.builds(Life, st.sampled_from(["r0", "r1", "r2"]), st.integers(1, 2), st.just(0), st.integers(0, 2))
TRIPLES = st.lists(st.tuples(LIVES, st.sampled_from(["s", "t"]), st.integers(0, 3)), unique=True, max_size=8)


@given(TRIPLES, st.integers(0, 8))
def test_order_and_shares_do_not_matter(triples: list[tuple[Life, str, int]], cut: int) -> None:
    """Any order gives the same sum, and two processes' sums join to the whole."""
    shuffled = sorted(triples, key=str, reverse=True)
    assert Sum.of(shuffled) == Sum.of(triples)
    assert Sum.of(triples[:cut]).join(Sum.of(triples[cut:])) == Sum.of(triples)


@given(TRIPLES, TRIPLES)
def test_different_sets_have_different_sums(
    one: list[tuple[Life, str, int]], other: list[tuple[Life, str, int]]
) -> None:
    """A life, a session or a revision that differs shows."""
    assert (Sum.of(one) == Sum.of(other)) is (set(one) == set(other))


def test_a_sum_survives_its_written_form() -> None:
    """Count and text give it back, also where the digest begins with zeros."""
    for total in (Sum(), Sum(1, 5), Sum.of([(Life("r0", 1, 0, 0), "s", 2)])):
        assert Sum.parse(total.count, total.text) == total
        assert len(total.text) == 64


@given(TRIPLES)
def test_many_lives_at_once_sum_up_to_the_same(triples: list[tuple[Life, str, int]]) -> None:
    """What sums each life's own for every peer agrees with adding the triples one by one, in whatever order."""
    sums = Sums()
    for life, session, revision in triples:
        sums.add(life, [(peer, session, revision) for peer in ("resources.b", "agent.a")])
    expected = {peer: Sum.of(triples) for peer in ("agent.a", "resources.b")} if triples else {}
    assert list(sums.by_peer().items()) == list(expected.items())
