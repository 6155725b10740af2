"""What a chain entry says, and what the chain says after it: pure, and the only place with these rules.

The chain is a numbered sequence of entries, each created exclusively; its order is the only time the store knows. An
entry carries one action and the state after it, so the last entry alone is the state:

    action        who      what it decides
    claim         controller  a new, higher epoch, and the checkpoint that this epoch continues from (its base)
    seal          controller  the length of each output segment of lower epochs; rows past it do not count
    publication   controller  from here on the checkpoint exists, and it is the head
    import        operator    a checkpoint copied in from another root exists; it is not the head
    deletion      operator    these checkpoints are about to be deleted; they no longer exist
    deletion_end  operator    a deletion is complete

The head is the last publication after the last claim, else that claim's base. `refuse` says why an action may not be
appended to a state; `advance` gives the state after it.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, WithJsonSchema

from .errors import (
    CheckpointConflict,
    CheckpointDeleted,
    Fenced,
    InvalidInput,
    InvalidName,
    NoCheckpoint,
    StoreError,
)
from .layout import SHA256_RULE, CheckpointId
from .sealed import FORMAT_MAJOR, FORMAT_MINOR


def _parse_checkpoint(value: Any) -> CheckpointId:
    """From its one written form, which is a text."""
    if isinstance(value, CheckpointId):
        return value
    if not isinstance(value, str):
        raise ValueError("a checkpoint is written as a string")
    try:
        return CheckpointId.parse(value)
    except InvalidName as error:
        raise ValueError(error.message) from error


_CHECKPOINT_SCHEMA = {"type": "string", "description": "<epoch>.<k>"}
Checkpoint = Annotated[
    CheckpointId, PlainValidator(_parse_checkpoint), PlainSerializer(str), WithJsonSchema(_CHECKPOINT_SCHEMA)
]
Digest = Annotated[str, Field(pattern=f"^{SHA256_RULE}$")]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Positive = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]


class Document(BaseModel):
    """Base of what is stored: immutable, strictly typed; fields that a newer minor version added are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", arbitrary_types_allowed=True)


class Ref(Document):
    """Names one published or imported checkpoint and pins its content."""

    checkpoint: Checkpoint
    digest: Digest
    """Of the aggregate manifest."""
    run_id: Token
    """The run that wrote it; another than the root's own for an import."""


class Claim(Document):
    """A controller takes the run; the entry's epoch is the new one."""

    kind: Literal["claim"] = "claim"
    base: Ref | None


class Segment(Document):
    """One append-only output file of a lower epoch."""

    name: str
    length: Natural
    """Bytes that count."""
    digest: Digest | None = None
    """sha256 of those bytes, where the writer knew it."""


class Seal(Document):
    """Fixes what lower epochs have delivered."""

    kind: Literal["seal"] = "seal"
    segments: tuple[Segment, ...]


class Publication(Document):
    """A checkpoint exists from here on."""

    kind: Literal["publication"] = "publication"
    ref: Ref


class Import(Document):
    """A checkpoint copied from another root exists from here on."""

    kind: Literal["import"] = "import"
    ref: Ref
    needs: tuple[Checkpoint, ...] = ()
    """Other checkpoints whose blobs it names."""


class Deletion(Document):
    """These checkpoints do not exist from here on, and what they alone own is about to go.

    Names every id of which anything will be deleted, blobs and leftovers of earlier deletions included.
    """

    kind: Literal["deletion"] = "deletion"
    checkpoints: tuple[Checkpoint, ...]


class DeletionEnd(Document):
    """Everything that the plan in entry `plan` named is gone."""

    kind: Literal["deletion_end"] = "deletion_end"
    plan: Positive


Action = Claim | Seal | Publication | Import | Deletion | DeletionEnd


class Plan(Document):
    """A deletion that has begun and not ended."""

    n: Positive
    """The entry that planned it."""
    checkpoints: tuple[Checkpoint, ...]


class State(Document):
    """The chain summed up."""

    epoch: Natural = 0
    """Highest epoch claimed; 0 before the first claim."""
    base: Ref | None = None
    """Of the last claim."""
    head: Ref | None = None
    plans: tuple[Plan, ...] = ()
    """Open deletion plans, oldest first."""


class Entry(Document):
    """One link of the chain, as stored."""

    format: Literal["midflight.chain"] = "midflight.chain"
    version: tuple[int, int] = (FORMAT_MAJOR, FORMAT_MINOR)
    features: tuple[str, ...] = ()
    run_id: Token
    n: Positive
    token: Token
    """Random, so that a writer recognises its own entry after a lost reply."""
    epoch: Natural
    """Of the controller that wrote it; for an operator the highest at that point."""
    action: Annotated[Action, Field(discriminator="kind")]
    state: State
    """After this entry."""


def advance(state: State, n: int, epoch: int, action: Action) -> State:
    """The state after entry `n` with this action."""
    match action:
        case Claim(base=base):
            return state.model_copy(update={"epoch": epoch, "base": base, "head": base})
        case Publication(ref=ref):
            return state.model_copy(update={"head": ref})
        case Deletion(checkpoints=checkpoints):
            return state.model_copy(update={"plans": (*state.plans, Plan(n=n, checkpoints=checkpoints))})
        case DeletionEnd(plan=plan):
            return state.model_copy(update={"plans": tuple(p for p in state.plans if p.n != plan)})
        case _:
            return state


