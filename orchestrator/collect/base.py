"""From which checkpoint a start continues: the head, or with `--from` an older one of the same run that is named.

Nothing is fallen back to: where the one that is continued from is damaged, the error says which older ones could be
named. A claim of an older one makes it the head again, and what was published after it stays until it is pruned.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from participants import Code, ParticipantError
from participants.serving import ConfigError
from store import Chain, CheckpointId, Claim, CorruptCheckpoint, Ref, published

from ..errors import RestoreFailed


class NotABase(ConfigError):
    """The checkpoint that `--from` names cannot be continued from; nothing was claimed."""

    def __init__(self, url: str, checkpoint: CheckpointId, why: str, others: Sequence[CheckpointId]) -> None:
        there = f"There are {_listed(others)}" if others else "There is none that can be named"
        super().__init__(f"--from {checkpoint}: {why} ({url}). {there}; nothing was changed")


class DamagedBase(CorruptCheckpoint):
    """What a start continues from is damaged. An older checkpoint can be named, and is never taken by itself."""

    def __init__(self, name: str, reason: str, base: CheckpointId, older: Sequence[CheckpointId]) -> None:
        super().__init__(name, reason)
        first = "Nothing was activated. Put what is damaged back from a copy and run the same command again"
        if older:
            told = f"older than {base} there is {_listed(older)}; rows that are done stay done"
            other = f"or continue from an older checkpoint with --from {older[-1]} ({told})"
        else:
            other = f"or, as there is no checkpoint older than {base}, start anew with --fresh: rows do not count then"
        self.hint = f"{first}, {other}"


def _listed(checkpoints: Sequence[CheckpointId]) -> str:
    return ", ".join(map(str, checkpoints))


def bases(chain: Chain) -> list[Ref]:
    """What a start may continue from, oldest first: this run's own checkpoints since the last fresh start."""
    begun = max((e.epoch for e in chain.entries if isinstance(e.action, Claim) and e.action.base is None), default=0)
    return [ref for ref in published(chain) if ref.run_id == chain.run_id and ref.checkpoint.epoch >= begun]


def choose_base(chain: Chain, url: str, named: CheckpointId | None) -> Ref | None:
    """The checkpoint that is named, or the head where none is. Raises NotABase."""
    if named is None:
        return chain.state.head
    found = {ref.checkpoint: ref for ref in bases(chain)}
    if named in found:
        return found[named]
    raise NotABase(url, named, _why_not(chain, named), list(found))


def _why_not(chain: Chain, named: CheckpointId) -> str:
    known = chain.known
    if named in known.deleted:
        return f"this checkpoint was deleted by chain entry {known.deleted[named]}"
    if named not in known.refs:
        return "there is no such checkpoint"
    if known.refs[named].run_id != chain.run_id:
        return "this checkpoint was copied in from another run"
    return "this checkpoint is of before the last --fresh, and does not count any more"


@contextmanager
def naming_older(chain: Chain, base: Ref) -> Iterator[None]:
    """Damage of `base` that the block meets, or a participant in it, comes out as DamagedBase."""
    try:
        yield
    except CorruptCheckpoint as error:
        raise DamagedBase(error.name, error.reason, base.checkpoint, _older(chain, base)) from error
    except RestoreFailed as error:
        found = {who: why for who, why in error.failures.items() if _is_damage(why)}
        if not found:
            raise
        reason = "; ".join(f"{who}: {why}" for who, why in sorted(found.items(), key=lambda item: item[0]))
        raise DamagedBase(f"checkpoint {base.checkpoint}", reason, base.checkpoint, _older(chain, base)) from error


def _older(chain: Chain, base: Ref) -> list[CheckpointId]:
    found = [ref.checkpoint for ref in bases(chain)]
    return found[: found.index(base.checkpoint)] if base.checkpoint in found else []


def _is_damage(why: BaseException | str) -> bool:
    return isinstance(why, ParticipantError) and why.code is Code.CORRUPT_CHECKPOINT
