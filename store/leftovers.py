"""Which objects of a listing belong to no checkpoint: a pure function. They are told, never touched.

A leftover is what a crash, a commit in progress, a copy in progress or somebody else has left below the root. Whether
one is dead can only be told by the chain and its age, and pruning does that.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from .backends.base import ObjectInfo
from .entries import State, is_open
from .findings import Finding
from .layout import (
    ALIVE_PREFIX,
    BLOBS_PREFIX,
    CHAIN_PREFIX,
    CHECKPOINTS_PREFIX,
    FORMAT_KEY,
    CheckpointId,
    checkpoint_prefix,
    parse_blob_key,
    parse_checkpoint_key,
    parse_entry_key,
)

_ALIVE = re.compile(rf"{ALIVE_PREFIX}[1-9][0-9]*(\.lock)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What the chain and the manifests say that there should be."""

    state: State
    existing: Collection[CheckpointId]
    deleted: Mapping[CheckpointId, int]
    """Named in a plan, with its entry."""
    keys: Mapping[CheckpointId, Collection[str]]
    """The objects of each existing checkpoint that could be read to its end; others are not judged."""
    blobs: Collection[str] | None
    """Keys of all blobs that an existing checkpoint names; None where not all could be read."""


@dataclass(slots=True)
class _Group:
    """Objects that are told together."""

    message: str
    count: int = 0
    size: int = 0


def find_leftovers(listed: Iterable[ObjectInfo], owned: Owned) -> list[Finding]:
    """What in a listing of the whole root belongs to nothing that exists, grouped by what it was meant for."""
    groups: dict[str, _Group] = {}
    for info in listed:
        found = _judge(info.key, owned)
        if found is not None:
            place, message = found
            group = groups.setdefault(place, _Group(message))
            group.count += 1
            group.size += info.size
    return [Finding("leftover", place, _sentence(group)) for place, group in sorted(groups.items())]


def _sentence(group: _Group) -> str:
    objects = "1 object" if group.count == 1 else f"{group.count} objects"
    return f"{objects}, {group.size} bytes: {group.message}"


def _judge(key: str, owned: Owned) -> tuple[str, str] | None:
    """Where a key is counted and why it is a leftover; None where it is none."""
    if key.startswith(CHECKPOINTS_PREFIX):
        return _judge_checkpoint(key, owned)
    if key.startswith(BLOBS_PREFIX):
        return _judge_blob(key, owned)
    known = key == FORMAT_KEY or _ALIVE.fullmatch(key) or (key.startswith(CHAIN_PREFIX) and parse_entry_key(key))
    return None if known else (key, "unknown, midflight did not make it or was stopped while it tried the store")


def _judge_checkpoint(key: str, owned: Owned) -> tuple[str, str] | None:
    checkpoint = parse_checkpoint_key(key)
    if checkpoint is None:
        return key, "unknown, not below the name of a checkpoint"
    if checkpoint in owned.existing:
        keys = owned.keys.get(checkpoint)
        return None if keys is None or key in keys else (key, "no manifest of this checkpoint names it")
    return checkpoint_prefix(checkpoint), _why_not_there(checkpoint, owned)


def _judge_blob(key: str, owned: Owned) -> tuple[str, str] | None:
    blob = parse_blob_key(key)
    if blob is None:
        return key, "unknown, not the name of a blob"
    if owned.blobs is None or key in owned.blobs:
        return None
    return f"{BLOBS_PREFIX}*.{blob[1]}", f"no checkpoint names them; written for {blob[1]}"


def _why_not_there(checkpoint: CheckpointId, owned: Owned) -> str:
    plan = owned.deleted.get(checkpoint)
    if plan is not None:
        is_unfinished = any(open_plan.n == plan for open_plan in owned.state.plans)
        return f"named in the deletion plan of entry {plan}, which " + ("is not finished" if is_unfinished else "ended")
    if is_open(owned.state, checkpoint):
        return f"checkpoint {checkpoint} is not published: in progress, or left by a crash"
    return f"checkpoint {checkpoint} was never published"
