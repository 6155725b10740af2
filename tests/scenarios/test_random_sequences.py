"""Scenario 38: seeded random sequences of what can happen, and at the end everything is right and nothing is left."""

import os

import pytest

from .player import Player
from .sequences import sequence
from .stage import Stage
from .variants import Variant

SEED_VARIABLE = "MIDFLIGHT_SEQUENCE_SEED"
"""Set to a seed to replay that one alone."""
FIRST_SEED, SEEDS, ON_S3 = 38_000, 20, 2
REPLAY = f"{SEED_VARIABLE}={{seed}} python -m pytest -n 0 -m {{tier}} {__name__.replace('.', '/')}.py"

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The seeds of each test: as many as are asked for, or the one that is to be replayed."""
    chosen = os.environ.get(SEED_VARIABLE)
    count = ON_S3 if "on_s3" in metafunc.function.__name__ else metafunc.config.getoption("--seeds", SEEDS)
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", [int(chosen)] if chosen else range(FIRST_SEED, FIRST_SEED + count))


async def played(stage: Stage, seed: int, tier: str) -> None:
    """Play one seed; where it fails, say what it was and how to see it again."""
    ops, player = sequence(seed), Player(stage)
    try:
        await player.play(ops)
    except BaseException:
        at = len(player.played)
        lines = [f"{'->' if number == at else '  '} {number:2} {op}" for number, op in enumerate(ops, 1)]
        print("\n".join([f"seed {seed} failed", *lines, "again: " + REPLAY.format(seed=seed, tier=tier)]))  # noqa: T201
        raise


@pytest.mark.process
async def test_38_after_a_random_sequence_everything_is_right_and_nothing_is_left(stage: Stage, seed: int) -> None:
    """Every rollout has its reward, and no life did more than was left for it to do."""
    await played(stage, seed, "process")


@pytest.mark.real
@pytest.mark.parametrize("stage", [Variant(s3=True)], ids=["s3"], indirect=True)
async def test_38_a_random_sequence_on_s3_leaves_everything_right_as_well(stage: Stage, seed: int) -> None:
    """The same with checkpoints on object storage."""
    await played(stage, seed, "real")
