"""A run that is killed with SIGKILL at random times, again and again, until it is through."""

import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from store import NoCheckpoint, NotAStore, RootMissing, open_checkpoint, open_store, verify_store
from tests.support.backend import start_backend
from tests.support.seaweed import S3Server
from tests.support.waiting import let_run, until

from .harness import Run, Start, counter_row, read_rows
from .oracle import Boundary, boundaries, check, seen_of

SEED_VARIABLE = "MIDFLIGHT_KILL_SEED"
"""Set to a seed to replay that one alone."""
COUNT_VARIABLE = "MIDFLIGHT_KILL_SEEDS"
"""Seeds of the larger test."""
FIRST_SEED = 20_261
MOST_KILLS = 5
EARLY = 0.25
"""Of the kills, those that are counted from the start of the process: some come before its claim."""
EARLY_S = (0.1, 1.5)
LIVES_S, LIVES_ON_S3_S = (0.0, 1.8), (0.0, 4.0)
"""How long another start may live after it has said that it collects, which is later where the machine is busy."""
ROWS, CONCURRENCY = 12, 5
LATENCY = ("--latency-s", "0.12")
BEAT_S = 1.0
"""Long enough for a last word on a busy machine: a controller has as long to say that it is closed."""
TIME_FOR_ONE_S, TIME_FOR_ONE_ON_S3_S = 2.0, 8.0
"""A start that has gone on for so long has taken a checkpoint."""
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
        fields |= {"run": {"concurrency": CONCURRENCY}, "checkpoint": {"liveness_beat_s": BEAT_S}}
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
    """Nothing is damaged, and nothing left over of killed starts; the last controller has said that it is closed."""
    async with open_store(url, "read", storage_options=options) as store:
        report = await verify_store(store, deep=True)
        assert report.sound, report
        assert not report.findings, report
        epoch = (await store.chain()).state.epoch
        beat = await store.backend.get(f"alive/{epoch}", max_bytes=10_000)
        assert b'"closed":true' in beat


def kill_until_through(
    run: Run, rng: random.Random, url: str, options: dict[str, Any] | None
) -> dict[int, dict[str, Boundary]]:
    """Kill at random times; what each start's head had, by the start's epoch."""
    found: dict[int, dict[str, Boundary]] = {}
    time_for_one_s = TIME_FOR_ONE_S if options is None else TIME_FOR_ONE_ON_S3_S
    for _ in range(MOST_KILLS):
        epoch, has = anyio.run(look, url, options)
        with run.start() as start:
            let_live(start, rng, LIVES_S if options is None else LIVES_ON_S3_S)
            over = not start.lives()
        check_checkpoints(start, time_for_one_s)
        found[epoch + 1] = has
        if over:
            break
        run.backend.control.wait(live_at_most=0)
    epoch, has = anyio.run(look, url, options)
    found[epoch + 1] = has
    check_checkpoints(run.finish(), time_for_one_s)
    return found


def let_live(start: Start, rng: random.Random, lives_s: tuple[float, float]) -> None:
    """For a random time, from the first moment or from when it collects."""
    if rng.random() < EARLY:
        let_run(rng.uniform(*EARLY_S))
        return
    until(lambda: start.events("started") or not start.lives(), told=start.told)
    let_run(rng.uniform(*lives_s))


def check_checkpoints(start: Start, time_for_one_s: float) -> None:
    """A start takes checkpoints, after a restore as before one, and each has all that was restored and has no row."""
    assert not start.events("checkpoint_failed"), start.told()
    began = next(iter(start.events("started")), None)
    if began is None:
        return
    taken, rows = start.events("checkpoint"), [row["time_s"] for row in start.events("row")]
    lasted = start.events()[-1]["time_s"] - began["time_s"]
    assert taken or lasted < time_for_one_s, f"no checkpoint in {lasted} s: {start.told()}"
    for each in taken:
        delivered = sum(row <= each["time_s"] for row in rows)
        assert each["rollouts"] >= began["restored"] - delivered, start.told()


def left_over(run: Run, s3: S3Server | None, prefix: str) -> list[str]:
    """What is beside an output, other than its segments: what a kill has left half written."""
    if s3 is None:
        segments = (path for path in (run.folder / "out.jsonl.segments").rglob("*") if path.is_file())
        return [str(path) for path in (*run.folder.rglob(".*"), *(p for p in segments if p.suffix != ".jsonl"))]
    with closing(s3.client()) as client:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=s3.bucket, Prefix=f"{s3.prefix}/{prefix}/")
        keys = [item["Key"].partition(f"/{prefix}/")[2] for page in pages for item in page.get("Contents", ())]
    ours = re.compile(r"out\.jsonl|out\.jsonl\.segments/.*\.jsonl|checkpoints/.*")
    return [key for key in keys if not ours.fullmatch(key)]


def check_output(rows: list[Path], alone: Path, leftovers: list[str]) -> None:
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
            check_output([path], alone.folder / "out.jsonl", left_over(killed, s3, f"k{seed}"))
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
@pytest.mark.timeout(240)
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
    for seed in seeds(int(os.environ.get(COUNT_VARIABLE, "6"))):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills(folder, seed, replay(seed, "scale", request), seaweed if seed % 4 == 0 else None)
