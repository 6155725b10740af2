"""Errors that cross the wire: a stable code, its HTTP status and what to do about it, in one table.

    ParticipantError            carries a code of the table, a message and details; the same on both sides of the wire
    └── raised by participants, re-raised by the caller's side from the reply's body

The body of an error reply is `{"error": {"code", "message", "hint", "details"}}`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from store import (
    BackendError,
    CheckpointConflict,
    CorruptChain,
    CorruptCheckpoint,
    DuplicateRollout,
    Fenced,
    ForeignObject,
    InvalidInput,
    StoreError,
    UnsupportedVersion,
)


class Code(StrEnum):
    """Stable names of what can go wrong; they never change their meaning."""

    UNAUTHORIZED = "unauthorized"
    INVALID_REQUEST = "invalid_request"
    STALE_EPOCH = "stale_epoch"
    STALE_ROUND = "stale_round"
    STALE_LIFE = "stale_life"
    STALE_CALL = "stale_call"
    LOST_SESSION = "lost_session"
    WRONG_INCARNATION = "wrong_incarnation"
    CHECKPOINT_CONFLICT = "checkpoint_conflict"
    INVALID_PHASE = "invalid_phase"
    RESTART_IN_SCOPE = "restart_in_scope"
    SCOPE_MISMATCH = "scope_mismatch"
    LEASE_EXPIRED = "lease_expired"
    CORRUPT_CHECKPOINT = "corrupt_checkpoint"
    UNSUPPORTED_VERSION = "unsupported_version"
    ADMISSION_CLOSED = "admission_closed"
    STORE_FAILED = "store_failed"
    STEP_FAILED = "step_failed"
    MODEL_FAILED = "model_failed"
    INTERNAL = "internal"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    UNREACHABLE = "unreachable"
    JUDGE_FAILED = "judge_failed"
    COHORT_FAILED = "cohort_failed"
    EXECUTOR_FAILED = "executor_failed"
    AGENT_FAILED = "agent_failed"


STATUS: Mapping[Code, int] = {
    Code.UNAUTHORIZED: 401,
    Code.INVALID_REQUEST: 422,
    Code.STALE_EPOCH: 409,
    Code.STALE_ROUND: 409,
    Code.STALE_LIFE: 409,
    Code.STALE_CALL: 409,
    Code.LOST_SESSION: 410,
    Code.WRONG_INCARNATION: 409,
    Code.CHECKPOINT_CONFLICT: 409,
    Code.INVALID_PHASE: 409,
    Code.RESTART_IN_SCOPE: 409,
    Code.SCOPE_MISMATCH: 409,
    Code.LEASE_EXPIRED: 409,
    Code.CORRUPT_CHECKPOINT: 422,
    Code.UNSUPPORTED_VERSION: 422,
    Code.ADMISSION_CLOSED: 503,
    Code.STORE_FAILED: 502,
    Code.STEP_FAILED: 502,
    Code.MODEL_FAILED: 502,
    Code.INTERNAL: 500,
    Code.DEADLINE_EXCEEDED: 504,
    Code.UNREACHABLE: 502,
    Code.JUDGE_FAILED: 502,
    Code.COHORT_FAILED: 502,
    Code.EXECUTOR_FAILED: 502,
    Code.AGENT_FAILED: 502,
}

CODES_BY_STATUS: Mapping[int, list[Code]] = {
    status: [code for code, of_code in STATUS.items() if of_code == status] for status in sorted(set(STATUS.values()))
}

HINT: Mapping[Code, str] = {
    Code.UNAUTHORIZED: "Send the control token as a bearer token",
    Code.INVALID_REQUEST: "Correct the request; nothing was changed",
    Code.STALE_EPOCH: "Another controller has taken over; stop, or claim a new epoch and adopt",
    Code.STALE_ROUND: "This round is over; start a new one",
    Code.STALE_LIFE: "This life was superseded or retired; its work is over",
    Code.STALE_CALL: "The caller has moved past this boundary; nothing was done",
    Code.LOST_SESSION: "The server restarted without this session; retire the rollout and restore it",
    Code.WRONG_INCARNATION: "The process was restarted; abort the round, then adopt",
    Code.CHECKPOINT_CONFLICT: "This round already wrote something else; commit again in a new round",
    Code.INVALID_PHASE: "Ask for the status, and send what its phase allows",
    Code.RESTART_IN_SCOPE: "Leave the restarts that prepare named out of the scope",
    Code.SCOPE_MISMATCH: "Take the scope again after prepare, from the lives that are really open",
    Code.LEASE_EXPIRED: "The participant has reopened by itself; abort the round and prepare a new one",
    Code.CORRUPT_CHECKPOINT: "Nothing was activated; verify the checkpoint, or name an older one",
    Code.UNSUPPORTED_VERSION: "Use a midflight that knows this format",
    Code.ADMISSION_CLOSED: "A checkpoint is being taken; repeat the same call after Retry-After",
    Code.STORE_FAILED: "The store could not be used; earlier checkpoints are intact",
    Code.STEP_FAILED: "The episode is over without a result; its details say which step failed, and why",
    Code.MODEL_FAILED: "Look at the inference backend; its answer, if it gave one, is in the details",
    Code.INTERNAL: "This is a defect of the server or of a hook; its log has the traceback",
    Code.DEADLINE_EXCEEDED: "Repeat with more time",
    Code.UNREACHABLE: "Start the server again, or look at the way to it; its address is in the message",
    Code.JUDGE_FAILED: "Look at the judge's model server and backend; the rollout has no reward",
    Code.COHORT_FAILED: "Run the whole cohort again under its next group attempt; who is missing has no reward",
    Code.EXECUTOR_FAILED: "Look at this host's compilers and its means of containment; the program was not judged",
    Code.AGENT_FAILED: "Look at the agent's program: how it ended and what it said last are in the message",
}


STORE_ERROR = "store_error"
"""Among the details: which class of the store's errors it was."""


