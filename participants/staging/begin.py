"""Whether a cut may be continued: checked in full before anything is generated, each failure with its own reason."""

from dataclasses import dataclass

from .packs import Entry, Identity, Key, PromptRef
from .refusals import Reason, StagingRefused
from .store import TokenStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a caller says that it continues."""

    key: str
    count: int
    """Tokens of the prefix."""
    digest: str
    """Of their ids, in order: `packs.digest_of_ids`."""
    prompt: PromptRef
    """What the prefix follows: the prompt alone, without any of the prefix."""
    source: Identity | None = None
    """Whose generation was cut, as the caller has it; None where it does not say."""
    by: Identity | None = None
    """Who continues it; None for a call without identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the continuation may use, in tokens."""

    context_length: int
    """Prompt and output together."""
    max_tokens: int | None = None
    """How many more are asked for; None for as many as fit."""


def check_cut(cut: Cut, entry: Entry, room: Room) -> None:
    """Raise `StagingRefused` unless exactly this was staged, and can go on. Changes nothing."""
    _check_identity(cut, entry.source)
    _check_prompt(cut.prompt, entry.prompt)
    if cut.count != entry.count:
        raise StagingRefused(Reason.WRONG_COUNT, f"{entry.count} tokens are staged, and the cut has {cut.count}")
    if cut.digest != entry.digest:
        problem = f"the staged tokens have the digest {entry.digest}, and the cut has {cut.digest!r:.80}"
        raise StagingRefused(Reason.WRONG_DIGEST, problem)
    there = entry.prompt.count + entry.count
    more = 1 if room.max_tokens is None else room.max_tokens
    if there + more > room.context_length:
        problem = f"{there} tokens are there and {more} more are asked for, where {room.context_length} have room"
        raise StagingRefused(Reason.TOO_LONG, problem)


def _check_identity(cut: Cut, source: Identity) -> None:
    if cut.source is not None and cut.source != source:
        problem = f"the tokens are of {source.life} {source.call}, and the cut of {cut.source.life} {cut.source.call}"
        raise StagingRefused(Reason.WRONG_IDENTITY, problem)
    if cut.by is None:
        return
    life = cut.by.life
    if life.rollout_id != source.life.rollout_id:
        problem = f"the tokens are of rollout {source.life.rollout_id}, and {life} would continue them"
        raise StagingRefused(Reason.WRONG_IDENTITY, problem)
    if life < source.life:
        raise StagingRefused(Reason.OUT_OF_ORDER, f"{life} is older than {source.life}, which it would continue")


def _check_prompt(given: PromptRef, staged: PromptRef) -> None:
    if given.count > staged.count:
        problem = f"the prompt has {given.count} tokens and had {staged.count}: send it without the prefix"
        raise StagingRefused(Reason.OUT_OF_ORDER, problem)
    if given != staged:
        raise StagingRefused(Reason.WRONG_PROMPT, f"the tokens were generated after another prompt: {given} {staged}")


async def begin_call(store: TokenStore, cut: Cut, room: Room) -> Entry:
    """The prefix to continue, checked. Raises `StagingRefused`; `StoreError` where the store cannot be read."""
    entry = await store.read(Key.parse(cut.key))
    check_cut(cut, entry, room)
    return entry
