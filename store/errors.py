"""Everything that the store raises, in one flat file.

    StoreError
    ├── InvalidInput            the caller's value: a name, a record, a URL; nothing was written
    │   ├── InvalidName
    │   ├── InvalidRecord
    │   ├── DuplicateRollout
    │   ├── InvalidStoreURL
    │   └── MissingExtra
    ├── BackendError            one request to the backend
    │   ├── NotFound
    │   ├── RootMissing         the bucket or root folder itself is gone: no statement about any object
    │   ├── AlreadyExists
    │   ├── AccessDenied
    │   ├── NoSpace
    │   ├── IOFailed
    │   ├── UnsafeObject
    │   ├── ObjectTooLarge
    │   ├── TransientError      worth another try; the retry layer turns it into one of the next two
    │   ├── StoreUnavailable
    │   └── OutcomeUnknown
    ├── UnsupportedStore        the probe at opening: this store cannot keep our promises
    ├── NotAStore               there is no format.json, or it is somebody else's folder
    ├── UnsupportedVersion      a newer format, or a required feature that this version lacks
    ├── ForeignObject           a manifest of another run, or a fingerprint that differs
    ├── CorruptCheckpoint       damage, found by a digest or a rule; names the object
    ├── CorruptChain            damage in the chain itself
    ├── NoCheckpoint            nothing there: no head, or no checkpoint of that name
    ├── CheckpointConflict      the same name with other content
    │   └── ObjectConflict      the same, for one object; carries what stands there
    ├── CheckpointDeleted       the checkpoint is named in a deletion plan
    ├── CommitStopped           this commit was stopped and will never publish
    ├── Fenced                  a higher epoch stands on the chain
    └── ControllerAlive         another controller still holds this root

Each class builds its own message from the facts; `hint` says what to do about it.
"""

from collections.abc import Sequence


class StoreError(Exception):
    """Base of everything the store raises on purpose."""

    hint: str = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        """`message` says what happened and to which object; `hint` what to do."""
        self.message = message
        if hint:
            self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class InvalidInput(StoreError):
    """A value given by the caller is refused; nothing was written."""


class InvalidName(InvalidInput):
    """A rollout id, participant name or other identifier breaks its rule."""

    def __init__(self, what: str, value: object, rule: str) -> None:
        super().__init__(f"{what} {_short(value)} is refused", hint=f"It must match: {rule}")


class InvalidRecord(InvalidInput):
    """A record cannot be written so that it is read back exactly."""

    def __init__(self, rollout_id: str, reason: str) -> None:
        self.rollout_id = rollout_id
        super().__init__(
            f"the record of rollout {_short(rollout_id)} is refused: {reason}",
            hint="A record is a JSON value (with str keys, 64-bit integers, finite floats) and bytes",
        )


class DuplicateRollout(InvalidInput):
    """One participant has two records of one rollout, or two participants disagree on its life."""

    def __init__(self, rollout_id: str, where: str) -> None:
        self.rollout_id = rollout_id
        super().__init__(
            f"rollout {_short(rollout_id)} appears twice: {where}",
            hint="Each participant exports each rollout once, and all of them the same life",
        )


class InvalidStoreURL(InvalidInput):
    """The URL of a store cannot be used."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"{_short(url)} cannot be a store: {reason}", hint="Give a path, or a URL such as s3://bucket/run"
        )


class MissingExtra(InvalidInput):
    """The library for a URL scheme is not installed."""

    def __init__(self, scheme: str, extra: str) -> None:
        told = f"pip install 'midflight[{extra}]', or in a checkout pip install -e '.[{extra}]'"
        super().__init__(
            f"{scheme}:// needs a library that is not installed", hint=f"Install the extra {extra}: {told}"
        )


class BackendError(StoreError):
    """One request to a backend failed; `key` is the object and `operation` the verb."""

    what: str = "failed"

    def __init__(self, operation: str, key: str, detail: str = "", *, hint: str = "") -> None:
        self.operation = operation
        self.key = key
        tail = f": {detail}" if detail else ""
        super().__init__(f"{operation} {key!r} {self.what}{tail}", hint=hint)


class NotFound(BackendError):
    """No object has this key."""

    what = "found no such object"


class RootMissing(BackendError):
    """The bucket or root folder of the store is gone or was replaced; this says nothing about any object in it."""

    what = "found no store root"
    hint = "Check the URL, the mount and the bucket; nothing is created in place of a root that vanished"


class AlreadyExists(BackendError):
    """A conditional create met an existing object. It may be the caller's own, from an earlier try: compare."""

    what = "met an existing object"


class AccessDenied(BackendError):
    """The credentials or permissions do not allow the request, or have expired."""

    what = "was denied"
    hint = "Check the credentials and the permissions of this store; then run the same command again"


class NoSpace(BackendError):
    """The disk, quota or inode table is full."""

    what = "found no space left"
    hint = "Free space, or prune old checkpoints; earlier checkpoints are intact"


