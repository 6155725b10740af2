"""Each planted mistake is found under the rule that it breaks, with the shortest calls; right servers break none."""

import time
from typing import Any

import pytest

from orchestrator.conformance import RULES, check_conformance
from participants import ResourcesServer, ResourcesSession
from tests.support.planted_servers import PLANTED, Planted, first_words
from tests.support.right_servers import RIGHT, Adder

pytestmark = [pytest.mark.process, pytest.mark.anyio, pytest.mark.timeout(240)]
UNHURRIED_S = 200.0
"""Other tests may run on the same cores."""


class LimitedByDate(Adder):
    """An hour after its seed nothing is right any more."""

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> Any:
        await super().seed(session, row)
        session.state["until"] = int(time.time()) + 3600

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        return {"reward": float(time.time() < session.state["until"] and session.state["total"] == row["goal"])}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.server.__name__)
async def test_a_planted_mistake_is_found(planted: Planted) -> None:
    """By the rule that it breaks, with no call more than it takes to see it."""
    [found] = (await check_conformance(planted.server, rules=[planted.rule], rule_s=UNHURRIED_S)).rules
    assert (found.outcome, first_words(found.steps)) == ("broken", planted.steps), found.text


@pytest.mark.parametrize("seed", range(3))
async def test_a_score_that_is_lost_is_found_though_the_first_cases_have_none(seed: int) -> None:
    """Of few cases one is scored otherwise than the first, whichever the seed draws."""
    rules = ["cases-can-be-played", "restored-after-a-month"]
    report = await check_conformance(LimitedByDate, rules=rules, seed=seed, rule_s=UNHURRIED_S)
    assert [(each.rule, first_words(each.steps)) for each in report.broken] == [
        ("restored-after-a-month", "seed a add add add verify")
    ]


@pytest.mark.parametrize("server", RIGHT, ids=lambda server: server.__name__)
async def test_a_right_server_passes(server: type[ResourcesServer]) -> None:
    """Whatever it declares, and however it makes its sessions."""
    assert (await check_conformance(server)).text == ""


def test_every_rule_has_a_planted_mistake() -> None:
    """A rule that nothing breaks may look at nothing."""
    assert {planted.rule for planted in PLANTED} == {rule.name for rule in RULES}
