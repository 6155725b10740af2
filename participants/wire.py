"""Messages of the control plane: validated once, at the border; unknown fields are refused.

Every control call carries the run, the epoch, the floor and the incarnation that the controller knows. Times are
relative and in seconds, never wall-clock instants: hosts' clocks differ.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

from store import CheckpointId, InvalidName, Life, ParticipantRef, Ref

from .exact import check_exact
from .fences import Floor

MAX_NUMBER = 10**18 - 1
"""Of epochs, dispatches and whatever else is counted: the largest that lives and checkpoints can be written with."""
MAX_SECONDS = 7 * 24 * 3600.0
"""A week: of leases and timeouts. A lease without an end would hold back admission for ever."""


def _parse_life(value: Any) -> Life:
    try:
        return value if isinstance(value, Life) else Life.parse(_text(value))
    except InvalidName as error:
        raise ValueError(error.message) from error


class Lives(tuple[Life, ...]):
    """Lives for many messages: looked through once, and written once for all of them."""

    @cached_property
    def sound(self) -> bool:
        """Whether they are lives and nothing else."""
        return all(type(life) is Life for life in self)

    @cached_property
    def json(self) -> bytes:
        """As they stand in each message."""
        return orjson.dumps([str(life) for life in self])


def _share_lives(value: Any, check: ValidatorFunctionWrapHandler) -> Lives:
    return value if isinstance(value, Lives) and value.sound else Lives(check(value))


def _parse_round(value: Any) -> CheckpointId:
    try:
        return value if isinstance(value, CheckpointId) else CheckpointId.parse(_text(value))
    except InvalidName as error:
        raise ValueError(error.message) from error


def _parse_floor(value: Any) -> Floor:
    if isinstance(value, Floor):
        return value
    if isinstance(value, list | tuple) and len(value) == 2 and all(type(n) is int and n in _NUMBERS for n in value):
        return Floor(*value)
    raise ValueError("a floor is [epoch, n], each of at most 18 digits")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it is written as a string")
    return value


def _as_sent(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Of what has come as JSON: NaN and integers of more than 64 bits would go on as something else, or not at all."""
    if info.mode == "json":
        try:
            check_exact(value, "it")
        except TypeError as error:
            raise ValueError(str(error)) from error
    return value


def _write_floor(floor: Floor) -> list[int]:
    return [floor.epoch, floor.n]


_NUMBERS = range(MAX_NUMBER + 1)
_LIFE_SCHEMA = {"type": "string", "description": "<rollout_id>/<epoch>.<attempt>#<n>"}
_ROUND_SCHEMA = {"type": "string", "description": "<epoch>.<k>"}
_FLOOR_SCHEMA = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    "minItems": 2,
    "maxItems": 2,
    "description": "[epoch, n]",
}

LifeField = Annotated[Life, PlainValidator(_parse_life), PlainSerializer(str), WithJsonSchema(_LIFE_SCHEMA)]
LivesField = Annotated[tuple[LifeField, ...], WrapValidator(_share_lives)]
RoundField = Annotated[CheckpointId, PlainValidator(_parse_round), PlainSerializer(str), WithJsonSchema(_ROUND_SCHEMA)]
FloorField = Annotated[
    Floor, PlainValidator(_parse_floor), PlainSerializer(_write_floor), WithJsonSchema(_FLOOR_SCHEMA)
]
Natural = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Epoch = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
_PAIR_SCHEMA = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    "minItems": 2,
    "maxItems": 2,
}
Pair = Annotated[tuple[Natural, Natural], WithJsonSchema(_PAIR_SCHEMA)]
"""As programs that read the description know pairs, too."""
JSONField = Annotated[dict[str, Any], AfterValidator(_as_sent)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]