class IOFailed(BackendError):
    """The device or the service failed in a way that another try would not mend."""

    what = "failed"
    hint = "What was being written counts as lost; earlier checkpoints are intact"


class UnsafeObject(BackendError):
    """A link, device or other special file stands where an object should be."""

    what = "refused a link or special file"
    hint = "A store holds regular files only; remove it, after looking where it came from"


class ObjectTooLarge(BackendError):
    """The object is larger than the reader allows."""

    what = "refused an object that is too large"


class TransientError(BackendError):
    """The request failed in a way that another try may mend.

    `applied` is None where nobody can say whether a write took effect (timeout, reset after the body), and False
    where the store has said that it did not (503, 409).
    """

    what = "failed for now"

    def __init__(self, operation: str, key: str, detail: str = "", *, applied: bool | None = False) -> None:
        self.applied = applied
        super().__init__(operation, key, detail)


class StoreUnavailable(BackendError):
    """Transient errors lasted for longer than the deadline; nothing was changed by this request."""

    what = "gave up at its deadline"
    hint = "The store is unreachable or overloaded; try again later"


class OutcomeUnknown(BackendError):
    """A write may or may not have taken effect, and the deadline came before it could be settled."""

    what = "has an unknown outcome"
    hint = "Nothing was deleted. Read again before deciding: what was written is complete if it is there"


class UnsupportedStore(StoreError):
    """The probe at opening found that this store cannot keep a promise that midflight needs."""

    def __init__(self, url: str, reason: str, *, hint: str = "") -> None:
        super().__init__(
            f"{url} cannot be used by more than one writer: {reason}",
            hint=hint or ("Use a store with conditional create, or declare a single writer if no other can ever run"),
        )


class NotAStore(StoreError):
    """The root has no format.json."""

    def __init__(self, url: str, reason: str, *, hint: str = "") -> None:
        super().__init__(
            f"{url} is not a midflight store: {reason}", hint=hint or "Give the root that holds format.json"
        )


class UnsupportedVersion(StoreError):
    """Something was written by a newer midflight, or needs a feature that this one lacks."""

    def __init__(self, name: str, needs: str) -> None:
        super().__init__(f"{name} needs {needs}", hint="Read it with a midflight that knows this; nothing was changed")


class ForeignObject(StoreError):
    """A manifest belongs to another run, or its fingerprint differs from the run's own."""

    def __init__(self, name: str, reason: str, fields: Sequence[str] = ()) -> None:
        self.fields = tuple(fields)
        super().__init__(f"{name} does not belong here: {reason}", hint="Use the root of that run, or copy it in")


class CorruptCheckpoint(StoreError):
    """A part of a checkpoint is damaged, missing, or breaks a rule of the format."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(
            f"{name} is damaged: {reason}",
            hint="Nothing was activated. Run `midflight checkpoints verify`; an older checkpoint may be named instead",
        )


class CorruptChain(StoreError):
    """A chain entry is damaged or missing."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(
            f"{name} is damaged: {reason}",
            hint="Restore this file from a copy; nothing is decided while the chain cannot be read",
        )


class NoCheckpoint(StoreError):
    """There is no checkpoint to read."""

    def __init__(self, url: str, name: str = "") -> None:
        what = f"checkpoint {_short(name)}" if name else "a checkpoint"
        super().__init__(f"{url} does not hold {what}", hint="`midflight checkpoints list` shows what is there")


class CheckpointConflict(StoreError):
    """The same checkpoint was already written with other content."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} already stands with other content: {reason}", hint="Commit again in a new round")


class ObjectConflict(CheckpointConflict):
    """A key that may be written once stands with other content.

    `existing` is that content, or None where it is larger than the caller was ready to read.
    """

    def __init__(self, key: str, existing: bytes | None) -> None:
        self.key = key
        self.existing = existing
        size = "more bytes than were expected" if existing is None else f"{len(existing)} bytes"
        super().__init__(key, f"{size} that differ from what was to be written")


class CheckpointDeleted(StoreError):
    """A deletion plan on the chain names this checkpoint."""

    def __init__(self, name: str, plan: int) -> None:
        super().__init__(
            f"checkpoint {name} is named in the deletion plan of chain entry {plan}", hint="Name another one"
        )


class CommitStopped(StoreError):
    """The commit was stopped before its manifest; it will never publish."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the commit of {name} was stopped before its manifest", hint="Commit again in a new round")


class Fenced(StoreError):
    """A higher epoch stands on the chain: another controller has taken over."""

    def __init__(self, own: int, highest: int) -> None:
        self.own = own
        self.highest = highest
        super().__init__(
            f"epoch {own} is fenced: epoch {highest} stands on the chain",
            hint="Stop; the newer controller goes on",
        )


class ControllerAlive(StoreError):
    """Another controller holds this root."""

    def __init__(self, url: str, evidence: str) -> None:
        super().__init__(
            f"{url} is held by a live controller: {evidence}",
            hint="Stop that one, or take over on purpose with --take-over",
        )


def _short(value: object, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
