"""What a run means, field by field: dataset, model, agent, resources and their code; no ports, hosts or credentials.

A checkpoint whose fingerprint differs is refused, naming the fields. An override accepts fields by name; a rollout
whose own row changed has another id, so none is ever continued under it.
"""

import hashlib
import importlib
import inspect
from collections.abc import Sequence

import orjson

from .config import Config
from .rows import Rollout, dataset_digest


def fingerprint(config: Config, rollouts: Sequence[Rollout]) -> dict[str, str]:
    """Field to digest or value."""
    fields = {
        "dataset": dataset_digest(rollouts),
        "repeats": str(config.run.repeats),
        "model": config.model.model,
        "dialect": config.model.dialect,
        "parameters": _digest(config.model.parameters),
        "agent": _digest(config.agent.model_dump()),
    }
    for name, table in sorted(config.resources.items()):
        fields[f"resources.{name}"] = _digest({**table.model_dump(), "code": _code_digest(table.server)})
    return fields


def _digest(value: object) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _code_digest(target: str) -> str:
    """Of the source file that defines a server, so that edited code is not taken for the same run."""
    module = importlib.import_module(target.partition(":")[0])
    try:
        return hashlib.sha256(inspect.getsource(module).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return "unknown"
