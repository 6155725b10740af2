"""Names and keys: the rules for every identifier, and the only place that makes an object's key from them.

Nothing that comes from a user or a manifest is ever used as a path: it is parsed into one of the types below, and the
key is composed here from the parsed parts. Rollout ids never appear in a key. Names that do are lower case, so two of
them cannot collide on a file system that ignores case.
"""

import re
from dataclasses import dataclass
from typing import Self

from .errors import InvalidName
from .limits import DEFAULT_LIMITS

FORMAT_KEY = "format.json"
CHAIN_PREFIX = "chain/"
ALIVE_PREFIX = "alive/"
CHECKPOINTS_PREFIX = "checkpoints/"
BLOBS_PREFIX = "blobs/"

NAME_RULE = r"[a-z0-9][a-z0-9_-]{0,62}"
ROLLOUT_RULE = r"[A-Za-z0-9][A-Za-z0-9._-]*"
LIFE_RULE = r"<rollout_id>/<epoch>.<attempt>#<n>"
CHECKPOINT_RULE = r"<epoch>.<k>, both positive"
SHA256_RULE = r"[0-9a-f]{64}"

_NAME = re.compile(NAME_RULE)
_ROLLOUT = re.compile(ROLLOUT_RULE)
_ATTEMPT_SUFFIX = re.compile(r".*-a[0-9]+")
_NUMBER = r"(0|[1-9][0-9]{0,17})"
_POSITIVE = r"([1-9][0-9]{0,17})"
_TOO_LARGE = 10**18
_LIFE = re.compile(rf"({ROLLOUT_RULE})/{_NUMBER}\.{_NUMBER}#{_NUMBER}")
_CHECKPOINT = re.compile(rf"{_POSITIVE}\.{_POSITIVE}")
_SHA256 = re.compile(SHA256_RULE)
_BLOB = re.compile(rf"({SHA256_RULE})\.({_POSITIVE}\.{_POSITIVE})")
_PART = re.compile(r"[0-9]{5}-[0-9a-f]{16}\.jsonl\.zst")
_ENTRY = re.compile(r"([0-9]{12})\.json")


def check_rollout_id(value: str) -> str:
    """`value` if it is a rollout id; raises InvalidName."""
    limit = DEFAULT_LIMITS.max_rollout_id_chars
    fits = len(value) <= limit and _ROLLOUT.fullmatch(value) and not _ATTEMPT_SUFFIX.fullmatch(value)
    if not fits:
        rule = f"{ROLLOUT_RULE}, at most {limit} characters, not ending in -a<digits>"
        raise InvalidName("rollout id", value, rule)
    return value


def check_name(value: str, what: str = "name") -> str:
    """`value` if it may name a kind, a participant or a process; raises InvalidName."""
    if not _NAME.fullmatch(value):
        raise InvalidName(what, value, NAME_RULE)
    return value


def check_sha256(value: str) -> str:
    """`value` if it is a lower-case hexadecimal sha256; raises InvalidName."""
    if not _SHA256.fullmatch(value):
        raise InvalidName("sha256", value, SHA256_RULE)
    return value


def check_part_name(value: str) -> str:
    """`value` if it names a part inside a process's own folder; raises InvalidName."""
    if not _PART.fullmatch(value):
        raise InvalidName("part", value, "<5 digits>-<16 hex digits>.jsonl.zst")
    return value


def _check_number(value: int, what: str, least: int) -> None:
    if type(value) is not int or not least <= value < _TOO_LARGE:
        raise InvalidName(what, value, f"an integer from {least}, of at most 18 digits")


@dataclass(frozen=True, slots=True, order=True)
class Life:
    """One start of a rollout, unique in a run for ever; written `<rollout_id>/<epoch>.<attempt>#<n>`."""

    rollout_id: str
    epoch: int
    attempt: int
    n: int
    """Number of its dispatch in the epoch."""

    def __post_init__(self) -> None:
        check_rollout_id(self.rollout_id)
        for number in (self.epoch, self.attempt, self.n):
            _check_number(number, "number of a life", 0)

    def __hash__(self) -> int:
        return hash(self.rollout_id)  # Which a string keeps: sets of very many lives are made and asked all the time.

    def __str__(self) -> str:
        return f"{self.rollout_id}/{self.epoch}.{self.attempt}#{self.n}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the written form; raises InvalidName."""
        match = _LIFE.fullmatch(text)
        if match is None:
            raise InvalidName("life", text, LIFE_RULE)
        rollout_id, epoch, attempt, n = match.groups()
        if len(rollout_id) > DEFAULT_LIMITS.max_rollout_id_chars or "-a" in rollout_id:
            check_rollout_id(rollout_id)  # What else it asks for, the pattern of a life has told.
        life = object.__new__(cls)  # Checked already: a checkpoint has a life a record, read several times.
        _set_rollout_id(life, rollout_id)
        _set_epoch(life, int(epoch))
        _set_attempt(life, int(attempt))
        _set_n(life, int(n))
        return life


