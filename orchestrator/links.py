"""Links: how coordination reaches the control plane of one participant process, in this process or over HTTP."""

from typing import Any, Protocol, TypeVar

import httpx
from pydantic import BaseModel

from participants import (
    CONTROL_PREFIX,
    Abort,
    Activate,
    Adopt,
    Adopted,
    Capabilities,
    Commit,
    Committed,
    ControlPlane,
    Done,
    ParticipantError,
    Prepare,
    Prepared,
    Renew,
    Renewed,
    Resume,
    Retire,
    Retired,
    Stage,
    Status,
)

Answer = TypeVar("Answer", bound=BaseModel)

OPERATIONS: dict[type[BaseModel], tuple[str, type[Any]]] = {
    Adopt: ("adopt", Adopted),
    Prepare: ("prepare", Prepared),
    Commit: ("commit", Committed),
    Renew: ("renew", Renewed),
    Resume: ("resume", Done),
    Abort: ("abort", Done),
    Stage: ("stage", Done),
    Activate: ("activate", Done),
    Retire: ("retire", Retired),
}
"""Each message, the operation that it asks for, and the answer's type."""


class Link(Protocol):
    """One participant process."""

    async def capabilities(self) -> Capabilities:
        """What it is."""

    async def status(self) -> Status:
        """Where it stands."""

    async def send(self, message: BaseModel, answer: type[Answer]) -> Answer:
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

    async def send(self, message: BaseModel, answer: type[Answer]) -> Answer:
        """One control operation."""
        operation, kind = OPERATIONS[type(message)]
        result = await getattr(self._plane, operation)(message)
        if not isinstance(result, answer):
            raise TypeError(f"{operation} answers {kind.__name__} and not {answer.__name__}")
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

    async def send(self, message: BaseModel, answer: type[Answer]) -> Answer:
        """One control operation."""
        operation, _ = OPERATIONS[type(message)]
        return answer.model_validate_json(await self._request("POST", operation, message.model_dump_json()))

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
