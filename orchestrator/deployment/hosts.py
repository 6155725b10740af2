"""`[fleet.hosts]`: which server listens where on several hosts, worked out from the file alone, alike on every host.

Each role has a block of ports, the same on each of its hosts: one for the server, and behind it one for each worker.
The blocks follow each other from `base_port` on, in the order of the roles. The order of `[fleet.hosts]` is that in
which the workers of a role are numbered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from participants.serving.addresses import join_address, url_at, worker_port, worker_urls
from participants.serving.settings import ConfigError

from .config import FleetTable

ON = " on "
"""Between a server or worker and its host, in what people are told."""


@dataclass(frozen=True, slots=True)
class Span:
    """A role on its hosts."""

    servers: Mapping[str, str]
    """Host to the address of its server, in the order in which workers are numbered."""
    workers: int
    """Of each server."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all servers, in order."""
        return tuple(self.servers.values())

    def url(self, host: str | None = None) -> str:
        """Where callers on a host reach the role: at its own server, or else at the first."""
        return url_at(self.servers.get(host or "", self.addresses[0]))

    def host_of(self, worker: int) -> str | None:
        """Where the worker of this number is; None for a number that none has."""
        place = worker // self.workers
        return list(self.servers)[place] if 0 <= place < len(self.servers) else None


def spans_of(table: FleetTable, roles: Sequence[str]) -> dict[str, Span]:
    """Each role that is run on hosts of the file; none of those with a url, and none of a file without hosts."""
    spans, port = dict[str, Span](), table.base_port
    for role in roles if table.hosts else ():
        server = table.server(role)
        if server.url is None:
            hosts = {name: at for name, at in table.hosts.items() if server.hosts is None or name in server.hosts}
            spans[role] = Span({name: join_address(at, port) for name, at in hosts.items()}, server.workers)
            port = worker_port(port, server.workers)
    return spans


def check_host(table: FleetTable, spans: Mapping[str, Span], host: str | None) -> None:
    """Raises ConfigError where this is none of the hosts of the file, or one without servers."""
    there = ", ".join(table.hosts)
    if host is None:
        if table.hosts:
            raise ConfigError(f"[fleet.hosts] names {there}: say which of them this machine is, with --host")
    elif not table.hosts:
        raise ConfigError(f"--host {host}: the file has no [fleet.hosts], so all of its servers run on one host")
    elif host not in table.hosts:
        raise ConfigError(f"--host {host}: [fleet.hosts] has no such host; there are {there}")
    elif not listens_on(spans, host):
        raise ConfigError(f"--host {host}: no server of the file runs there; see hosts in [fleet.servers]")


def listens_on(spans: Mapping[str, Span], host: str) -> dict[str, str]:
    """Role to address of the servers that a host runs."""
    return {role: span.servers[host] for role, span in spans.items() if host in span.servers}


def urls_from(spans: Mapping[str, Span], host: str | None) -> dict[str, str]:
    """Role to where callers on a host reach it."""
    return {role: span.url(host) for role, span in spans.items()}


def names_by_url(spans: Mapping[str, Span]) -> dict[str, str]:
    """URL of each server and worker to what people are told of it."""
    names = dict[str, str]()
    for role, span in spans.items():
        names |= {url_at(listen): named(role, host) for host, listen in span.servers.items()}
        urls = worker_urls(span.addresses, span.workers)
        names |= {url: named(f"{role}/w{number}", span.host_of(number)) for number, url in enumerate(urls)}
    return names


def host_of(spans: Mapping[str, Span], member: str) -> str | None:
    """On which host `<role>/w<number>` is; None where the file does not say it."""
    role, _, process = member.partition("/")
    number = process.removeprefix("w")
    return spans[role].host_of(int(number)) if role in spans and number.isdecimal() else None


def named(role: str, host: str | None) -> str:
    """A server as people are told of it."""
    return f"{role}{ON}{host}" if host else role
