"""The benchmark of the places that measure runs; how fast it was is nobody's business here."""

import pytest

from bench.telemetry_points import POINTS, measure
from participants import telemetry

pytestmark = pytest.mark.process

SLACK_BYTES = 1000
"""For what the measuring itself keeps; one byte a call would be far more."""


def test_every_point_is_measured_off_and_on_and_nothing_is_kept_while_off() -> None:
    """Each has both figures, and afterwards nothing is installed."""
    found = measure()
    assert set(found.off_ns) == set(found.on_ns) == set(POINTS)
    assert found.kept_bytes < SLACK_BYTES
    assert not telemetry.active()
