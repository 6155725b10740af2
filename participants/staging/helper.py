"""What a worker holds of its calls in progress, and how it stages them: one buffer a call, frozen without stopping it.

Rules.

1. A buffer only grows at its end. So a frozen buffer is the buffer and a length: freezing any number of them is one
   step of the event loop, copies nothing, and generation goes on.
2. A buffer may be appended to by one thread and read by others: both are single operations on an array.
3. A cut is acknowledged only once the token store has it durably. One that could not be written has a reason instead,
   and its call goes on as if nothing had been asked.
4. The same cut (life, call, count) of one buffer gets the same key again, as long as its tokens stand.
5. A call that has ended can still be staged for a while (`StagingLimits.ended_kept`): its caller may not have read to
   the end yet. A new call of the same life and id takes the place of the old one.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import anyio

from store import InvalidName, Life, StoreError

from ..data import CALL_HEADER, LIFE_HEADER
from .begin import Cut, Room, begin_call
from .limits import MAX_CALL_CHARS
from .packs import Entry, Identity, Key, PromptRef, as_ids
from .refusals import Reason, StagingRefused
from .store import TokenStore


@dataclass(frozen=True, slots=True)
class Staged:
    """A cut that is durable."""

    key: str
    count: int
    """Tokens of the prefix."""
    digest: str
    """Of their ids, in order."""
    ended: bool = False
    """The generation had ended when it was frozen; a cut of all of it lacks only the reason."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A cut that was not staged."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be staged."""

    identity: Identity
    count: int | None = None
    """The first so many tokens; None for all that are there."""
    digest: str | None = None
    """Of the ids that the caller has read, where it knows them: a cut that differs is refused."""


class ActiveBuffer:
    """The output of one call, as it is generated."""

    __slots__ = ("_ids", "ended", "identity", "known", "prompt")

    def __init__(self, identity: Identity, prompt: PromptRef, prefix: Iterable[int] = ()) -> None:
        """`prefix` are the first tokens of the output, where the call continues a cut."""
        self.identity = identity
        self.prompt = prompt
        self.ended = False
        self.known: OrderedDict[int, Staged] = OrderedDict()
        """Cuts that are durable, by their count."""
        self._ids: array[int] = as_ids(prefix)

    @property
    def count(self) -> int:
        """Tokens so far."""
        return len(self._ids)

    def append(self, ids: Iterable[int]) -> None:
        """Some more tokens were generated."""
        self._ids.extend(as_ids(ids))

    def entry(self, count: int) -> Entry:
        """The first `count` tokens."""
        return Entry(self.identity, self.prompt, self._ids[:count])


@dataclass(frozen=True, slots=True)
class Frozen:
    """A buffer at one moment."""

    buffer: ActiveBuffer
    count: int
    ended: bool


@dataclass(slots=True)
class _Ended:
    """Buffers of calls that have ended, the oldest first."""

    buffers: OrderedDict[Identity, ActiveBuffer] = field(default_factory=OrderedDict)
    tokens: int = 0

    def add(self, buffer: ActiveBuffer) -> None:
        self.discard(buffer.identity)
        self.buffers[buffer.identity] = buffer
        self.tokens += buffer.count

    def discard(self, identity: Identity) -> None:
        buffer = self.buffers.pop(identity, None)
        self.tokens -= 0 if buffer is None else buffer.count

    def trim(self, most: int, most_tokens: int) -> None:
        while len(self.buffers) > most or self.tokens > most_tokens:
            self.discard(next(iter(self.buffers)))


class Stager:
    """The staging helper of one worker process. Used from one event loop; `ActiveBuffer.append` from any thread."""

    def __init__(self, store: TokenStore, *, context_length: int) -> None:
        """`context_length`: tokens of prompt and output together that the model takes."""
        self.store = store
        self.context_length = context_length
        self.counts: Counter[str] = Counter()
        """`staged`, `staged_tokens`, `begun`, and each reason of a refusal."""
        self._active: dict[Identity, ActiveBuffer] = {}
        self._ended = _Ended()
        self._staging = anyio.Lock()

    # Calls

    def open(self, identity: Identity, prompt: PromptRef, prefix: Iterable[int] = ()) -> ActiveBuffer:
        """A call begins to generate."""
        buffer = ActiveBuffer(identity, prompt, prefix)
        self._ended.discard(identity)
        self._active[identity] = buffer
        return buffer

    def close(self, buffer: ActiveBuffer) -> None:
        """It generates no more."""
        buffer.ended = True
        if self._active.get(buffer.identity) is buffer:
            del self._active[buffer.identity]
            self._ended.add(buffer)
            self._ended.trim(self.store.limits.ended_kept, self.store.limits.ended_tokens)

    @property
    def active(self) -> int:
        """Calls in progress."""
        return len(self._active)

    @property
    def ended(self) -> int:
        """Calls that have ended and can still be staged."""
        return len(self._ended.buffers)

    # Staging

    def freeze(self, items: Iterable[Wanted]) -> list[Frozen | Refused]:
        """All of them at this moment. Copies nothing."""
        return [self._freeze(item) for item in items]

    def _freeze(self, item: Wanted) -> Frozen | Refused:
        buffer = self._active.get(item.identity) or self._ended.buffers.get(item.identity)
        if buffer is None:
            return Refused(Reason.NOT_ACTIVE, "nothing is generated for it here")
        there = buffer.count
        count = there if item.count is None else item.count
        if count > there:
            return Refused(Reason.TOO_FEW, f"{there} tokens are there, and {count} are to be staged")
        if not count:
            return Refused(Reason.EMPTY, "no token has been generated")
        if count > self.store.limits.max_prefix_tokens:
            return Refused(Reason.TOO_LONG, f"{count} tokens, where {self.store.limits.max_prefix_tokens} are allowed")
        return Frozen(buffer, count, buffer.ended)

    async def stage(self, items: Iterable[Wanted]) -> list[Staged | Refused]:
        """Freeze now, then write what is not durable yet. One answer for each item, in order."""
        wanted = list(items)
        frozen = self.freeze(wanted)
        async with self._staging:
            new = {(id(each.buffer), each.count): each for each in frozen if isinstance(each, Frozen)}
            for each in await self._standing(list(new.values())):
                del new[id(each.buffer), each.count]
            failed = await self._write(list(new.values()))
        outcomes = [self._outcome(item, each, failed) for item, each in zip(wanted, frozen, strict=True)]
        for fresh in new.values():
            while len(fresh.buffer.known) > self.store.limits.remembered_cuts:
                fresh.buffer.known.popitem(last=False)
        return outcomes

    async def _standing(self, frozen: Sequence[Frozen]) -> list[Frozen]:
        """Those that are durable already; forgets keys whose tokens are gone."""
        known = {id(each): Key.parse(each.buffer.known[each.count].key) for each in frozen if _is_known(each)}
        try:
            packs = await self.store.standing(key.pack for key in known.values())
        except StoreError:
            packs = set()  # Then they are written again, or that fails too.
        for each in frozen:
            if id(each) in known and known[id(each)].pack not in packs:
                del each.buffer.known[each.count]
        return [each for each in frozen if _is_known(each)]

    async def _write(self, frozen: Sequence[Frozen]) -> dict[int, StoreError]:
        """Write them; of each buffer that failed, why."""
        digests: dict[int, str] = {}

        def entry(position: int) -> Entry:
            made = frozen[position].buffer.entry(frozen[position].count)
            digests[position] = made.digest
            return made

        keys = await self.store.write([each.count for each in frozen], entry)
        failed: dict[int, StoreError] = {}
        for position, (each, key) in enumerate(zip(frozen, keys, strict=True)):
            if isinstance(key, StoreError):
                failed[id(each.buffer)] = key
                continue
            each.buffer.known[each.count] = Staged(str(key), each.count, digests[position])
            self.counts.update(staged=1, staged_tokens=each.count)
        return failed

    def _outcome(self, item: Wanted, each: Frozen | Refused, failed: Mapping[int, StoreError]) -> Staged | Refused:
        if isinstance(each, Frozen):
            staged = each.buffer.known.get(each.count)
            if staged is None:
                each = Refused(Reason.STORE_FAILED, str(failed.get(id(each.buffer), "the cut was not written")))
            elif item.digest not in {None, staged.digest}:
                each = Refused(Reason.WRONG_DIGEST, f"the tokens here have the digest {staged.digest}")
            else:
                return replace(staged, ended=each.ended)
        self.counts[each.reason] += 1
        return each

    # Continuing

    async def begin(self, cut: Cut, max_tokens: int | None = None) -> Entry:
        """The prefix that a call continues, checked before it generates. Raises `StagingRefused`, `StoreError`."""
        try:
            entry = await begin_call(self.store, cut, Room(context_length=self.context_length, max_tokens=max_tokens))
        except StagingRefused as refused:
            self.counts[refused.reason] += 1
            raise
        self.counts["begun"] += 1
        return entry


def identity_of(headers: Mapping[str, str]) -> Identity | None:
    """Whose call it is, by its headers (names in lower case); None where they do not say, or not as they should."""
    call = headers.get(CALL_HEADER, "")
    if not call or len(call) > MAX_CALL_CHARS:
        return None
    try:
        return Identity(Life.parse(headers.get(LIFE_HEADER, "")), call)
    except InvalidName:
        return None


def _is_known(each: Frozen) -> bool:
    return each.count in each.buffer.known
