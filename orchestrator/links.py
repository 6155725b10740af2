"""Links: how coordination reaches the control plane of one participant process, in this process or over HTTP."""

from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from participants import (
    Abort,
    Activate,
    Adopt,
    Adopted,
    Capabilities,
    Commit,
    Committed,
    ControlPlane,
    Done,
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
