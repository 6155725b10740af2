"""A run that is killed with SIGKILL at random times, again and again, until it is through."""

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from store import NoCheckpoint, NotAStore, RootMissing, open_checkpoint, open_store, verify_store
from tests.support.backend import start_backend
from tests.support.seaweed import S3Server
from tests.support.waiting import let_run

from .harness import Run, counter_row, read_rows
from .oracle import Boundary, boundaries, check, seen_of

SEED_VARIABLE = "MIDFLIGHT_KILL_SEED"
"""Set to a seed to replay that one alone."""
COUNT_VARIABLE = "MIDFLIGHT_KILL_SEEDS"
"""Seeds of the larger test."""
FIRST_SEED = 20_261
MOST_KILLS = 5
LIVES_S, LIVES_ON_S3_S = (0.3, 2.4), (1.0, 5.0)
"""How long a start may live: from before its claim to about its end."""
ROWS, CONCURRENCY = 12, 5
LATENCY = ("--latency-s", "0.12")
REPLAY = f"{SEED_VARIABLE}={{seed}} python -m pytest -m {{tier}} '{{test}}'"


def seeds(count: int) -> list[int]:
    """This many, or the one that is to be replayed."""
    chosen = os.environ.get(SEED_VARIABLE)
    return [int(chosen)] if chosen else [FIRST_SEED + n for n in range(count)]


@contextmanager
def one_run(folder: Path, **fields: Any) -> Iterator[Run]:
    """A run with a backend of its own."""
    folder.mkdir()
    with start_backend(folder, *LATENCY) as backend:
        fields["run"] = {"concurrency": CONCURRENCY}
        yield Run(folder, backend, [counter_row(number) for number in range(ROWS)], pause_s=0.02, **fields)


async def look(url: str, options: dict[str, Any] | None) -> tuple[int, dict[str, Boundary]]:
    """The highest epoch on the chain, and what the head has of each rollout."""
    try:
        async with open_store(url, "read", storage_options=options) as store:
            epoch = (await store.chain()).state.epoch
            return epoch, await boundaries(await open_checkpoint(store))
    except (NotAStore, RootMissing):
        return 0, {}
    except NoCheckpoint:
        return epoch, {}


async def verify(url: str, options: dict[str, Any] | None) -> None:
    """Nothing in the store is damaged, and its last controller has said that it is closed."""
    async with open_store(url, "read", storage_options=options) as store:
        report = await verify_store(store, deep=True)
        assert report.sound, report
        epoch = (await store.chain()).state.epoch
        beat = await store.backend.get(f"alive/{epoch}", max_bytes=10_000)
        assert b'"closed":true' in beat


def kill_until_through(
    run: Run, rng: random.Random, url: str, options: dict[str, Any] | None
) -> dict[int, dict[str, Boundary]]:
    """Kill at random times; what each start's head had, by the start's epoch."""
    found: dict[int, dict[str, Boundary]] = {}
    for _ in range(MOST_KILLS):
        epoch, has = anyio.run(look, url, options)
        with run.start() as start:
            let_run(rng.uniform(*(LIVES_S if options is None else LIVES_ON_S3_S)))
            over = not start.lives()
        found[epoch + 1] = has
        if over:
            break
        run.backend.control.wait(live_at_most=0)
    epoch, has = anyio.run(look, url, options)
    found[epoch + 1] = has
    run.finish()
    return found


def check_output(rows: list[Path], alone: Path, leftovers: list[Path]) -> None:
    """Every row exactly once and as in an uninterrupted run, byte for byte apart from lives; nothing half written."""
    [path] = rows
    assert read_rows(path) == read_rows(alone)
    ids = Counter(row["_ng_rollout_id"] for row in read_rows(path))
    assert set(ids.values()) == {1}
    assert not leftovers, leftovers


def kills(folder: Path, seed: int, command: str, s3: S3Server | None = None) -> None:
    """One seed: an uninterrupted run, a run that is killed, and what must be the same and what may differ."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        alone = stack.enter_context(one_run(folder / "alone", checkpoint_url=None))
        alone.finish()
        killed = stack.enter_context(one_run(folder / "killed"))
        url, options = str(killed.folder / "checkpoints"), None
        if s3 is not None:
            url, options = f"{s3.url}/k{seed}/checkpoints", s3.options()
            killed.checkpoint_url, killed.output = url, f"{s3.url}/k{seed}/out.jsonl"
            killed.environment = s3_environment(s3)
        try:
            found = kill_until_through(killed, rng, url, options)
            anyio.run(verify, url, options)
            repeated = check(seen_of(killed), seen_of(alone), found)
            path = killed.folder / "out.jsonl" if s3 is None else fetch(s3, f"k{seed}/out.jsonl", killed.folder / "got")
            leftovers = (
                [] if s3 else [*killed.folder.glob(".*"), *(killed.folder / "out.jsonl.segments").rglob(".*.tmp")]
            )
            check_output([path], alone.folder / "out.jsonl", leftovers)
        except BaseException:
            print(f"seed {seed}: replay with {command}")  # noqa: T201 - pytest shows it where the test fails
            raise
        print(f"seed {seed}: {killed.starts} starts, repeated {repeated}")  # noqa: T201


def s3_environment(server: S3Server) -> dict[str, str]:
    """Credentials and address, as a user would set them."""
    return {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def fetch(server: S3Server, key: str, path: Path) -> Path:
    """An object below the server's prefix, as a file."""
    client = server.client()
    path.write_bytes(client.get_object(Bucket=server.bucket, Key=f"{server.prefix}/{key}")["Body"].read())
    client.close()
    return path


def replay(seed: int, tier: str, request: pytest.FixtureRequest) -> str:
    """The command that runs one seed again."""
    return REPLAY.format(seed=seed, tier=tier, test=request.node.nodeid)


@pytest.mark.process
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", seeds(2))
def test_a_run_killed_at_random_times_repeats_nothing_before_its_boundaries(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    """On a local disk: every row once, and model calls, tools and verifies counted exactly, whatever was killed."""
    kills(tmp_path, seed, replay(seed, "process", request))


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", seeds(2))
def test_a_run_on_s3_killed_at_random_times_repeats_nothing_before_its_boundaries(
    tmp_path: Path, seaweed: S3Server, seed: int, request: pytest.FixtureRequest
) -> None:
    """The same with checkpoints, segments and output on object storage."""
    kills(tmp_path, seed, replay(seed, "real", request), seaweed)


@pytest.mark.scale
@pytest.mark.timeout(3600)
def test_many_seeds_of_kills_repeat_nothing_before_their_boundaries(
    tmp_path: Path, seaweed: S3Server, request: pytest.FixtureRequest
) -> None:
    """As above, for as many seeds as wanted, every fourth one on object storage."""
    for seed in seeds(int(os.environ.get(COUNT_VARIABLE, "20"))):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills(folder, seed, replay(seed, "scale", request), seaweed if seed % 4 == 0 else None)
