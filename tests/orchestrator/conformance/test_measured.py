"""What a server declares to be a measurement is not compared, and everything else is."""

import itertools
from typing import Any

import pytest

from orchestrator.conformance import check_conformance
from participants import ResourcesSession
from tests.support.right_servers import Echo

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
TICKS = itertools.count()


class Timing(Echo):
    """Says with each verdict what its clock says, which never says the same."""

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        told = await super().verify(session, row)
        return {**told, "runs": [{"test": "a", "took_s": next(TICKS)}]}


class Declared(Timing):
    """And says so."""

    measured = frozenset({"took_s"})


@pytest.mark.parametrize(("server", "outcome"), [(Timing, "broken"), (Declared, "kept")])
async def test_measurements_are_compared_unless_they_are_declared(server: type[Echo], outcome: str) -> None:
    """At any depth of what verify gives."""
    [rule] = (await check_conformance(server, rules=["a-replayed-verify-changes-nothing"])).rules
    assert rule.outcome == outcome
