"""Addresses of servers: `host:port`, `[host]:port` for IPv6, and those of a role that spans several servers.

A span is the addresses of all servers of one role, in an order that all of them have. Its workers are numbered through:
those of the first server first. Worker k of a server listens at the server's port + 1 + k, so that whoever knows the
span and the number of workers knows the address of each of them, and asks nobody.
"""

import ipaddress
import re
from collections.abc import Sequence
from itertools import pairwise
from urllib.parse import urlsplit

MAX_PORT = 65_535
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[host]:port` for IPv6; port 0 takes a free one. Raises ValueError."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:  # A port that is no number, or brackets around what is no IPv6 address.
        host = port = parts = None
    if parts is None or not host or port is None or parts.path or parts.query or parts.fragment or "@" in text:
        raise ValueError(f"{text!r} is no host:port, such as 127.0.0.1:8000; port 0 takes a free one")
    if is_any(host):
        raise ValueError(f"{text!r} is no address to be called at; name the one at which others reach this host")
    return host, port


def same_host(host: str) -> str:
    """A host in the one form of all that mean it: IPv6 has many for each address."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def host_in(text: str) -> str:
    """A host without a port, IPv6 with brackets or without, in the form of `same_host`. Raises ValueError."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        found = ipaddress.ip_address(bare)
    except ValueError:
        if not _NAME.fullmatch(bare) or bare.rpartition(".")[2].isdecimal():
            raise ValueError(f"{text!r} is no address of a host, such as 10.0.0.1, fd00::1 or node-1") from None
        return bare.lower()
    if found.is_unspecified or "%" in bare:
        raise ValueError(f"{text!r} is no address to be called at; name the one at which others reach this host")
    return str(found)


def is_loopback(host: str) -> bool:
    """Whether it means the host that says it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_any(host: str) -> bool:
    """Whether it stands for every address of a host, and so is none that others can call."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url_at(listen: str) -> str:
    """Where callers reach a server that listens there. Raises ValueError."""
    return f"http://{join_address(*split_address(listen))}"


def worker_port(port: int, k: int) -> int:
    """Where worker k of a server at a port listens, if the server is one of a span."""
    return port + 1 + k


def worker_urls(span: Sequence[str], workers: int) -> tuple[str, ...]:
    """The private URL of each worker of a role, in the order of their numbers."""
    servers = map(split_address, span)
    return tuple(f"http://{join_address(host, worker_port(port, k))}" for host, port in servers for k in range(workers))


def place_in(span: Sequence[str], listen: str) -> int:
    """Which of the servers of a span listens there. Raises ValueError for none of them."""
    places = [_key(address) for address in span]
    if _key(listen) not in places:
        raise ValueError(f"span is {', '.join(span)}, and {listen}, where this server listens, is not among them")
    return places.index(_key(listen))


def check_span(span: Sequence[str], workers: int) -> None:
    """Raises ValueError where the servers could not all be there, or not be told apart."""
    for address in span:
        host, port = split_address(address)
        last = worker_port(port, workers - 1)
        if port == 0:
            raise ValueError(f"span: {address} has no port of its own; all servers of a role must know each other's")
        if "%" in host:
            raise ValueError(f"span: {address} is another address on each host; name one that means the same on all")
        if last > MAX_PORT:
            raise ValueError(f"span: {address} with {workers} workers needs the ports to {last}; there are {MAX_PORT}")
    for (host, port), (other, higher) in pairwise(sorted(map(_key, span))):
        at, last = join_address(host, port), worker_port(port, workers - 1)
        if (host, port) == (other, higher):
            raise ValueError(f"span names {at} twice")
        if host == other and last >= higher:
            raise ValueError(f"span: {at} with {workers} workers has the ports to {last}; another server has {higher}")


def _key(address: str) -> tuple[str, int]:
    host, port = split_address(address)
    return same_host(host), port