class Message(BaseModel):
    """Base of what crosses the wire."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    def written(self) -> list[bytes]:
        """As JSON, in pieces: its lives are one that all messages share which have them."""
        shared = {name: value for name, value in self if isinstance(value, Lives)}
        rest = self.model_dump_json(exclude=set(shared)).encode().removesuffix(b"}")
        pieces = [rest]
        for name, lives in shared.items():
            comma = b"" if pieces == [b"{"] else b","
            pieces += [comma + f'"{name}":'.encode(), lives.json]
        return [*pieces, b"}"]


class ControlCall(Message):
    """What every control call carries."""

    run: str
    epoch: Epoch
    floor: FloorField = Field(default_factory=Floor)
    incarnation: str
    """Of the process that is addressed; another process refuses."""


class RoundCall(ControlCall):
    """A call of one checkpoint or restore."""

    round: RoundField


class Adopt(Message):
    """Record a newly claimed epoch and end what lower ones have open."""

    run: str
    epoch: Epoch
    floor: FloorField = Field(default_factory=Floor)
    incarnation: str | None = None
    """None where the controller does not know the process yet."""


class Prepare(RoundCall):
    """Close admission and park the work."""

    timeout_s: Seconds
    lease_s: Seconds
    """Longer than the timeout."""


class Commit(RoundCall):
    """Write the scope's records."""

    scope: LivesField
    parent: Ref | None
    """The head that this checkpoint continues."""
    left_out: LivesField = Lives()
    """Restarts and dropped: whoever has a dispatched, undelivered life that stands nowhere refuses."""


class Renew(RoundCall):
    """Extend the lease."""

    lease_s: Seconds


class Resume(RoundCall):
    """Reopen admission and let parked work go on."""


class Abort(RoundCall):
    """Cancel the round's work; reopen what was running, discard what a restore brought."""


class Stage(RoundCall):
    """Read and check one participant's share of a checkpoint; nothing becomes active."""

    checkpoint: Ref
    scope: LivesField
    """The lives, as the checkpoint has them, that are to be restored."""
    shard: Pair = (0, 1)
    """Worker k of n: it takes the rollouts that `participants.routing.worker_of` gives it."""
    participants: tuple[str, ...] | None = None
    """`<kind>.<name>` of all that take part, of which the checkpoint must name no other; None to leave that open."""


class Activate(RoundCall):
    """Install what was staged."""


class Retire(ControlCall):
    """Stop these lives, wait until they have stopped, free their state."""

    lives: LivesField
    timeout_s: Seconds


class Dispatched(Message):
    """One episode to be run."""

    life: LifeField
    row: JSONField


class Submit(ControlCall):
    """Begin these episodes, or continue what a restore brought of them; a repeat joins the running ones."""

    episodes: tuple[Dispatched, ...]


class Refused(Message):
    """An episode that was not begun, and why."""

    life: LifeField
    code: str
    message: str
    terminal: bool
    """Whether another try must end the same way."""


class Submitted(Message):
    """The answer to submit: all others run."""

    refused: tuple[Refused, ...] = ()


class Release(ControlCall):
    """The results of these lives are durable elsewhere: free and fence the lives."""

    lives: LivesField


class Work(ControlCall):
    """Ask what lives need not do again: of these rollouts, or of all."""

    rollouts: tuple[str, ...] | None = None


class Worked(Message):
    """The answer to work, by rollout: what is behind the boundary of its live life, or of what a restore brought.

    An environment knows it of rollouts past their activation, and then it is all. Else the agent's counts, and those of
    the model where they are of the same boundary: `participants.work.joined` puts them together.
    """

    lives: dict[str, Pair]
    """Model calls, and tokens that they generated."""
    boundaries: dict[str, int] = {}
    """At an agent the boundary that comes next, at a model the one whose replies and beginnings are kept."""


class Results(ControlCall):
    """Send finished episodes as they come: a stream of lines, which ends when a higher epoch is adopted."""

    after: Natural = 0
    """The number up to which the reader has all of them; 0 for one that has none of this incarnation."""


class Began(Message):
    """The first line of a stream of results."""

    incarnation: str
    epoch: int


class Finished(Message):
    """A finished episode; exactly one of `row` and `failure`. Sent to every new reader until it is released."""

    n: int
    """Rises from 1 in each incarnation."""
    life: LifeField
    row: JSONField | None = None
    failure: JSONField | None = None
    """`class`, `message`, `stage`, `terminal`."""
    active_s: float = 0.0

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.row is None) == (self.failure is None):
            raise ValueError("a finished episode has either a row or a failure")
        return self