def next_epoch(state: State, base: Ref | None, known: "Known | None" = None) -> int:
    """The epoch of the next claim: above the root's, that of the checkpoint it continues, and that of every import.

    A round of a lower epoch would sooner or later write under the id of a checkpoint that was copied in.
    """
    named = (*known.refs, *known.deleted) if known else ()
    above = max((checkpoint.epoch for checkpoint in named), default=0)
    return max(state.epoch, base.checkpoint.epoch if base else 0, above) + 1


class Known:
    """What the entries read so far say about each checkpoint, beyond the state."""

    def __init__(self) -> None:
        """Nothing is known before the first entry."""
        self.refs: dict[CheckpointId, Ref] = {}
        """Published or imported, and in no plan."""
        self.deleted: dict[CheckpointId, int] = {}
        """Named in a plan, open or ended, with the entry that planned it."""

    def copy(self) -> "Known":
        """Another one that knows as much."""
        made = Known()
        made.refs, made.deleted = {**self.refs}, {**self.deleted}
        return made

    def add(self, entry: Entry) -> None:
        """Take the next entry into account."""
        match entry.action:
            case Publication(ref=ref) | Import(ref=ref):
                self.refs[ref.checkpoint] = ref
            case Deletion(checkpoints=checkpoints):
                for checkpoint in checkpoints:
                    self.refs.pop(checkpoint, None)
                    self.deleted[checkpoint] = entry.n
            case _:
                pass


def refuse(state: State, known: Known, epoch: int, action: Action) -> StoreError | None:
    """Why `action` of a writer of `epoch` may not follow `state`; None where it may."""
    if isinstance(action, Claim):
        return _refuse_claim(state, known, epoch, action.base)
    if epoch < state.epoch:
        return Fenced(epoch, state.epoch)
    if epoch > state.epoch:
        return InvalidInput(f"epoch {epoch} was never claimed")
    match action:
        case Publication(ref=ref):
            return _refuse_publication(state, known, epoch, ref)
        case Import(ref=ref, needs=needs):
            return _refuse_needs(known, needs) or _refuse_existing(known, ref)
        case Deletion(checkpoints=checkpoints):
            return _refuse_deletion(state, known, checkpoints)
        case DeletionEnd(plan=plan) if all(p.n != plan for p in state.plans):
            return InvalidInput(f"entry {plan} is not an open deletion plan")
        case _:
            return None


def _refuse_claim(state: State, known: Known, epoch: int, base: Ref | None) -> StoreError | None:
    if epoch <= state.epoch:
        return Fenced(epoch, state.epoch)
    if base is None:
        return None
    if epoch <= base.checkpoint.epoch:
        return InvalidInput(f"a claim of epoch {epoch} cannot continue checkpoint {base.checkpoint} of a later epoch")
    if base.checkpoint in known.deleted:
        return CheckpointDeleted(str(base.checkpoint), known.deleted[base.checkpoint])
    if base.checkpoint not in known.refs:
        return InvalidInput(f"checkpoint {base.checkpoint} is not on the chain and cannot be a base")
    return None if known.refs[base.checkpoint] == base else _conflict(base)


def _refuse_publication(state: State, known: Known, epoch: int, ref: Ref) -> StoreError | None:
    head = state.head
    if ref.checkpoint.epoch != epoch:
        return InvalidInput(f"epoch {epoch} cannot publish checkpoint {ref.checkpoint}")
    if head and head.checkpoint.epoch == epoch and head.checkpoint >= ref.checkpoint:
        return InvalidInput(f"checkpoint {ref.checkpoint} cannot follow {head.checkpoint}")
    return _refuse_existing(known, ref)


def _refuse_existing(known: Known, ref: Ref) -> StoreError | None:
    if ref.checkpoint in known.deleted:
        return CheckpointDeleted(str(ref.checkpoint), known.deleted[ref.checkpoint])
    return None if known.refs.get(ref.checkpoint, ref) == ref else _conflict(ref)


def _refuse_needs(known: Known, needs: tuple[CheckpointId, ...]) -> StoreError | None:
    """An ended plan counts as well: the copy may have found a blob that went since, and a slow pruner still deletes."""
    gone = next((checkpoint for checkpoint in needs if checkpoint in known.deleted), None)
    return CheckpointDeleted(str(gone), known.deleted[gone]) if gone else None


def _refuse_deletion(state: State, known: Known, checkpoints: tuple[CheckpointId, ...]) -> StoreError | None:
    if state.head and state.head.checkpoint in checkpoints:
        return InvalidInput(f"checkpoint {state.head.checkpoint} is the head and is never deleted")
    unfinished = [c for c in checkpoints if c not in known.refs and is_open(state, c)]
    return InvalidInput(f"checkpoint {unfinished[0]} may still be published") if unfinished else None


def is_open(state: State, checkpoint: CheckpointId) -> bool:
    """Whether a live controller may still publish this id: it is of the highest epoch (or later) and after the head."""
    if checkpoint.epoch != state.epoch:
        return checkpoint.epoch > state.epoch
    head = state.head
    return head is None or head.checkpoint.epoch < state.epoch or checkpoint > head.checkpoint


def _conflict(ref: Ref) -> StoreError:
    return CheckpointConflict(f"checkpoint {ref.checkpoint}", "the chain names another digest")


def require(known: Known, url: str, checkpoint: CheckpointId) -> Ref:
    """The ref of a checkpoint that exists; raises CheckpointDeleted or NoCheckpoint."""
    ref = known.refs.get(checkpoint)
    if ref is not None:
        return ref
    if checkpoint in known.deleted:
        raise CheckpointDeleted(str(checkpoint), known.deleted[checkpoint])
    raise NoCheckpoint(url, str(checkpoint))
