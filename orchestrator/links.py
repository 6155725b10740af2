"""Links: how coordination reaches the control plane of one participant process, in this process or over HTTP."""

from typing import Any, Protocol, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

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
        """One control operation. Raises ParticipantError, and ConnectionError where nobody answers."""


class LocalLink:
    """A control plane in this process."""

    def __init__(self, plane: ControlPlane) -> None:
        """The plane must be running."""
        self._plane = plane

    def __repr__(self) -> str:
        c = self._plane.capabilities()
        return f"<LocalLink {c.kind}.{c.name}/{c.process}>"

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
        return await self._request("GET", "capabilities", None, Capabilities)

    async def status(self) -> Status:
        """Where it stands."""
        return await self._request("GET", "status", None, Status)

    async def send(self, message: Message, answer: type[Answer]) -> Answer:
        """One control operation."""
        return await self._request("POST", NAMES[type(message)], message.model_dump_json(), answer)

    async def _request(self, method: str, operation: str, body: str | None, answer: type[Answer]) -> Answer:
        try:
            response = await self._client.request(method, f"{self._url}/{operation}", content=body)
        except httpx.HTTPError as error:
            raise ConnectionError(f"{self._url}/{operation}: {error!r}") from error
        if not response.is_success:
            raise ParticipantError.from_body(response.status_code, _json(response))
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            raise ParticipantError.from_body(response.status_code, response.text) from error


def http_client(token: str) -> httpx.AsyncClient:
    """A client for control calls; their deadlines are the caller's scopes. Raises ValueError for what is no token."""
    if not token or " " in token or not (token.isascii() and token.isprintable()):
        raise ValueError("a control token is printable ASCII without spaces")  # Never the token itself.
    return httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=None)


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text
