"""`[fleet]`: that a run's participants are servers in processes of their own, and where each of them runs.

The table knows nothing of the other tables of the file; `check_roles` compares it with them.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from participants.serving.addresses import MAX_PORT, host_in, is_loopback, split_address
from participants.serving.settings import ClassPath, Place, Seconds, Table, Texts
from participants.serving.spec import MAX_WORKERS

Mode = Literal["start", "attach", "adopt"]
MAIN_MODEL = "model.main"
"""The policy; every other model server is there to be asked by resources servers."""
ROLES = ("environment.main", "agent.main", MAIN_MODEL)
"""Those of every fleet; `[resources.<name>]` adds `resources.<name>`, and `[models.<name>]` adds `model.<name>`."""
ANY_PORT = "127.0.0.1:0"
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""A name of a host is one of a folder, too."""


class ServerTable(Table):
    """`[fleet.servers."<role>"]`: one server. Without such a table a role has one worker on a free port."""

    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    """Processes that share the work of the server."""
    listen: str = ANY_PORT
    """`host:port`; port 0 takes a free one, which stays the server's own when it is started again."""
    hosts: Texts | None = None
    """Of `[fleet.hosts]`, those that run a server of this role, with `workers` each; None for all of them."""
    server: ClassPath | None = None
    """Of one's own environment; agents and resources servers are named in their own tables."""
    url: str | None = None
    """Of a server that somebody else runs, which is neither started nor stopped here."""

    @field_validator("listen")
    @classmethod
    def _is_address(cls, listen: str) -> str:
        split_address(listen)
        return listen

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            whole = False
        if not whole or "@" in parts.netloc:
            raise ValueError("it is no http:// or https:// URL without credentials; the token is named by token_env")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _here_or_elsewhere(self) -> "ServerTable":
        if self.url and (here := sorted({"workers", "listen", "hosts", "server"} & self.model_fields_set)):
            raise ValueError(f"a server with a url is run by somebody else: remove {' and '.join(here)}, or the url")
        return self


