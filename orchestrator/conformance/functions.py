"""The same rules as pytest functions, one test a rule, without a plugin.

from midflight import conformance_tests
test_conformance = conformance_tests(TodoServer)
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio

from participants import Conformance, ResourcesServer

from .reports import RuleOutcome
from .rules import RULES
from .running import check_conformance


def conformance_tests(
    server: type[ResourcesServer], conformance: Conformance | None = None, *, thorough: bool = False, seed: int = 0
) -> Callable[[str], None]:
    """A test function for each rule, named after it; a rule that does not apply is skipped, and says why.

    `conformance` is in the place of what the class says of itself. Needs pytest, and no running event loop.
    """
    import pytest

    given: Mapping[str, Any] = {"conformance": conformance, "thorough": thorough, "seed": seed}

    @pytest.mark.parametrize("rule", [rule.name for rule in RULES])
    def test(rule: str) -> None:
        """The server keeps the rule."""
        found = _outcome(server, rule, given)
        if found.outcome == "broken":
            pytest.fail(found.text, pytrace=False)
        if found.outcome == "not tried":
            pytest.skip(found.said)

    test.__doc__ = f"{server.__name__} keeps the rule."
    return test


def _outcome(server: type[ResourcesServer], rule: str, given: Mapping[str, Any]) -> RuleOutcome:
    report = anyio.run(partial(check_conformance, server, rules=[rule], **given))
    return report.rules[0]
