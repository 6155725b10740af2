"""The input of a run: rows, and the rollouts that they and the repeats make.

A rollout id comes from the row's content and the repeat, never from its position: `<16 hex digits>.<copy>.<repeat>`,
where `copy` numbers rows of the same content. So rows may be reordered, added or removed between two runs, and a row
that changed is another rollout.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from .config import Config, ConfigError


@dataclass(frozen=True, slots=True)
class Rollout:
    """One piece of work."""

    rollout_id: str
    row: Mapping[str, Any]
    position: int
    """In the input, for the order of the output alone."""


def content_digest(row: Any) -> str:
    """sha256 over a row, keys sorted."""
    return hashlib.sha256(orjson.dumps(row, option=orjson.OPT_SORT_KEYS)).hexdigest()


def plan_rollouts(rows: Iterable[Mapping[str, Any]], repeats: int) -> list[Rollout]:
    """All rollouts, in input order, repeats of a row side by side."""
    copies: Counter[str] = Counter()
    rollouts: list[Rollout] = []
    for row in rows:
        digest = content_digest(row)[:16]
        copy = copies[digest]
        copies[digest] += 1
        for repeat in range(repeats):
            rollouts.append(Rollout(f"{digest}.{copy}.{repeat}", row, len(rollouts)))
    return rollouts


def dataset_digest(rollouts: Iterable[Rollout]) -> str:
    """What the rows mean, whatever their order."""
    return hashlib.sha256("\n".join(sorted(r.rollout_id for r in rollouts)).encode()).hexdigest()


def read_rows(path: str) -> list[dict[str, Any]]:
    """Rows of a JSON Lines file. Raises ConfigError, naming the line."""
    rows = []
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"the input cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: it is not JSON ({error})") from error
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, line {number}: it is not a JSON object")
        rows.append(row)
    return rows


def load_rollouts(config: Config) -> list[Rollout]:
    """All rollouts of a run. Raises ConfigError."""
    run = config.run
    rows = read_rows(run.input) if run.input else _make_rows(config)
    if run.limit:
        rows = rows[: run.limit]
    if not rows:
        raise ConfigError("the input has no rows")
    return plan_rollouts(rows, run.repeats)


def _make_rows(config: Config) -> list[dict[str, Any]]:
    task_set = config.run.task_set
    if task_set is None:
        raise ConfigError("give either input or task_set")
    try:
        from participants.servers.calculator import make_tasks

        return list(make_tasks(task_set.name, task_set.size, task_set.seed))
    except ImportError as error:
        raise ConfigError(f"task_set needs: pip install 'midflight[tasks]' ({error})") from error