class Beat(Message):
    """A sign of life where nothing has finished for a while."""

    beat: Literal[True] = True


class Blocker(Message):
    """An in-flight episode that a prepare is waiting for."""

    life: LifeField
    participant: str
    """`<kind>.<name>`."""
    step: str
    reason: str


class Modes(Message):
    """What a participant's code can do, as its class declares."""

    checkpoint_mode: Literal["exported", "stateless", "restart"] = "exported"
    checkpoint_verify: Literal["wait", "replay"] = "wait"


class Capabilities(Message):
    """What this participant is."""

    kind: str
    name: str
    process: str
    incarnation: str
    run: str | None
    epoch: int
    modes: Modes
    software: dict[str, str]
    worker: Annotated[int, Field(ge=0)] = 0
    """Which of the server's processes this is."""
    workers: Annotated[int, Field(ge=1)] = 1
    """How many the server has; `participants.routing` says which rollouts are whose."""
    urls: tuple[str, ...] = ()
    """Where each of them can be reached, in order; empty where this process is the only way to itself."""


class Prepared(Message):
    """The answer to prepare: parked, or what is still in the way."""

    prepared: bool
    blockers: tuple[Blocker, ...] = ()
    """The oldest few."""
    blocker_count: int = 0
    """All of them."""
    restarts: tuple[LifeField, ...] = ()
    """Complete: lives that this participant cannot capture."""


class PairTally(Message):
    """Count and order-free digest (`participants.tally`) over what this participant shares with another one."""

    kind: str
    name: str
    count: int
    digest: str


class Committed(Message):
    """The answer to commit."""

    manifest: ParticipantRef
    bytes_written: int
    tallies: tuple[PairTally, ...]


class Renewed(Message):
    """The answer to renew."""

    lease_s: float


class Done(Message):
    """The answer to resume, abort, stage and activate."""

    phase: str
    count: int = 0


class Adopted(Message):
    """The answer to adopt: what goes on here, and what it needs to be whole."""

    incarnation: str
    lives: tuple[LifeField, ...]
    """That may act here."""
    dispatched: tuple[LifeField, ...] = ()
    """Of them those whose episode began here."""
    needs: dict[str, tuple[LifeField, ...]] = {}
    """By role, lives that have something there which they cannot go on without."""
    brought: tuple[LifeField, ...] = ()
    """Restored records that no life has taken up; each as its checkpoint has it."""
    lost: tuple[LifeField, ...] = ()
    """Of `dispatched` those that ended because a participant was lost, and through no fault of their own."""


class Retired(Message):
    """The answer to retire."""

    not_stopped: tuple[LifeField, ...] = ()


class Status(Message):
    """Where a participant stands, for people and tests."""

    kind: str
    name: str
    process: str
    incarnation: str
    phase: str
    epoch: int
    round: RoundField | None
    lease_left_s: float | None
    counts: dict[str, int]
    blockers: tuple[Blocker, ...]
    blocker_count: int
    last_errors: tuple[str, ...]
    store_requests: dict[str, int] = {}
    """That this process has made so far, by verb; several that one call sends count as one."""


OPERATIONS: Mapping[str, tuple[type[Message], type[Message]]] = {
    "adopt": (Adopt, Adopted),
    "prepare": (Prepare, Prepared),
    "commit": (Commit, Committed),
    "renew": (Renew, Renewed),
    "resume": (Resume, Done),
    "abort": (Abort, Done),
    "stage": (Stage, Done),
    "activate": (Activate, Done),
    "retire": (Retire, Retired),
    "submit": (Submit, Submitted),
    "release": (Release, Done),
    "work": (Work, Worked),
}
"""Every operation that is sent, its message and its answer; capabilities and status are asked for beside them."""

RESULTS = "results"
"""The operation that answers with a stream: `Began`, then `Finished` and `Beat`, one JSON object a line."""
BEAT_S = 5.0
"""Between two lines of a stream at most."""
INFRASTRUCTURE = frozenset({"session_lost", "unreachable"})
"""Failure classes of episodes that ended because a participant was lost."""
