"""The input of a run: rows, and the rollouts that they and the repeats make.

A rollout id comes from the row's content and the repeat, never from its position: `<16 hex digits>.<copy>.<repeat>`,
where `copy` numbers rows of the same content. So rows may be reordered, added or removed between two runs, and a row
that changed is another rollout.
"""

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from participants import ParticipantError
from participants.serving import ConfigError

from .config import Config

LEVELS_AROUND = 64
"""How much deeper than in the input a row may come to stand; orjson writes 254 levels."""
INTEGERS = range(-(2**63), 2**64)
"""Those that are kept exactly; orjson makes a rounded float of each other one."""
_MANY_DIGITS = re.compile(rb"[0-9]{19}")


@dataclass(frozen=True, slots=True)
class Rollout:
    """One piece of work."""

    rollout_id: str
    row: Mapping[str, Any]
    task: int
    """Which row of the input, from 0; for the order and the keys of the output alone."""
    repeat: int


def content_digest(row: Any) -> str:
    """sha256 over a row, keys sorted."""
    return hashlib.sha256(orjson.dumps(row, option=orjson.OPT_SORT_KEYS)).hexdigest()


def plan_rollouts(rows: Iterable[Mapping[str, Any]], repeats: int) -> list[Rollout]:
    """All rollouts, in input order, repeats of a row side by side."""
    copies: Counter[str] = Counter()
    rollouts: list[Rollout] = []
    for task, row in enumerate(rows):
        digest = content_digest(row)[:16]
        copy = copies[digest]
        copies[digest] += 1
        rollouts.extend(Rollout(f"{digest}.{copy}.{repeat}", row, task, repeat) for repeat in range(repeats))
    return rollouts


def dataset_digest(rollouts: Iterable[Rollout]) -> str:
    """What the rows mean, whatever their order and however often each is repeated."""
    return hashlib.sha256("\n".join(sorted(r.rollout_id for r in rollouts if not r.repeat)).encode()).hexdigest()[:16]


def read_rows(path: str) -> list[dict[str, Any]]:
    """Rows of a JSON Lines file. Raises ConfigError, naming the line."""
    rows = []
    try:
        lines = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    except OSError as error:
        raise ConfigError(f"the input cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(_parse_row(line))
        except ConfigError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
    return rows


def _parse_row(line: bytes) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except ValueError as error:
        raise ConfigError(f"it is not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ConfigError("it is not a JSON object")
    if not isinstance(row.get("responses_create_params"), dict | None):
        raise ConfigError("its responses_create_params is not a JSON object")
    if not _can_be_carried(row):
        raise ConfigError("it is nested too deep")
    if _MANY_DIGITS.search(line):
        json.loads(line, parse_int=_check_integer)
    return row


def _check_integer(digits: str) -> None:
    if len(digits) > 20 or int(digits) not in INTEGERS:
        raise ConfigError(f"the number {digits:.40} is no integer of 64 bits, and would be rounded: write it as a text")


def _can_be_carried(row: dict[str, Any]) -> bool:
    """Whether it can still be written as JSON inside what carries it: records, replies and output lines."""
    carried: Any = row
    for _ in range(LEVELS_AROUND):
        carried = [carried]
    try:
        orjson.dumps(carried)
    except TypeError:
        return False
    return True


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
    from participants.servers.calculator import make_tasks  # not above: most runs have rows of their own

    about: dict[str, Any] = {"calculator": task_set.calculator, **task_set.config}
    try:
        return [row for name in task_set.name for row in make_tasks(name, task_set.size, task_set.seed, **about)]
    except ParticipantError as error:
        raise ConfigError(f"run.task_set: {error.message}") from error
