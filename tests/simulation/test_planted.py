"""The schedules find what they are for: each planted mistake is caught, and by the promise that it breaks."""

from collections.abc import Mapping

import pytest

from .actors import NumberedChain, Play, claiming
from .exploration import Violation
from .planted import (
    ForgetsEndedPlans,
    HeadIgnoresClaims,
    IgnoresEpochs,
    KeepsItsDecision,
    KnowsNoToken,
    PutsEntries,
    TakesEachSlotForItsOwn,
    TakesUnreadForAnothers,
    TidiesUp,
    hasty_pruning,
    stubborn_pruning,
)
from .scenarios import LAST, OLD, SCENES, in_plain, publish
from .worlds import explore

pytestmark = pytest.mark.unit

MISTAKES: list[tuple[type[NumberedChain], str, int, str]] = [
    (PutsEntries, "claim against claim", 0, "succeeded as .* does not stand"),
    (PutsEntries, "publish against takeover", 0, "succeeded"),
    (KeepsItsDecision, "claim against claim", 0, "does not rise"),
    (KeepsItsDecision, "publish against takeover", 0, "stands after claim 2|sums up"),
    (IgnoresEpochs, "publish against takeover", 0, "publication 1.3 of epoch 1 stands after claim 2"),
    (IgnoresEpochs, "seal against claim", 0, "a seal of epoch 1 stands after claim 2"),
    (TakesEachSlotForItsOwn, "claim against claim", 0, "succeeded as .* does not stand"),
    (KnowsNoToken, "claim against claim", 1, "stands 2 times"),
    (TakesUnreadForAnothers, "claim against claim", 2, r"was refused \(StoreUnavailable\) and stands"),
    (TidiesUp, "publish against takeover", 1, "1.3 exists and checkpoints/1.3/manifest.json is gone"),
    (HeadIgnoresClaims, "fork against prune", 0, "the head 1.1 is in the plan"),
    (ForgetsEndedPlans, "import against prune", 0, "2.1 exists and blobs/.* is gone"),
]


@pytest.mark.parametrize(("kind", "scene", "faults", "says"), MISTAKES)
def test_a_mistake_in_the_chain_is_found(kind: type[NumberedChain], scene: str, faults: int, says: str) -> None:
    """The first schedule that breaks the promise is shown, step by step."""
    chosen = SCENES[scene]()
    with pytest.raises(Violation, match=says) as caught:
        explore(chosen.world, chosen.plays, faults=faults, kind=kind)
    assert "chain/000000000004.json: answered" in str(caught.value)


@pytest.mark.parametrize(
    ("plays", "says"),
    [
        ({"claim": claiming(OLD), "prune": hasty_pruning(LAST)}, "1.1 exists and .* is gone"),
        ({"claim": claiming(OLD), "prune": stubborn_pruning(LAST)}, "1.1 exists and .* is gone"),
    ],
)
def test_a_mistake_in_pruning_is_found(plays: Mapping[str, Play], says: str) -> None:
    """Deleting before the plan, or without it, loses the base of a claim."""
    with pytest.raises(Violation, match=says):
        explore(in_plain().world, plays, faults=0)


def test_the_rest_of_a_mistaken_world_is_sound() -> None:
    """The scenes themselves are fine: without a mistake nothing is found in the smallest of them."""
    tally = explore(in_plain().world, {"publish": publish()}, faults=0).tally
    assert (tally.schedules, tally.ends) == (1, 1)
