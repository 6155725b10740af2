"""Why a cut is not staged, not pinned or not continued: stable names, one error that carries them.

ParticipantError
└── StagingRefused      `invalid_request`; `details` has `reason`, one of `Reason`; nothing was changed or generated
"""

from enum import StrEnum

from ..errors import Code, ParticipantError


class Reason(StrEnum):
    """What is wrong with one item or one cut. The names never change their meaning."""

    NOT_ACTIVE = "not_active"
    """This worker generates nothing for that life and call, and did not a moment ago."""
    TOO_FEW = "too_few"
    """The buffer holds fewer tokens than are to be staged."""
    EMPTY = "empty"
    """There is no token to stage."""
    TOO_LONG = "too_long"
    """More tokens than a prefix may have, or than the context leaves room for."""
    STORE_FAILED = "store_failed"
    """The token store could not be used; the message says how."""
    UNKNOWN_KEY = "unknown_key"
    """No staged tokens under that key: never staged here, or swept."""
    SWEPT = "swept"
    """The tokens are being removed right now, because they were old and nothing had pinned them."""
    DAMAGED = "damaged"
    """What stands under the key is not what was written."""
    WRONG_IDENTITY = "wrong_identity"
    """The tokens were generated for another life or call than the cut says."""
    OUT_OF_ORDER = "out_of_order"
    """Who continues is an older life than who generated, or the prompt already has tokens after its own end."""
    WRONG_PROMPT = "wrong_prompt"
    """The tokens were generated after another prompt."""
    WRONG_COUNT = "wrong_count"
    WRONG_DIGEST = "wrong_digest"
    UNREACHABLE = "unreachable"
    """Made up by the client: the worker did not answer, or not as a worker does."""
    DEADLINE = "deadline"
    """Made up by the client: there was no time left."""


class StagingRefused(ParticipantError):
    """A cut that cannot be pinned or continued as it is."""

    def __init__(self, reason: Reason, message: str) -> None:
        """`message` says which fact differs, and both values where they are short."""
        super().__init__(Code.INVALID_REQUEST, message, {"reason": reason.value})
        self.reason = reason
