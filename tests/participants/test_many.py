"""Sixty-four thousand rollouts in flight: what a controller is told of them, and asks, stays small."""

from contextlib import AsyncExitStack

import pytest

from participants import wire
from participants.plane import MAX_REPORTED_BLOCKERS
from participants.wire import Prepared, RoundCall
from tests.support.desk import desk
from tests.support.owners import lives

pytestmark = [pytest.mark.scale, pytest.mark.anyio, pytest.mark.fault(57)]
MANY = 64_000
LARGEST_REPLY = 8_000
"""Bytes."""


async def test_of_64000_blockers_the_oldest_twenty_are_named_and_all_are_counted() -> None:
    """The reply to a prepare and the status have a few kilobytes, whatever is in flight."""
    async with desk() as at:
        async with AsyncExitStack() as steps:
            for life in lives(MANY):
                await steps.enter_async_context(at.owner.gate.step(life, "tool", "wait", reason="a tool runs"))
            answer: Prepared = await at.plane.prepare(at.call(wire.Prepare, timeout_s=0.001, lease_s=30))
            assert not answer.prepared
            oldest = [blocker.life for blocker in answer.blockers]
            assert (oldest, answer.blocker_count) == (lives(MAX_REPORTED_BLOCKERS), MANY)
            status = at.plane.status()
            assert ([blocker.life for blocker in status.blockers], status.blocker_count) == (oldest, MANY)
            assert len(answer.model_dump_json()) < LARGEST_REPLY
            assert len(status.model_dump_json()) < LARGEST_REPLY
            await at.resume()
        assert (await at.prepare(2)).prepared


@pytest.mark.parametrize("operation", ["Prepare", "Renew", "Activate", "Resume", "Abort"])
def test_a_call_that_needs_no_lives_has_no_field_for_them(operation: str) -> None:
    """Commit and stage name a scope and retire its lives; nothing else that is sent grows with the rollouts."""
    message: type[RoundCall] = getattr(wire, operation)
    grows = [name for name, field in message.model_fields.items() if "tuple" in str(field.annotation)]
    assert grows == []
    assert "tuple" in str(wire.Commit.model_fields["scope"].annotation)
