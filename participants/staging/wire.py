"""Messages of the staging routes: validated once, at the border; unknown fields are refused.

    POST /midflight/v1/staging/stage     Stage  -> StageAnswer     freeze and stage many calls, one answer for each
    POST /midflight/v1/staging/begin     Begin  -> BeginAnswer     check a cut as the worker would, generate nothing
    POST /midflight/v1/staging/pin       Pin    -> PinAnswer       keep keys under a checkpoint
    POST /midflight/v1/staging/unpin     Unpin  -> UnpinAnswer     the checkpoint was pruned, or never published
    POST /midflight/v1/staging/sweep     Sweep  -> SweepAnswer     remove what is old and not pinned
    GET  /midflight/v1/staging/status           -> StagingStatus   counts of this process; `?run=` adds what is pinned

An error is `{"error": {"code", "message", "hint", "details"}}`; of a refused cut `details.reason` is a `Reason`.
"""

from typing import Annotated

from pydantic import Field

from ..wire import LifeField, Message, RoundField
from .limits import MAX_CALL_CHARS
from .refusals import Reason

STAGING_PREFIX = "/midflight/v1/staging"

CallText = Annotated[str, Field(min_length=1, max_length=MAX_CALL_CHARS)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
KeyText = Annotated[str, Field(min_length=1, max_length=100)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
RunName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class Source(Message):
    """Whose generation."""

    life: LifeField
    call: CallText


class StageItem(Source):
    """One call to be staged."""

    count: Count | None = None
    """The first so many tokens of its output, as many as the caller has read; None for all that are there."""
    digest: Digest | None = None
    """Of their ids, where the caller knows them: a cut that differs is refused."""


class Stage(Message):
    """Many at once: all are frozen at the same moment."""

    items: tuple[StageItem, ...]


class StagedItem(Source):
    """One answer, at the place of its item: a key, or a reason."""

    key: KeyText | None = None
    count: Count = 0
    digest: str = ""
    ended: bool = False
    """The generation had ended when it was frozen."""
    reason: Reason | None = None
    message: str = ""


class StageAnswer(Message):
    """In the order of the items."""

    items: tuple[StagedItem, ...]


class StagedPrefix(Message):
    """`staged` in the body of `/v1/completions`: the prefix to continue; `prompt` then is the prompt alone."""

    key: KeyText
    count: Count
    digest: Digest
    life: LifeField | None = None
    """Whose generation was cut, as the caller has it; checked if given."""
    call: CallText | None = None


class Begin(StagedPrefix):
    """Check one cut."""

    prompt_count: Count
    prompt_digest: Digest
    by: Source | None = None
    """Who will continue it."""
    max_tokens: Count | None = None
    return_ids: bool = False


class BeginAnswer(Message):
    """It may be continued."""

    life: LifeField
    call: CallText
    count: Count
    digest: Digest
    ids: tuple[int, ...] | None = None
    """The ids of the prefix, if asked for."""


class Pin(Message):
    """Keep these keys until the checkpoint is unpinned."""

    run: RunName
    checkpoint: RoundField
    keys: tuple[KeyText, ...]


class PinAnswer(Message):
    """The pin is durable."""

    pinned: int


class Unpin(Message):
    """The checkpoint is gone."""

    run: RunName
    checkpoint: RoundField


class UnpinAnswer(Message):
    """How many pins there were."""

    unpinned: int


class Sweep(Message):
    """Remove what is old and not pinned."""

    older_than_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class SweepAnswer(Message):
    """What was removed."""

    packs: int
    bytes: int
    leftovers: int
    kept: int


class StagingStatus(Message):
    """Where this worker process stands."""

    store: str
    context_length: int
    active: int
    """Calls in progress that can be staged."""
    ended: int
    """Calls that have ended and can still be staged."""
    counts: dict[str, int]
    pinned: tuple[RoundField, ...] | None = None
    """Checkpoints of the run that was asked for which have pins; more than are published, where a commit has failed."""
