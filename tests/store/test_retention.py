"""The retention policy, a pure function: what is kept, and the reason that is given."""

from collections.abc import Collection, Sequence

import pytest

from store import Candidate, CheckpointId, Retention, decide

pytestmark = pytest.mark.unit


def candidates(count: int, *, first: int = 1) -> list[Candidate]:
    """Checkpoints 1.1, 1.2 and on, each at its place on the chain."""
    return [Candidate(checkpoint=CheckpointId(1, k), ordinal=k) for k in range(first, first + count)]


def kept(found: Sequence[Candidate], policy: Retention, head: int | None = None) -> dict[int, str]:
    """The number of each kept checkpoint, with the reason; the last one is the head unless told otherwise."""
    last = found[-1].checkpoint if found else None
    decisions = decide(found, CheckpointId(1, head) if head else last, policy)
    assert [d.checkpoint for d in decisions] == [c.checkpoint for c in found]
    assert all(d.reason for d in decisions)
    return {d.checkpoint.k: d.reason for d in decisions if d.keep}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Retention(), [5, 6]),
        (Retention(keep_last=1), [6]),
        (Retention(keep_last=3), [4, 5, 6]),
        (Retention(keep_last=6), [1, 2, 3, 4, 5, 6]),
        (Retention(keep_last=99), [1, 2, 3, 4, 5, 6]),
        (Retention(keep_last=0), [6]),
        (Retention(keep_last=-3), [6]),
        (Retention(keep_last=1, keep_every=2), [2, 4, 6]),
        (Retention(keep_last=1, keep_every=4), [4, 6]),
        (Retention(keep_last=1, keep_every=1), [1, 2, 3, 4, 5, 6]),
        (Retention(keep_last=1, keep_every=-1), [6]),
        (Retention(keep_last=3, drop=frozenset({CheckpointId(1, 5)})), [4, 6]),
        (Retention(keep_last=0, drop=frozenset({CheckpointId(1, 6)})), [6]),
        (Retention(keep_last=2, drop=frozenset({CheckpointId(9, 9)})), [5, 6]),
    ],
)
def test_a_policy_keeps_what_its_rules_say(policy: Retention, expected: list[int]) -> None:
    """The newest, each n-th, and always the head."""
    assert list(kept(candidates(6), policy)) == expected


@pytest.mark.parametrize("count", range(8))
def test_keep_last_keeps_the_newest_so_many_or_all(count: int) -> None:
    """For every number up to three times as many as there are, exactly that many of the newest are kept."""
    for newest in range(3 * count + 1):
        decisions = decide(candidates(count), None, Retention(keep_last=newest))
        left = [decision.checkpoint.k for decision in decisions if decision.keep]
        assert left == list(range(1, count + 1))[count - min(newest, count) :], newest


def test_nothing_to_decide_on_is_no_error() -> None:
    """A run without a checkpoint has none to drop."""
    assert decide([], None, Retention()) == []


def test_the_head_is_kept_wherever_it_stands() -> None:
    """After a claim an old checkpoint may be the head; naming it in drop changes nothing."""
    policy = Retention(keep_last=1, drop=frozenset({CheckpointId(1, 2)}))
    assert kept(candidates(5), policy, head=2) == {2: "the head", 5: "one of the last 1"}


def test_without_a_head_the_newest_are_kept_all_the_same() -> None:
    """A claim without base leaves no head, and no reason to lose more."""
    decisions = decide(candidates(3), None, Retention(keep_last=1))
    assert [d.keep for d in decisions] == [False, False, True]


@pytest.mark.parametrize("every", [2, 3, 5])
def test_each_nth_stays_the_same_over_many_prunings(every: int) -> None:
    """What one pruning keeps as the n-th, the next one keeps too, whatever went in between."""
    policy = Retention(keep_last=1, keep_every=every)
    standing = list[Candidate]()
    for k in range(1, 31):
        standing.append(Candidate(checkpoint=CheckpointId(1, k), ordinal=k))
        keep = kept(standing, policy)
        standing = [c for c in standing if c.checkpoint.k in keep]
        expected = sorted({*range(every, k + 1, every), k})
        assert [c.checkpoint.k for c in standing] == expected


TAGGED = [
    Candidate(checkpoint=CheckpointId(1, 1), ordinal=1, tags=("best", "a")),
    Candidate(checkpoint=CheckpointId(1, 2), ordinal=2),
    Candidate(checkpoint=CheckpointId(1, 3), ordinal=3, imported=True),
    Candidate(checkpoint=CheckpointId(1, 4), ordinal=4, tags=None),
    Candidate(checkpoint=CheckpointId(1, 5), ordinal=5),
]
"""One with tags, a plain one, an import, one whose manifest cannot be read, and the head."""


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            Retention(keep_last=1),
            {
                1: "tagged a, best",
                3: "imported",
                4: "its manifest cannot be read; name it in drop to delete it",
                5: "the head",
            },
        ),
        (Retention(keep_last=1, keep_tagged=False), {3: "imported", 5: "the head"}),
        (
            Retention(keep_last=1, drop=frozenset(CheckpointId(1, k) for k in range(1, 6))),
            {5: "the head"},
        ),
        (
            Retention(keep_last=2, drop=frozenset({CheckpointId(1, 3)})),
            {1: "tagged a, best", 4: "one of the last 2", 5: "the head"},
        ),
    ],
)
def test_the_reason_is_told(policy: Retention, expected: dict[int, str]) -> None:
    """Tagged, imported and unreadable checkpoints stay until they are named in drop."""
    assert kept(TAGGED, policy) == expected


@pytest.mark.parametrize("tags", [(), ("keep",), None])
def test_whatever_is_dropped_is_dropped_for_a_reason(tags: Collection[str] | None) -> None:
    """A decision to drop says so in words too."""
    found = [Candidate(checkpoint=CheckpointId(1, 1), ordinal=1, tags=tags), *candidates(1, first=2)]
    decision = decide(found, CheckpointId(1, 2), Retention(keep_last=1, keep_tagged=False))[0]
    assert (decision.keep, decision.reason) == (False, "no rule keeps it")
