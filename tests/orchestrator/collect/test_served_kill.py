"""A run over servers of which the controller, the servers or both are killed with SIGKILL at random times.

The same command, run again after each kill of the controller, finishes every row exactly once. What each life had to do
follows from the checkpoint that its epoch was claimed on, which the chain says; see `oracle`.
"""

import os
import random
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from store import Claim, open_checkpoint, open_store
from tests.support.seaweed import S3Server
from tests.support.waiting import let_run, until

from .harness import Run, Start
from .oracle import Boundary, boundaries, check, seen_of
from .test_kill import (
    COUNT_VARIABLE,
    check_output,
    fetch,
    left_over,
    one_run,
    replay,
    s3_environment,
    seeds,
    verify,
)
from .test_served import ROLES, over_servers

MOST_KILLS = 3
LIVES_S = (0.0, 3.0)
"""How long after it has begun, or gone on, somebody is killed."""
GOES_ON_S = 120.0
KEEP_ALL = 1000
"""Checkpoints, so that each one that an epoch was claimed on can be looked at in the end."""


async def claimed_on(url: str, options: dict[str, Any] | None) -> dict[int, dict[str, Boundary]]:
    """By epoch, what the checkpoint that it was claimed on has of each rollout."""
    found: dict[int, dict[str, Boundary]] = {}
    async with open_store(url, "read", storage_options=options) as store:
        for entry in (await store.chain()).entries:
            if isinstance(entry.action, Claim):
                base = entry.action.base
                found[entry.epoch] = await boundaries(await open_checkpoint(store, base)) if base else {}
    return found


def kill_servers(run: Run, rng: random.Random) -> None:
    """One server with all of its workers, or one worker; nothing where it is not there."""
    role = rng.choice(ROLES)
    with suppress(OSError, KeyError, IndexError):
        if rng.random() < 0.5:
            os.kill(rng.choice(run.workers(role)), signal.SIGKILL)
        else:
            os.killpg(run.servers()[role], signal.SIGKILL)


def until_it_goes_on(start: Start, times: int) -> None:
    """Until a start collects, for the so many-th time, or has ended."""

    def does() -> bool:
        return len([*start.events("started"), *start.events("went_on")]) >= times or not start.lives()

    until(does, GOES_ON_S, start.told)


def lose_servers(run: Run, rng: random.Random) -> None:
    """One start, which goes on by itself whatever is killed."""
    with run.start() as start:
        for losses in range(MOST_KILLS):
            until_it_goes_on(start, losses + 1)
            let_run(rng.uniform(*LIVES_S))
            kill_servers(run, rng)
        start.wait(0)


def lose_controllers(run: Run, rng: random.Random, *, servers_too: bool) -> None:
    """Start after start; servers that outlive one are adopted or ended by the next, as the mode says."""
    for _ in range(MOST_KILLS):
        with run.start() as start:
            until_it_goes_on(start, 1)
            let_run(rng.uniform(*LIVES_S))
        if servers_too:
            kill_servers(run, rng)
        run.fleet = {**(run.fleet or {}), "mode": rng.choice(["start", "adopt"])}
    run.finish()


Lose = Callable[[Run, random.Random], None]
VICTIMS: dict[str, Lose] = {
    "servers": lose_servers,
    "controller": lambda run, rng: lose_controllers(run, rng, servers_too=False),
    "both": lambda run, rng: lose_controllers(run, rng, servers_too=True),
}


def kills(folder: Path, victims: str, seed: int, command: str, s3: S3Server | None = None) -> None:
    """One seed: an uninterrupted run, one in which somebody is killed, and what must be the same."""
    rng = random.Random(f"{victims} {seed}")
    with ExitStack() as stack:
        alone = stack.enter_context(one_run(folder / "alone", checkpoint_url=None))
        alone.finish()
        killed = stack.enter_context(one_run(folder / "killed"))
        stack.callback(killed.end_servers)
        over_servers(killed, rng.choice([1, 2])).checkpoint["keep_last"] = KEEP_ALL
        url, options = str(killed.folder / "checkpoints"), None
        if s3 is not None:
            url, options = f"{s3.url}/f{seed}/checkpoints", s3.options()
            killed.checkpoint_url, killed.output = url, f"{s3.url}/f{seed}/out.jsonl"
            killed.environment = s3_environment(s3)
        try:
            VICTIMS[victims](killed, rng)
            anyio.run(verify, url, options)
            repeated = check(seen_of(killed), seen_of(alone), anyio.run(claimed_on, url, options))
            path = killed.folder / "out.jsonl" if s3 is None else fetch(s3, f"f{seed}/out.jsonl", killed.folder / "got")
            check_output([path], alone.folder / "out.jsonl", left_over(killed, s3, f"f{seed}"))
            assert killed.end_servers() == {}
        except BaseException:
            print(f"seed {seed}: replay with {command}")  # noqa: T201 - pytest shows it where the test fails
            raise
        print(f"seed {seed}: {killed.starts} starts, repeated {repeated}")  # noqa: T201


@pytest.mark.process
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("victims", list(VICTIMS))
def test_whoever_is_killed_at_random_times_the_same_command_finishes_every_row_once(
    tmp_path: Path, victims: str, seed: int, request: pytest.FixtureRequest
) -> None:
    """On a local disk: servers alone, which one start outlives; the controller alone; both."""
    kills(tmp_path, victims, seed, replay(seed, "process", request))


@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("victims", list(VICTIMS))
def test_whoever_is_killed_on_s3_the_same_command_finishes_every_row_once(
    tmp_path: Path, seaweed: S3Server, victims: str, seed: int, request: pytest.FixtureRequest
) -> None:
    """The same with checkpoints, segments and output on object storage."""
    kills(tmp_path, victims, seed, replay(seed, "real", request), seaweed)


@pytest.mark.scale
@pytest.mark.timeout(3600)
def test_many_seeds_of_kills_over_servers_finish_every_row_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """As above, for as many seeds as wanted, each with other victims."""
    for seed in seeds(int(os.environ.get(COUNT_VARIABLE, "6"))):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills(folder, list(VICTIMS)[seed % len(VICTIMS)], seed, replay(seed, "scale", request))
