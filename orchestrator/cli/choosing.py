"""Which checkpoint is meant, and what to say where there is none."""

from collections.abc import Iterable

from store import CheckpointId, InvalidInput, NoCheckpoint, Ref, Store, StoreError
from store.entries import require
from store.reader import Which

_MANY = 10


class NoHead(NoCheckpoint):
    """There is no head, but there is something that can be named."""

    def __init__(self, url: str, others: Iterable[CheckpointId]) -> None:
        found = list(map(str, others))
        more = f" and {len(found) - _MANY} more" if len(found) > _MANY else ""
        hint = f"Name what was imported: {', '.join(found[:_MANY])}{more}"
        StoreError.__init__(self, f"{url} has no head, for none of its checkpoints was published there", hint=hint)


class NoRollout(NoCheckpoint):
    """The checkpoint does not know this rollout."""

    def __init__(self, url: str, checkpoint: CheckpointId, rollout_id: str) -> None:
        hint = "`midflight checkpoints show --json` has the lists of those that it continues, restarts and leaves out"
        StoreError.__init__(self, f"checkpoint {checkpoint} of {url} knows no rollout {rollout_id}", hint=hint)


def parse_which(text: str) -> Which:
    """`head`, or a checkpoint id. Raises InvalidName."""
    return "head" if text == "head" else CheckpointId.parse(text)


def parse_drop(text: str) -> CheckpointId:
    """A checkpoint id that may be dropped as far as its name can tell. Raises InvalidInput."""
    if text == "head":
        raise InvalidInput("the head is never deleted", hint="Name a checkpoint that is not the head by its id")
    return CheckpointId.parse(text)


async def find(store: Store, which: Which) -> Ref:
    """What the chain says about a checkpoint. Raises NoCheckpoint, CheckpointDeleted, CorruptChain."""
    chain = await store.chain()
    if which != "head":
        return require(chain.known, store.url, which)
    if chain.state.head is not None:
        return chain.state.head
    if chain.known.refs:
        raise NoHead(store.url, chain.known.refs)
    raise NoCheckpoint(store.url)
