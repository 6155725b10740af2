"""What the backend refuses.

BackendRefusal
├── RequestRefused      the request; the client gets it as an OpenAI error body
└── IllegalCallEvent    an event that a call in this state cannot have; a defect of ours
"""


class BackendRefusal(Exception):
    """Base of everything raised here on purpose."""


class RequestRefused(BackendRefusal):
    """The request cannot be served as it is."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        """`message` says what is wrong with which field."""
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code

    def body(self) -> dict[str, object]:
        """As OpenAI's API says it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class IllegalCallEvent(BackendRefusal):
    """A call in this state cannot have this event; nothing was changed."""

    def __init__(self, number: int, state: str, event: str) -> None:
        """Names the call, its state and the event."""
        super().__init__(f"call {number} is {state}: {event} is not possible")
