"""Manifests: what one process wrote (participant manifest) and what a checkpoint is (aggregate manifest).

Both are sealed documents (`store.sealed`). A participant manifest is written after its parts, index and blobs; an
aggregate manifest after the participant manifests that it names by digest. A manifest names things by validated parts
of a name, never by path, so it cannot reach outside its own prefix and `blobs/`.
"""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, PlainSerializer, PlainValidator

from .entries import Checkpoint, Digest, Document, Natural, Positive, Segment, Token
from .errors import InvalidName
from .layout import BlobRef, Life, ProcessName, check_name, check_part_name
from .sealed import FORMAT_MAJOR, FORMAT_MINOR


def _parse_life(value: Any) -> Life:
    """From its one written form, which is a text."""
    if isinstance(value, Life):
        return value
    if not isinstance(value, str):
        raise ValueError("a life is written as a string")
    try:
        return Life.parse(value)
    except InvalidName as error:
        raise ValueError(error.message) from error


def _valid_name(value: str) -> str:
    try:
        return check_name(value)
    except InvalidName as error:
        raise ValueError(error.message) from error


def _valid_part(value: str) -> str:
    try:
        return check_part_name(value)
    except InvalidName as error:
        raise ValueError(error.message) from error


LifeField = Annotated[Life, PlainValidator(_parse_life), PlainSerializer(str)]
Name = Annotated[str, AfterValidator(_valid_name)]
PartName = Annotated[str, AfterValidator(_valid_part)]
Sha256 = Digest


class Part(Document):
    """One object of packed records."""

    name: PartName
    size: Positive
    raw_size: Positive
    records: Positive
    sha256: Sha256


class Index(Document):
    """The index over a process's parts."""

    size: Positive
    raw_size: Natural
    sha256: Sha256


class Blob(Document):
    """A payload kept in a blob."""

    sha256: Sha256
    written_by: Checkpoint
    size: Natural

    @property
    def ref(self) -> BlobRef:
        """As the rest of the store names it."""
        return BlobRef(self.sha256, self.written_by, self.size)

    @classmethod
    def of(cls, ref: BlobRef) -> "Blob":
        """The stored form of a ref."""
        return cls(sha256=ref.sha256, written_by=ref.written_by, size=ref.size)


class External(Document):
    """Something kept outside the store, which must outlive every checkpoint that names it."""

    url: str
    size: Natural
    sha256: Sha256


class StateDocument(Document):
    """Own state of a controller or participant: small JSON inline, larger JSON and all bytes in blobs."""

    inline: JsonValue = None
    blob: Blob | None = None
    """Where the JSON is when it is not inline."""
    escaped: bool = False
    """Whether `$bytes` and `$blob` in the JSON are escapes, as in records."""
    blobs: tuple[Blob, ...] = ()
    """Every blob that the JSON names."""

    @property
    def refs(self) -> list[BlobRef]:
        """Every blob that it takes to read the state."""
        return [*(blob.ref for blob in self.blobs), *self.own_refs]

    @property
    def own_refs(self) -> list[BlobRef]:
        """The blob that holds the JSON, where one does."""
        return [self.blob.ref] if self.blob else []


class Tally(Document):
    """A count of things and an order-free digest over them, to be compared between two participants."""

    count: Natural
    digest: str


class Agreement(Document):
    """What this participant shares with another one; the other's agreement with this one must say the same."""

    kind: Name
    name: Name
    tally: Tally


class ParticipantManifest(Document):
    """What one process of one participant wrote for one checkpoint."""

    format: Literal["midflight.participant"] = "midflight.participant"
    version: tuple[int, int] = (FORMAT_MAJOR, FORMAT_MINOR)
    features: tuple[str, ...] = ()
    run_id: Token
    checkpoint: Checkpoint
    parent: Checkpoint | None
    kind: Name
    name: Name
    process: Name
    codec: Literal["zstd"] = "zstd"
    records: Natural
    size: Natural
    """Bytes of all parts."""
    parts: tuple[Part, ...]
    index: Index
    blobs: Natural
    """Distinct blobs that its records and state name."""
    blob_bytes: Natural
    """Bytes of those of them that this commit wrote itself."""
    state: StateDocument | None = None
    agreements: tuple[Agreement, ...] = ()
    software: dict[str, str]

    @property
    def process_name(self) -> ProcessName:
        """Who wrote it."""
        return ProcessName(self.kind, self.name, self.process)


class ParticipantRef(Document):
    """Pins one participant manifest from the aggregate one."""

    kind: Name
    name: Name
    process: Name
    digest: Sha256
    size: Positive
    """Bytes of the manifest."""
    records: Natural
    bytes: Natural
    """Of its parts."""

    @property
    def process_name(self) -> ProcessName:
        """Whose manifest it is."""
        return ProcessName(self.kind, self.name, self.process)


class Dropped(Document):
    """A dispatched rollout that neither continues nor starts over, and why."""

    life: LifeField
    reason: str


class AggregateManifest(Document):
    """What a checkpoint is. Every dispatched, undelivered rollout is in exactly one of scope, restarts and dropped."""

    format: Literal["midflight.checkpoint"] = "midflight.checkpoint"
    version: tuple[int, int] = (FORMAT_MAJOR, FORMAT_MINOR)
    features: tuple[str, ...] = ()
    run_id: Token
    checkpoint: Checkpoint
    epoch: Positive
    parent: Checkpoint | None
    participants: tuple[ParticipantRef, ...]
    scope: tuple[LifeField, ...]
    restarts: tuple[LifeField, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    records: Natural
    size: Natural
    """Bytes of all parts of all participants."""
    state: StateDocument | None = None
    """The controller's own."""
    externals: tuple[External, ...] = ()
    """Files of the controller's own outside the store."""
    output: tuple[Segment, ...] = ()
    """Length and digest of each output segment at this point."""
    fingerprint: dict[str, str] = Field(default_factory=dict)
    """What the run means: field to digest or value; no ports, hosts, uuids or credentials."""
    tags: tuple[Name, ...] = ()
    created_at: str = ""
    """The controller's wall clock, for people only; nothing is decided by it."""
    software: dict[str, str]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


_SOFTWARE = {package: _version(package) for package in ("midflight", "orjson", "zstandard")}
"""Looked up once, when this is imported: it reads files."""


def software_versions() -> dict[str, str]:
    """What a manifest says about the software that wrote it."""
    return dict(_SOFTWARE)


def differing_fields(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Names of the fingerprint fields that differ or stand on one side only, sorted."""
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
