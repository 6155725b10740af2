"""Asking a server who it is, with the control token of its fleet."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import anyio
import httpx

from participants import CONTROL_PREFIX

from ..links import http_client
from .failures import NO_PARTICIPANT, OTHER_TOKEN, SILENT, UNREACHED
from .hosts import named

ASK_TIMEOUT_S = 10.0
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class At:
    """A server that is to be somewhere."""

    role: str
    url: str
    host: str | None = None
    """Of several."""

    @property
    def name(self) -> str:
        """As people are told of it."""
        return named(self.role, self.host)


async def problem_with(client: httpx.AsyncClient, role: str, url: str) -> str | None:
    """What is wrong with the server at a URL, to say behind its name; None for the one that it should be."""
    try:
        with anyio.fail_after(ASK_TIMEOUT_S):
            response = await client.get(f"{url}{CONTROL_PREFIX}/capabilities")
    except TimeoutError:
        return f"at {url} {SILENT} {ASK_TIMEOUT_S:g} s"
    except httpx.HTTPError as error:
        return f"at {url} {UNREACHED} ({type(error).__name__})"
    if response.status_code in (401, 403):
        return f"at {url} {OTHER_TOKEN}"
    try:
        found = response.raise_for_status().json()
        kind, name = found["kind"], found["name"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return f"at {url} {NO_PARTICIPANT} with a control plane: it answered {response.status_code}"
    return None if f"{kind}.{name}" == role else f"at {url} is {kind}.{name}"


async def problems_with(servers: Iterable[At], token: str, within_s: float = 0.0) -> dict[str, str]:
    """Name to what is wrong with a server; those with a problem are asked again for so long."""
    deadline = time.monotonic() + within_s
    wrong: dict[str, str] = {}

    async def ask(client: httpx.AsyncClient, server: At) -> None:
        while problem := await problem_with(client, server.role, server.url):
            if time.monotonic() >= deadline:
                wrong[server.name] = problem
                return
            await anyio.sleep(_PAUSE_S)

    async with http_client(token) as client, anyio.create_task_group() as group:
        for server in servers:
            group.start_soon(ask, client, server)
    return wrong
