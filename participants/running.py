"""What goes on in one round at a participant: the operation that can be cancelled, and the way to the standstill."""

import anyio

from .errors import Code, ParticipantError


def ended_meanwhile() -> ParticipantError:
    """What an operation is answered whose round is over."""
    return ParticipantError(Code.STALE_ROUND, "the round was aborted, or its lease ran out, meanwhile")


class Running:
    """The operation that goes on."""

    def __init__(self) -> None:
        """Cancel `scope`, and `done` is set once it has stopped."""
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()


class Parking:
    """The way to the standstill of one round."""

    def __init__(self, began: float = 0.0) -> None:
        """`began` is when admission was closed, on the clock of the control plane."""
        self.began = began
        self.done = anyio.Event()
        self.error: ParticipantError | None = None
