"""The checkpoint store: records, manifests and the chain, on a local disk or an object store. Knows nobody above it."""

from .alive import keep_alive, refuse_if_alive
from .backends.base import Backend, ObjectInfo, Traits
from .backends.local import LocalBackend
from .backends.memory import MemoryBackend
from .backends.opening import open_backend
from .backends.retry import create_once
from .chain import Chain
from .commit import Parent, ParticipantCommit, Receipt
from .copying import copy_checkpoint
from .diff import Difference, diff_checkpoints
from .entries import Action, Claim, Deletion, DeletionEnd, Entry, Import, Publication, Ref, Seal, Segment, State
from .errors import (
    AccessDenied,
    AlreadyExists,
    BackendError,
    CheckpointConflict,
    CheckpointDeleted,
    CommitStopped,
    ControllerAlive,
    CorruptChain,
    CorruptCheckpoint,
    DuplicateRollout,
    Fenced,
    ForeignObject,
    InvalidInput,
    InvalidName,
    InvalidRecord,
    InvalidStoreURL,
    IOFailed,
    MissingExtra,
    NoCheckpoint,
    NoSpace,
    NotAStore,
    NotFound,
    ObjectConflict,
    ObjectTooLarge,
    OutcomeUnknown,
    RootMissing,
    StoreError,
    StoreUnavailable,
    TransientError,
    UnsafeObject,
    UnsupportedStore,
    UnsupportedVersion,
)
from .findings import Finding
from .layout import BlobRef, CheckpointId, Life, ProcessName
from .lazy import LazyBytes
from .limits import DEFAULT_LIMITS, Limits
from .manifest import AggregateManifest, Agreement, External, ParticipantManifest, ParticipantRef, Tally
from .prune import PruneReport, Survey, prune, survey
from .publish import Controller, Draft, claim
from .reader import Checkpoint, Process, Shard, find_checkpoint, load_parent, open_checkpoint, published
from .records import RawRecord, Record
from .retention import Candidate, Decision, Retention, decide
from .root import Store, open_store
from .secrets import SecretHit, scan
from .statedoc import ReadBlob
from .values import blobs_in, resolve
from .verify import VerifyReport, verify_store

__all__ = [
    "DEFAULT_LIMITS",
    "AccessDenied",
    "Action",
    "AggregateManifest",
    "Agreement",
    "AlreadyExists",
    "Backend",
    "BackendError",
    "BlobRef",
    "Candidate",
    "Chain",
    "Checkpoint",
    "CheckpointConflict",
    "CheckpointDeleted",
    "CheckpointId",
    "Claim",
    "CommitStopped",
    "Controller",
    "ControllerAlive",
    "CorruptChain",
    "CorruptCheckpoint",
    "Decision",
    "Deletion",
    "DeletionEnd",
    "Difference",
    "Draft",
    "DuplicateRollout",
    "Entry",
    "External",
    "Fenced",
    "Finding",
    "ForeignObject",
    "IOFailed",
    "Import",
    "InvalidInput",
    "InvalidName",
    "InvalidRecord",
    "InvalidStoreURL",
    "LazyBytes",
    "Life",
    "Limits",
    "LocalBackend",
    "MemoryBackend",
    "MissingExtra",
    "NoCheckpoint",
    "NoSpace",
    "NotAStore",
    "NotFound",
    "ObjectConflict",
    "ObjectInfo",
    "ObjectTooLarge",
    "OutcomeUnknown",
    "Parent",
    "ParticipantCommit",
    "ParticipantManifest",
    "ParticipantRef",
    "Process",
    "ProcessName",
    "PruneReport",
    "Publication",
    "RawRecord",
    "ReadBlob",
    "Receipt",
    "Record",
    "Ref",
    "Retention",
    "RootMissing",
    "Seal",
    "SecretHit",
    "Segment",
    "Shard",
    "State",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "Survey",
    "Tally",
    "Traits",
    "TransientError",
    "UnsafeObject",
    "UnsupportedStore",
    "UnsupportedVersion",
    "VerifyReport",
    "blobs_in",
    "claim",
    "copy_checkpoint",
    "create_once",
    "decide",
    "diff_checkpoints",
    "find_checkpoint",
    "keep_alive",
    "load_parent",
    "open_backend",
    "open_checkpoint",
    "open_store",
    "prune",
    "published",
    "refuse_if_alive",
    "resolve",
    "scan",
    "survey",
    "verify_store",
]
