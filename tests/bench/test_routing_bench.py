"""The benchmark of data calls runs and cleans up; how fast it was is nobody's business here."""

import pytest

from bench.routing import WAYS, Load, measure

pytestmark = pytest.mark.process


def test_every_way_is_measured_and_all_calls_are_held() -> None:
    """Each figure is there for each way, and over channels no call costs a descriptor."""
    found = measure(Load(rounds=1, at_once=(1, 4), calls=20, held=50, held_http=10))
    assert {(at_once, way) for at_once, ways in found["calls"].items() for way in ways} == {
        (at_once, way) for at_once in ("1", "4") for way in WAYS
    }
    assert all(cost["wall_us"] > 0 for ways in found["calls"].values() for cost in ways.values())
    assert (found["held"]["channel"]["calls"], found["held"]["http"]["calls"]) == (50, 10)
    assert found["held"]["channel"]["client_descriptors"] <= 2 < found["held"]["http"]["client_descriptors"]
