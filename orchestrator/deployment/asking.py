"""Asking a server who it is, with the control token of its fleet."""

import time
from collections.abc import Mapping

import anyio
import httpx

from participants import CONTROL_PREFIX

from ..links import http_client
from .failures import NO_PARTICIPANT, OTHER_TOKEN, SILENT, UNREACHED

ASK_TIMEOUT_S = 10.0
_PAUSE_S = 0.2


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


async def problems_with(urls: Mapping[str, str], token: str, within_s: float = 0.0) -> dict[str, str]:
    """Role to what is wrong with its server; those with a problem are asked again for so long."""
    deadline = time.monotonic() + within_s
    wrong: dict[str, str] = {}

    async def ask(client: httpx.AsyncClient, role: str, url: str) -> None:
        while problem := await problem_with(client, role, url):
            if time.monotonic() >= deadline:
                wrong[role] = problem
                return
            await anyio.sleep(_PAUSE_S)

    async with http_client(token) as client, anyio.create_task_group() as group:
        for role, url in urls.items():
            group.start_soon(ask, client, role, url)
    return wrong