class ParticipantError(Exception):
    """What a participant answers instead of a result."""

    def __init__(self, code: Code, message: str, details: Mapping[str, Any] | None = None) -> None:
        """`details` are JSON values."""
        self.code = code
        self.message = message
        self.details = dict(details or {})
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}. {self.hint}"

    @property
    def status(self) -> int:
        """HTTP status."""
        return STATUS[self.code]

    @property
    def hint(self) -> str:
        """What to do."""
        return HINT[self.code]

    def to_body(self) -> dict[str, Any]:
        """The reply's body."""
        error = {"code": self.code.value, "message": self.message, "hint": self.hint, "details": self.details}
        return {"error": error}

    @classmethod
    def from_body(cls, status: int, body: Any) -> "ParticipantError":
        """The error again, from a reply that may come from anywhere."""
        error = body.get("error") if isinstance(body, dict) else None
        try:
            fields = error if isinstance(error, dict) else {}
            details = fields.get("details")
            known = details if isinstance(details, dict) else None
            return cls(Code(fields["code"]), str(fields.get("message", "")), known)
        except (KeyError, ValueError):
            code = Code.DEADLINE_EXCEEDED if status in (408, 504) else Code.INTERNAL
            return cls(code, f"an answer with status {status} that is not midflight's: {body!r:.200}")


_OF_STORE: tuple[tuple[type[StoreError], Code], ...] = (
    (CorruptCheckpoint, Code.CORRUPT_CHECKPOINT),
    (CorruptChain, Code.CORRUPT_CHECKPOINT),
    (ForeignObject, Code.CORRUPT_CHECKPOINT),
    (UnsupportedVersion, Code.UNSUPPORTED_VERSION),
    (CheckpointConflict, Code.CHECKPOINT_CONFLICT),
    (DuplicateRollout, Code.SCOPE_MISMATCH),
    (Fenced, Code.STALE_EPOCH),
    (InvalidInput, Code.INVALID_REQUEST),
    (BackendError, Code.STORE_FAILED),
)


def from_store(error: StoreError) -> ParticipantError:
    """The wire's form of an error of the store; the details have its class."""
    code = next((code for kind, code in _OF_STORE if isinstance(error, kind)), Code.STORE_FAILED)
    return ParticipantError(code, str(error), {STORE_ERROR: type(error).__name__})
