"""Runs of a cohort verifier that are killed at random times: every row once, and the reward of an uninterrupted run."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.backend import start_backend

from .harness import Run, Start
from .test_kill import BEAT_S, LATENCY, let_live, replay, seeds
from .test_served import over_servers
from .test_served_kill import VICTIMS

REPEATS, ROWS, KILLS = 3, 4, 4
LIVES_S = (0.0, 2.0)
GIVES_UP_S = 15.0
"""A cohort that lacks a member: a server that died alone between the replies of two of its members leaves one."""
REWARD = 3.0
"""By hand: all repeats say the same, ending in 2. Each verdict is a tie of 3 with the ranking 1, and so each is worth
3 + 2.5 to the first and 3 - 2.5 to the second; everybody is first once and second once."""


def row(number: int) -> dict[str, object]:
    """Says words for a while, and then its answer."""
    script = json.dumps([{"filler": 40, "text": f" The answer of {number} is 2"}])
    return {"responses_create_params": {"input": [{"role": "user", "content": f"<script>{script}</script>"}]}}


@contextmanager
def cohort_run(folder: Path) -> Iterator[Run]:
    """Four cohorts of three; not all have room at once."""
    with start_backend(folder, *LATENCY) as backend:
        options = {"num_rollouts_per_prompt": REPEATS, "cohort_collection_timeout_s": GIVES_UP_S}
        server = "tests.support.logged_genrm:LoggedGenRM"
        run = Run(folder, backend, [row(n) for n in range(ROWS)], server=server, options=options, pause_s=0.02)
        run.run = {"repeats": REPEATS, "concurrency": 7}
        run.checkpoint = {"liveness_beat_s": BEAT_S}
        yield run


def check(run: Run) -> list[dict[str, object]]:
    """Every row once, with the reward of an uninterrupted run."""
    rows = [json.loads(line) for line in (run.folder / "out.jsonl").read_text().splitlines()]
    assert len(rows) == REPEATS * ROWS
    assert set(Counter(each["_ng_rollout_id"] for each in rows).values()) == {1}
    assert [each["reward"] for each in rows] == [REWARD] * len(rows)
    groups = Counter(each["group_id"] for each in rows)
    assert set(groups.values()) == {REPEATS}
    return rows


def kill_starts(run: Run, rng: random.Random) -> list[Start]:
    """Start after start is killed, and the last one ends."""
    starts = []
    for _ in range(KILLS):
        with run.start() as start:
            let_live(start, rng, LIVES_S)
        starts.append(start)
    return [*starts, run.finish()]


@pytest.mark.process
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", seeds(2))
def test_a_cohort_run_killed_at_random_times_gives_each_row_its_reward(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    """In one process: no cohort fails, for no member waits for one whose row is durable already."""
    with cohort_run(tmp_path) as run:
        try:
            starts = kill_starts(run, random.Random(seed))
            assert not [event for start in starts for event in start.events("failure")]
            assert {each["group_attempt"] for each in check(run)} == {0}
        except BaseException:
            print(f"seed {seed}: replay with {replay(seed, 'process', request)}")  # noqa: T201
            raise


@pytest.mark.process
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("victims", list(VICTIMS))
def test_a_cohort_run_over_servers_of_which_some_are_killed_gives_each_row_its_reward(
    tmp_path: Path, victims: str, seed: int, request: pytest.FixtureRequest
) -> None:
    """With two workers of each: servers alone, which the start outlives; the controller alone; both."""
    with cohort_run(tmp_path) as run:
        try:
            VICTIMS[victims](over_servers(run, 2), random.Random(f"{victims} {seed}"))
            check(run)
            assert run.end_servers() == {}
        except BaseException:
            print(f"seed {seed}: replay with {replay(seed, 'process', request)}")  # noqa: T201
            raise
        finally:
            run.end_servers()
