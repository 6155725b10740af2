"""The table of names: stable forms, few values, and the page that shows it."""

import re

import pytest

from participants.telemetry import names
from participants.telemetry.names import BLOCKED_BY, BY_NAME, METRICS, SPANS, TABLE, reason_of
from participants.wire import Blocker
from tests.support.owners import lives
from tests.support.telemetry_page import PAGE, renewed

pytestmark = pytest.mark.unit

MOST_VALUES = 20
"""Of one label: each value is a series of its own, and so is each pair of two."""
CONSTANT = re.compile("[A-Z][A-Z_]+")


def test_every_name_is_dotted_lower_case_and_there_once() -> None:
    """Also as Prometheus has it, where dots are underscores."""
    assert len(BY_NAME) == len(TABLE)
    assert all(re.fullmatch(r"midflight(\.[a-z]+(_[a-z]+)*)+", one.name) for one in TABLE)
    shown = [one.prometheus for one in METRICS]
    assert len(set(shown)) == len(shown)
    assert all(re.fullmatch("[a-z][a-z_]+[a-z]", name) for name in shown)


@pytest.mark.parametrize("one", METRICS, ids=lambda one: one.name)
def test_a_metric_has_a_unit_few_values_and_one_sentence(one: names.Instrument) -> None:
    """The product of its labels without the participant, too, is a small number."""
    assert one.unit in {"s", "By", "1"} or re.fullmatch(r"\{[a-z]+\}", one.unit)
    series = 1
    for label, values in one.labels.items():
        assert (values is None) == (label == "participant")
        assert len(values or ()) <= MOST_VALUES
        series *= len(values or (1,))
    assert series <= 3 * MOST_VALUES
    assert one.means[-1] == "."
    assert one.prometheus.endswith("_total") == (one.shape == "counter")


def test_every_constant_that_names_something_is_in_the_table() -> None:
    """What code can say by a constant is declared, and what is declared has one, but for the operations."""
    constants = {
        value
        for key, value in vars(names).items()
        if CONSTANT.fullmatch(key) and isinstance(value, str) and value.startswith("midflight.")
    } - {names.OPERATION}
    operations = {one.name for one in SPANS if one.name.startswith(names.OPERATION) and one.name.count(".") == 2}
    assert constants == BY_NAME.keys() - operations


@pytest.mark.parametrize(
    ("participant", "step", "reason"),
    [
        ("agent.main", "tool:rm -rf", "tool"),
        ("resources.shell", "seed_session", "seed"),
        ("resources.shell", "exec_command", "tool"),
        ("resources.shell", "verify", "verify"),
        ("resources.shell", "export", "export"),
        ("environment.main", "open", "open"),
        ("environment.main", "something new", "other"),
    ],
)
def test_a_blocker_is_counted_under_one_of_few_words(participant: str, step: str, reason: str) -> None:
    """The name of a tool, which a model may have made up, is never one."""
    blocker = Blocker(life=lives(1)[0], participant=participant, step=step, reason="it runs")
    assert reason_of(blocker) == reason
    assert reason in BLOCKED_BY


def test_the_page_shows_the_table() -> None:
    """docs/telemetry.md holds what the script writes; `python -m tests.support.telemetry_page` brings it up to date."""
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page