class FleetTable(Table):
    """`[fleet]`: its presence makes the participants servers."""

    mode: Mode = "start"
    """Of `midflight collect`: start its servers anew, attach to those that run, or adopt those that outlived it."""
    folder: Annotated[Place, Field(min_length=1)] = "fleet"
    """A local folder of this fleet alone: `fleet.json`, the token, and a log for each server."""
    token_env: str | None = None
    """Name of the environment variable with the control token; without it a token is made and kept in the folder."""
    shutdown_s: Seconds = 10.0
    """After so long from being told to end, servers are killed."""
    start_s: Seconds = 60.0
    """After so long a server that is not ready has failed."""
    max_restarts: Annotated[int, Field(ge=0)] = 5
    """How often in a row `midflight collect` begins again with lost servers without a row in between."""
    base_port: Annotated[int, Field(ge=1, le=MAX_PORT)] = 9100
    """Of several hosts: the first port of the servers, on each host."""
    hosts: dict[str, str] = Field(default_factory=dict)
    """`[fleet.hosts]`: the name of each host, and the address at which all others reach it."""
    servers: dict[str, ServerTable] = Field(default_factory=dict)
    """By role."""

    @field_validator("folder")
    @classmethod
    def _is_local(cls, folder: str) -> str:
        if "://" in folder:
            raise ValueError("it is a URL; name a folder on a local disk")
        return folder

    @field_validator("token_env")
    @classmethod
    def _is_name(cls, name: str | None) -> str | None:
        if name is not None and (not name.isascii() or not name.isidentifier()):
            raise ValueError("it is no name of an environment variable; the token itself never stands here")
        return name

    @field_validator("hosts")
    @classmethod
    def _are_hosts(cls, hosts: dict[str, str]) -> dict[str, str]:
        at: dict[str, str] = {}
        for name, address in hosts.items():
            if not _HOST.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a host: a letter or digit, then those, '.', '_' and '-'")
            where = host_in(address)
            if where in at:
                raise ValueError(f"{at[where]} and {name} have the same address, {address}, so their ports would meet")
            at[where] = name
        own = [where for where in at if is_loopback(where)]
        if own and len(own) < len(at):
            raise ValueError(f"{at[own[0]]}: {own[0]} is every host's own, so the others would not reach it there")
        return {name: where for where, name in at.items()}

    @field_validator("servers", mode="before")
    @classmethod
    def _are_quoted(cls, servers: object) -> object:
        for kind, tables in servers.items() if isinstance(servers, dict) else ():
            for name, table in tables.items() if isinstance(tables, dict) and "." not in kind else ():
                if isinstance(table, dict):
                    raise ValueError(f'write the role in quotes, as in "{kind}.{name}"')
        return servers

    @field_validator("servers")
    @classmethod
    def _are_roles(cls, servers: Mapping[str, ServerTable]) -> Mapping[str, ServerTable]:
        for role, table in servers.items():
            kind, dot, name = role.partition(".")
            if role not in ROLES and (kind not in ("resources", "model") or not dot or not name):
                others = "resources.<name> and model.<name>"
                raise ValueError(f'there is no role "{role}"; there are {", ".join(ROLES)}, {others}')
            if table.server is not None and kind != "environment":
                where = kind if role in ROLES else f"models.{name}" if kind == "model" else role
                raise ValueError(f'"{role}": what it serves stands in [{where}]; remove its server here')
        return servers

    @model_validator(mode="after")
    def _no_port_twice(self) -> "FleetTable":
        taken: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for role, table in self.servers.items():
            host, port = split_address(table.listen)
            for other, its in taken[port] if port else ():
                if host == its:
                    raise ValueError(f'"{other}" and "{role}" both listen on port {port}')
            taken[port].append((role, host))
        return self

    @model_validator(mode="after")
    def _whole_hosts(self) -> "FleetTable":
        if self.hosts and self.mode != "attach":
            raise ValueError(
                'hosts needs mode = "attach": `midflight up --host NAME` starts the servers of each host, and '
                "`midflight collect` finds them there"
            )
        if self.hosts and self.token_env is None:
            raise ValueError("hosts needs token_env: every host is given the same token, in that variable")
        if not self.hosts and "base_port" in self.model_fields_set:
            raise ValueError("base_port is that of [fleet.hosts], which is missing; each server has a listen without")
        for role, table in self.servers.items():
            self._check_hosts(role, table)
        return self

    def _check_hosts(self, role: str, table: ServerTable) -> None:
        if self.hosts and "listen" in table.model_fields_set:
            raise ValueError(f'"{role}": with [fleet.hosts] its address follows from base_port; remove its listen')
        if table.hosts is None:
            return
        if not self.hosts:
            raise ValueError(f'"{role}": its hosts are those of [fleet.hosts], which is missing')
        if unknown := [name for name in table.hosts if name not in self.hosts]:
            raise ValueError(f'"{role}": there is no host {unknown[0]!r}; there are {", ".join(self.hosts)}')
        if not table.hosts:
            raise ValueError(f'"{role}": hosts names none; remove it for all of {", ".join(self.hosts)}')

    def server(self, role: str) -> ServerTable:
        """The table of a role, or what holds without one."""
        return self.servers.get(role, ServerTable())


def check_roles(table: FleetTable, resources: Collection[str], models: Collection[str]) -> None:
    """Refuse servers of resources and further models that the file does not have, and too many ports.

    Raises ValueError.
    """
    tables = {"resources": ("resources", resources), "model": ("models", models)}
    for role in table.servers:
        kind, _, name = role.partition(".")
        where, names = tables.get(kind, ("", ()))
        if where and role not in ROLES and name not in names:
            there = ", ".join(f"{where}.{one}" for one in sorted(names)) or "none"
            raise ValueError(f'fleet.servers."{role}": there is no table [{where}.{name}]; there are {there}')
    roles = [*ROLES, *(f"resources.{name}" for name in resources), *(f"model.{name}" for name in models)]
    if table.hosts:
        _check_ports(table, [table.server(role) for role in roles])


def _check_ports(table: FleetTable, servers: Collection[ServerTable]) -> None:
    """Each server has one, and one for each worker (see `hosts`)."""
    ports = sum(1 + server.workers for server in servers if server.url is None)
    if (last := table.base_port + ports - 1) > MAX_PORT:
        raise ValueError(
            f"fleet.base_port: servers and workers need the ports {table.base_port} to {last} on each host, and the "
            f"last one is {MAX_PORT}; name a base_port of {MAX_PORT + 1 - ports} or less"
        )
