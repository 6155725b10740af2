"""Links: how coordination reaches the control plane of one participant process, in this process or over HTTP."""

from typing import Any, Protocol, TypeVar

import httpx
from pydantic import BaseModel

from participants import CONTROL_PREFIX, OPERATIONS, Capabilities, ControlPlane, Message, ParticipantError, Status

Answer = TypeVar("Answer", bound=BaseModel)

NAMES = {message: name for name, (message, _) in OPERATIONS.items()}
"""Each message's operation."""


class Link(Protocol):
    """One participant process."""

    async def capabilities(self) -> Capabilities:
        """What it is."""

    async def status(self) -> Status:
        """Where it stands."""

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        """One control operation. Raises ParticipantError."""


class LocalLink:
    """A control plane in this process."""

    def __init__(self, plane: ControlPlane) -> None:
        """The plane must be running."""
        self._plane = plane

    async def capabilities(self) -> Capabilities:
        """What it is."""
        return self._plane.capabilities()

    async def status(self) -> Status:
        """Where it stands."""
        return self._plane.status()

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        """One control operation."""
        result = await getattr(self._plane, NAMES[type(message)])(message)
        if not isinstance(result, answer):
            raise TypeError(f"{NAMES[type(message)]} does not answer {answer.__name__}")
        return result


class HttpLink:
    """A control plane behind HTTP."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        """`url` is the server's root; `client` carries the bearer token (see `http_client`)."""
        self._url = url.rstrip("/") + CONTROL_PREFIX
        self._client = client

    def __repr__(self) -> str:
        return f"<HttpLink {self._url}>"

    async def capabilities(self) -> Capabilities:
        """What it is."""
        return Capabilities.model_validate_json(await self._request("GET", "capabilities", None))

    async def status(self) -> Status:
        """Where it stands."""
        return Status.model_validate_json(await self._request("GET", "status", None))

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        """One control operation."""
        body = message.model_dump_json()
        return answer.model_validate_json(await self._request("POST", NAMES[type(message)], body))

    async def _request(self, method: str, operation: str, body: str | None) -> bytes:
        response = await self._client.request(method, f"{self._url}/{operation}", content=body)
        if response.is_success:
            return response.content
        raise ParticipantError.from_body(response.status_code, _json(response))


def http_client(token: str) -> httpx.AsyncClient:
    """A client for control calls; their deadlines are the caller's scopes."""
    return httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=None)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text
