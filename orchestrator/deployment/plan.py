"""What is to be done, decided without doing it: the servers of a fleet, what each is made of, which survivors serve."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from participants.serving.addresses import split_address
from participants.serving.spec import ServerSpec, parse_spec

from .config import MAIN_MODEL, ROLES, FleetTable
from .hosts import spans_of
from .state import FleetState

if TYPE_CHECKING:
    from ..collect.config import Participants

TOKEN_ENV = "MIDFLIGHT_CONTROL_TOKEN"
"""The variable that a server finds its token in, where the file names none."""
_PART = 0.8
"""Of shutdown_s, what a server itself may take: the rest is for the end of its processes."""


def roles_of(config: "Participants") -> list[str]:
    """Every server of a fleet: a server comes behind those that it calls."""
    environment, agent, _ = ROLES
    return [*config.endpoints, *(f"resources.{name}" for name in sorted(config.resources)), agent, environment]


def peers_of(role: str, urls: Mapping[str, str]) -> dict[str, str]:
    """The servers that a role calls; those of resources may call each model, and few do."""
    environment, agent, model = ROLES
    if role.startswith("model."):
        return {}
    if role.startswith("resources."):
        return {other: url for other, url in urls.items() if other.startswith("model.")}
    called = {environment: agent, agent: model}[role]
    return {other: url for other, url in urls.items() if other == called or other.startswith("resources.")}


def spec_of(
    config: "Participants", table: FleetTable, role: str, listen: str, urls: Mapping[str, str], path: str | None
) -> ServerSpec:
    """What one server is started from; `urls` are those of all roles, `path` is where the file of the run lies.

    Raises ConfigError where the tables do not go together.
    """
    kind, _, name = role.partition(".")
    server, span = table.server(role), spans_of(table, roles_of(config)).get(role)
    checkpoint, telemetry = config.checkpoint, config.telemetry
    facts: dict[str, Any] = {
        "kind": kind,
        "name": name,
        "server": server.server,
        "workers": server.workers,
        "listen": listen,
        "span": span.addresses if span else (),
        "peers": peers_of(role, urls),
        "store": checkpoint.url if checkpoint.enabled else None,
        "single_writer": checkpoint.single_writer,
        "token_env": table.token_env or TOKEN_ENV,
        "shutdown_s": table.shutdown_s * _PART,
        "otlp": telemetry.otlp if telemetry else None,
        "prometheus": telemetry is not None and telemetry.prometheus is not None,
        "path": path,
    }
    return parse_spec(facts | _own(config, role), role)


def _own(config: "Participants", role: str) -> dict[str, Any]:
    """What only servers of this kind have."""
    kind, _, name = role.partition(".")
    match kind:
        case "resources":
            found = config.resources[name]
            return {"server": found.server, "options": found.options}
        case "model":
            captured = config.capture if role == MAIN_MODEL else None
            return {"model": config.endpoints[role], "capture": captured.folder if captured else None}
        case "agent":
            agent = config.agent
            return {"server": agent.server, "options": agent.arguments, "dialect": config.model.dialect}
    return {}


def program_of(spec: ServerSpec) -> str:
    """Digest of what a server is, wherever it listens: another one would be another program."""
    said = spec.model_dump_json(exclude={"listen"})
    return hashlib.sha256(f"{version('midflight')} {said}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Plan:
    """A fleet before it runs."""

    specs: tuple[ServerSpec, ...]
    """Of the servers that are run here; a server comes behind those that it calls."""
    elsewhere: Mapping[str, str]
    """Role to URL of those that somebody else runs."""

    def spec(self, role: str) -> ServerSpec:
        """Of one role. Raises KeyError."""
        return {spec.role: spec for spec in self.specs}[role]


def elsewhere(config: "Participants", table: FleetTable) -> dict[str, str]:
    """Role to URL of the servers that somebody else runs."""
    return {role: url for role in roles_of(config) if (url := table.server(role).url) is not None}


def addresses(config: "Participants", table: FleetTable, before: FleetState | None) -> dict[str, str]:
    """Role to the address that it wants: the one that the file names, or else that of the server `before`."""
    wanted = {}
    for role in roles_of(config):
        server = table.server(role)
        if server.url is None:
            found = before.find(role) if before else None
            wanted[role] = found.listen if found and _fits(found.listen, server.listen) else server.listen
    return wanted


def _fits(listen: str, wanted: str) -> bool:
    """Whether an address is what the file asks for: any port of a host, or exactly this one."""
    (host, port), (at, any_port) = split_address(listen), split_address(wanted)
    return host == at and any_port in (0, port)


def make_plan(
    config: "Participants",
    table: FleetTable,
    listens: Mapping[str, str],
    urls: Mapping[str, str],
    path: str | None,
) -> Plan:
    """The plan, once the addresses of all roles are decided: `listens` of those that run here, `urls` of all."""
    specs = tuple(
        spec_of(config, table, role, listens[role], urls, path) for role in roles_of(config) if role in listens
    )
    return Plan(specs, elsewhere(config, table))


def same_programs(plan: Plan, before: FleetState | None) -> set[str]:
    """The roles whose server `before`, if it lives, is what is planned now, and where it is planned."""
    found = ((spec, before.find(spec.role)) for spec in plan.specs) if before else ()
    return {
        spec.role
        for spec, server in found
        if server is not None and server.listen == spec.listen and server.program == program_of(spec)
    }
