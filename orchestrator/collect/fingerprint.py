"""What a run means, field by field: dataset, model, agent, resources and their code; no ports, hosts or credentials.

A run that differs from what its rows and its head were made with is refused, naming the fields. An override accepts
fields by name; a rollout whose own row changed has another id, so none is ever continued under it.
"""

import hashlib
import inspect
from collections.abc import Collection, Mapping, Sequence

import orjson

from participants.serving import ConfigError, import_target

from .config import AgentTable, Config
from .rows import Rollout, dataset_digest


def fingerprint(config: Config, rollouts: Sequence[Rollout]) -> dict[str, str]:
    """Field to digest or value. Reads source files. Raises ConfigError where a server cannot be imported."""
    fields = {
        "dataset": dataset_digest(rollouts),
        "repeats": str(config.run.repeats),
        "model": config.model.model,
        "dialect": config.model.dialect,
        "parameters": _digest(config.model.parameters),
        "agent": _agent(config.agent),
    }
    fields |= {f"models.{name}": settings.model for name, settings in sorted(config.models.items())}
    for role, server in sorted(config.fleet.servers.items()) if config.fleet else ():
        if server.server is not None:  # Of all that the table says, only this changes what the run means.
            fields[role] = _digest({"server": server.server, "code": _code_digest(role, server.server)})
    for name, table in sorted(config.resources.items()):
        role = f"resources.{name}"
        fields[role] = _digest({**table.model_dump(), "code": _code_digest(role, table.server)})
    return fields


def _agent(table: AgentTable) -> str:
    limits = {"max_steps": table.max_steps, "max_wall_s": table.max_wall_s}
    if table.server is None:
        return _digest(limits)
    return _digest({"server": table.server, "code": _code_digest("agent.main", table.server), **table.arguments})


def check_same(now: Mapping[str, str], then: Mapping[str, str], accepted: Collection[str], where: str) -> None:
    """Refuse to continue another run. Raises ConfigError, naming the fields that differ and are not accepted."""
    differing = sorted(name for name in {*now, *then} if now.get(name) != then.get(name) and name not in accepted)
    if not differing:
        return
    told = ", ".join(
        f"{name} ({then.get(name, 'not there')} then, {now.get(name, 'not there')} now)" for name in differing
    )
    accept = " ".join(f"--accept {name}" for name in differing)
    raise ConfigError(
        f"this is not the run that {where} is of: {told}. Continue nevertheless with {accept}, or --fresh"
    )


def check_accepted(accepted: Collection[str], *known: Collection[str]) -> None:
    """Refuse to accept what is no field of this run or of what came before. Raises ConfigError."""
    fields = {name for names in known for name in names}
    if unknown := sorted(set(accepted) - fields):
        raise ConfigError(f"--accept {unknown[0]}: there is no such field; there are {', '.join(sorted(fields))}")


def _digest(value: object) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _code_digest(role: str, target: str) -> str:
    """Of the source file that defines a server, so that edited code is not taken for the same run."""
    module = import_target(role, target)
    try:
        return hashlib.sha256(inspect.getsource(module).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return "unknown"
