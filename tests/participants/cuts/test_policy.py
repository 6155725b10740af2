"""What a policy decides of a beginning is what becomes of it: in the reply's tokens, and in the ledger."""

from pathlib import Path

import pytest

from participants.cuts import Verdict, older_than
from participants.ledger import Ledger
from store import Life
from tests.support.placed_model import NEXT, Place, cut_at, placed

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

CUT = 4
ROLLOUT = Life("r0", 1, 0, 0).rollout_id


async def restarted(place: Place) -> None:
    """The next server asks the backend for its weights itself, before anything is held."""
    place.known = None
    place.server = place.fresh()
    await place.server.generator.capabilities()


@pytest.mark.enumerated(2)
@pytest.mark.parametrize(
    ("now", "then", "weights", "continued", "masked"),
    [
        ("5", Verdict.ANEW, ["4", "5"], CUT, 0),
        ("6", Verdict.ANEW, ["6"], 0, 0),
        ("6", Verdict.MASK, ["4", "6"], CUT, CUT),
        ("main", Verdict.ANEW, ["main"], 0, 0),
        ("main", Verdict.MASK, ["4", "main"], CUT, CUT),
    ],
)
async def test_a_beginning_of_weights_that_are_too_old_never_goes_on_unmarked(
    now: str, then: Verdict, weights: list[str], continued: int, masked: int, tmp_path: Path
) -> None:
    """More than one version behind, or not to be compared: all is generated again, or the ledger says what to mask."""
    ledger = Ledger(str(tmp_path))
    async with placed(ledger=ledger) as place:
        place.policy = older_than(1, then=then)
        await place.backend.engine.reweigh("4", 0)
        await restarted(place)
        await cut_at(place, place.request("chat"), CUT)
        await place.backend.engine.reweigh(now, 1)
        reply = await place.server.handle(place.request("chat", NEXT))
        assert reply.ok
        [row] = await ledger.rows(f"{ROLLOUT}-a1")
        assert [segment.weights for segment in row.segments] == weights
        assert (row.continued, row.masked) == (continued, masked)
        assert place.server.generator.anew == ({} if continued else {"policy": 1})