_set_rollout_id, _set_epoch, _set_attempt, _set_n = (
    vars(Life)[name].__set__ for name in ("rollout_id", "epoch", "attempt", "n")
)
"""What fills the slots of a new life: with these parsing one takes a fifth less than through `object.__setattr__`."""


@dataclass(frozen=True, slots=True, order=True)
class CheckpointId:
    """Also the number of the round that writes it: `<epoch>.<k>`; ordered by both numbers."""

    epoch: int
    k: int

    def __post_init__(self) -> None:
        for number in (self.epoch, self.k):
            _check_number(number, "number of a checkpoint", 1)

    def __str__(self) -> str:
        return f"{self.epoch}.{self.k}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the written form; raises InvalidName."""
        match = _CHECKPOINT.fullmatch(text)
        if match is None:
            raise InvalidName("checkpoint id", text, CHECKPOINT_RULE)
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True, order=True)
class ProcessName:
    """One process of one participant."""

    kind: str
    name: str
    process: str

    def __post_init__(self) -> None:
        check_name(self.kind, "participant kind")
        check_name(self.name, "participant name")
        check_name(self.process, "process name")

    def __str__(self) -> str:
        return f"{self.kind}.{self.name}/{self.process}"


@dataclass(frozen=True, slots=True, order=True)
class BlobRef:
    """A payload kept outside its record: content, the checkpoint that wrote it, and size in bytes."""

    sha256: str
    written_by: CheckpointId
    size: int

    def __str__(self) -> str:
        return f"{self.sha256}.{self.written_by}"

    @property
    def key(self) -> str:
        """Where the bytes are."""
        return f"{BLOBS_PREFIX}{self.sha256[:2]}/{self}"


def parse_blob_key(key: str) -> tuple[str, CheckpointId] | None:
    """The sha256 and checkpoint that a key below `blobs/` names; None where it is not of our making."""
    match = _BLOB.fullmatch(key.rsplit("/", 1)[-1])
    if match is None or key != f"{BLOBS_PREFIX}{match[1][:2]}/{match[0]}":
        return None
    return match[1], CheckpointId.parse(match[2])


def parse_checkpoint_key(key: str) -> CheckpointId | None:
    """The checkpoint below whose prefix a key lies; None where that is not of our making."""
    first, _, rest = key.removeprefix(CHECKPOINTS_PREFIX).partition("/")
    return CheckpointId.parse(first) if rest and _CHECKPOINT.fullmatch(first) else None


def entry_key(n: int) -> str:
    """Key of chain entry `n`, counted from 1."""
    return f"{CHAIN_PREFIX}{n:012d}.json"


def parse_entry_key(key: str) -> int | None:
    """The number in a chain entry's key; None where it is not of our making."""
    match = _ENTRY.fullmatch(key.removeprefix(CHAIN_PREFIX))
    return int(match[1]) if match else None


def alive_key(epoch: int) -> str:
    """Key of the rising counter of the controller of `epoch`."""
    return f"{ALIVE_PREFIX}{epoch}"


def checkpoint_prefix(checkpoint: CheckpointId) -> str:
    """Prefix of everything that belongs to one checkpoint alone."""
    return f"{CHECKPOINTS_PREFIX}{checkpoint}/"


def aggregate_key(checkpoint: CheckpointId) -> str:
    """Key of the aggregate manifest."""
    return f"{checkpoint_prefix(checkpoint)}manifest.json"


def process_prefix(checkpoint: CheckpointId, process: ProcessName) -> str:
    """Prefix of what one process wrote for a checkpoint."""
    return f"{checkpoint_prefix(checkpoint)}{process}/"


def participant_key(checkpoint: CheckpointId, process: ProcessName) -> str:
    """Key of a participant manifest."""
    return f"{process_prefix(checkpoint, process)}manifest.json"


def index_key(checkpoint: CheckpointId, process: ProcessName, sha256: str) -> str:
    """Key of the index with that digest over a process's parts."""
    return f"{process_prefix(checkpoint, process)}index-{check_sha256(sha256)[:16]}.jsonl.zst"


def part_key(checkpoint: CheckpointId, process: ProcessName, part: str) -> str:
    """Key of one part."""
    return f"{process_prefix(checkpoint, process)}{check_part_name(part)}"
