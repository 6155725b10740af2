"""The kit on every resources server that ships."""

import importlib

import pytest

from orchestrator.conformance import check_conformance
from participants import ResourcesServer
from tests.support.shipped import SHIPPED

pytestmark = [pytest.mark.process, pytest.mark.anyio, pytest.mark.timeout(600)]
ENOUGH = 50
LIMIT_S = 8.0
"""For each rule; the first case is always tried."""


def load(target: str) -> type[ResourcesServer]:
    """The class that is named."""
    module, _, name = target.partition(":")
    found: type[ResourcesServer] = getattr(importlib.import_module(module), name)
    return found


@pytest.mark.parametrize("target", SHIPPED.values(), ids=SHIPPED)
async def test_a_shipped_server_keeps_every_rule(target: str) -> None:
    """All that apply to it, on cases that end with different rewards."""
    report = await check_conformance(load(target), rule_s=LIMIT_S)
    assert report.text == ""
    assert report.warnings == ()


@pytest.mark.parametrize("target", SHIPPED.values(), ids=SHIPPED)
def test_a_shipped_server_has_cases(target: str) -> None:
    """Enough of them, and the same every time."""
    server = load(target)
    cases = server.conformance().cases
    assert len(cases) >= ENOUGH
    assert list(server.conformance().cases) == list(cases)
