"""What judges the killed training runs: it sees each way in which two of them can differ, and its kills vary."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from examples.training.kills import VICTIMS, differences, events_of, planned

pytestmark = pytest.mark.unit

Damage = Callable[[dict[str, Any], list[dict[str, Any]]], Any]


def written(folder: Path, damage: Damage = lambda end, events: None) -> Path:
    """A run of three steps of two rollouts, changed before it is written."""
    steps = [
        {"rollouts": [f"g{n}-0", f"g{n}-1"], "tokens": f"t{n}", "weights": f"{n}", "reward": 0.5} for n in range(3)
    ]
    events: list[dict[str, Any]] = [{"event": "trained", "step": n + 1, **step} for n, step in enumerate(steps)]
    end: dict[str, Any] = {"history": [dict(step) for step in steps], "weights": "bits"}
    damage(end, events)
    folder.mkdir()
    (folder / "history.json").write_bytes(orjson.dumps(end))
    (folder / "log.jsonl").write_bytes(b"".join(orjson.dumps(event) + b"\n" for event in events) + b'{"event": "tor')
    return folder


def test_equal_runs_do_not_differ(tmp_path: Path) -> None:
    """Steps that were made twice with the same tokens are no difference, nor is a line that a kill has torn."""
    twice = written(tmp_path / "b", lambda end, events: events.insert(2, events[1]))
    assert differences(written(tmp_path / "a"), twice) == []
    assert [event["step"] for event in events_of(twice)] == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda end, events: end["history"][1].update(tokens="x"), "step 2: tokens"),
        (lambda end, events: end["history"][0]["rollouts"].reverse(), "step 1: rollouts"),
        (lambda end, events: end["history"][2].update(weights="0"), "step 3: weights"),
        (lambda end, events: end.update(weights="other bits"), "the last weights"),
        (lambda end, events: end["history"][2].update(rollouts=["g0-0", "g2-1"]), "twice"),
        (lambda end, events: end["history"].pop(), "2 steps"),
        (lambda end, events: events.insert(1, events[1] | {"tokens": "x"}), "made the first time"),
    ],
)
def test_each_difference_is_found(tmp_path: Path, damage: Damage, says: str) -> None:
    """Another order, other tokens, versions or bits, a step missing, a rollout twice, an undone step that differs."""
    found = differences(written(tmp_path / "a"), written(tmp_path / "b", damage))
    assert any(says in each for each in found), found


def test_kills_are_the_same_for_a_seed_and_take_every_victim() -> None:
    """Ten of them come in the order of their steps, and another seed gives others."""
    kills = planned(10, 50, 3)
    assert kills == planned(10, 50, 3)
    assert kills != planned(10, 50, 4)
    assert {kill.victim for kill in kills} == set(VICTIMS)
    assert [kill.step for kill in kills] == sorted(kill.step for kill in kills)
