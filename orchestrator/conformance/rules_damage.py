"""Rules about records that are not what was written."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from participants import ResourcesServer, ResourcesSession
from store import Life, MemoryBackend, Ref
from store.backends import MemorySpace

from ..errors import RestoreFailed
from .answers import difference, shown
from .playing import Outputs, Play, Recording, begin, steps_of, take, words
from .reports import Violation
from .rules_continuing import first_session, plain
from .stand import NotExported, Stand, stand
from .subject import Group
from .trials import Restored, Trial

BOUNDARIES = 2
_OTHERS: tuple[Any, ...] = (None, "x", [1], {"x": 1})
MUTATIONS = 16


async def damaged_records(trial: Trial, group: Group) -> None:
    """One byte of each stored part is turned over, and then its last one is missing; another rollout goes on."""
    run = await trial.record(group)
    if not run.refs:
        return
    done = max(run.refs)
    folder = f"checkpoints/{run.refs[done].checkpoint}/"
    parts = [
        key for key in run.space.objects if key.startswith(folder) and "index" not in key and "manifest" not in key
    ]
    for key in parts[:2]:
        data = run.space.objects[key].data
        turned = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        for how, damaged in (("a byte of the record is turned over", turned), ("its end is missing", data[:-1])):
            space = MemorySpace(dict(run.space.objects))
            await MemoryBackend(space=space).put(key, damaged)
            await _must_refuse(trial, run, done, space, how)


async def _must_refuse(trial: Trial, run: Recording, done: int, space: MemorySpace, how: str) -> None:
    group = run.play.group
    async with stand(trial.subject.make(), space, run.run) as at:
        beside, outputs = begin(at, group), Outputs()
        steps = steps_of(group)
        for step in steps[: len(group)]:
            await take(at, beside, step, outputs)
        told = [*run.told(done), f"a checkpoint; {how}; a restore"]
        if not await _refused(at, run.refs[done], run.play.lives):
            raise Violation("the restore succeeded", told)
        await _untouched(at, beside, outputs, told)


async def _refused(at: Stand, ref: Ref, lives: Sequence[Life]) -> bool:
    try:
        await at.restore(ref, lives)
    except RestoreFailed:
        return True
    return False


async def _untouched(at: Stand, beside: Play, outputs: Outputs, told: list[str]) -> None:
    """Nothing is active but the other rollout, which goes on."""
    counts, group = at.server.counts(), beside.group
    if counts["restored"] or counts["lives"] != len(group):
        raise Violation(f"the restore failed, and afterwards there are {counts}", told)
    for step in steps_of(group)[len(group) :]:
        answer = await take(at, beside, step, outputs)
        if answer.code in ("stale_life", "lost_session", "corrupt_checkpoint"):
            raise Violation(f"another rollout was touched: {words(group, step)} was answered {answer}", told)


class _Tampering:
    """What a tampering server writes in place of an export."""

    def __init__(self) -> None:
        self.value: Any = None
        self.rollout = ""


def _tampering_class(found: type[ResourcesServer], plan: _Tampering) -> type[ResourcesServer]:
    class Tampering(found):  # type: ignore[misc, valid-type]
        planned: ClassVar[_Tampering] = plan

        async def export_session(self, session: ResourcesSession) -> Any:
            exported = await super().export_session(session)
            mine = session.life is not None and session.life.rollout_id == self.planned.rollout
            return self.planned.value if mine else exported

    Tampering.__name__, Tampering.__qualname__ = found.__name__, found.__qualname__
    return Tampering


async def bad_states(trial: Trial, group: Group) -> None:
    """An export with a field missing, cut short, or of another type is refused, or is taken as it is."""
    run = await trial.record(group)
    for done in trial.boundaries([done for done in run.refs if done < len(run.steps)], BOUNDARIES):
        async with trial.restored(run, done) as found:
            exported = await found.at.server.export_session(await first_session(found.at, found.play))
        every = list(mutations(exported))
        for number in trial.some(range(len(every)), MUTATIONS):
            await _bad_state(trial, run, done, *every[number])


async def _bad_state(trial: Trial, run: Recording, done: int, how: str, value: Any) -> None:
    plan = _Tampering()
    made = trial.subject.make(_tampering_class(trial.subject.server, plan))
    told = [*run.told(done), f"a checkpoint whose state has {how}; the process dies; a restore"]
    async with stand(made, run.space, run.run) as at:
        await at.restore(run.refs[done], run.play.lives)
        play = run.play.continued(at)
        session = await first_session(at, play)
        before = await at.server.export_session(session)
        plan.value, plan.rollout = copy.deepcopy(value), play.lives[0].rollout_id
        try:
            ref = await at.checkpoint(play.lives)
        except NotExported:
            return
        space = at.space
    async with stand(trial.subject.make(), space, run.run) as at:
        beside, outputs = begin(at, run.play.group), Outputs()
        for step in steps_of(run.play.group)[: len(run.play.group)]:
            await take(at, beside, step, outputs)
        if await _refused(at, ref, play.lives):
            await _untouched(at, beside, outputs, told)
            return
        found = Restored(at, play.continued(at), run, done, run.outputs(done))
        await _honoured(found, before, value, told)


async def _honoured(found: Restored, before: Any, value: Any, told: list[str]) -> None:
    """What was taken is what stands in the session, and the session can go on with it."""
    held = await found.at.server.export_session(await first_session(found.at, found.play))
    if plain(held) not in (plain(value), plain(before)):
        where, took, holds = difference(plain(value), plain(held))
        raise Violation(f"the restore took {shown(took)}, and the export{where} is now {shown(holds)}", told)
    for step in found.run.steps[found.done :]:
        answer = await found.take(step)
        if answer.code == "internal":
            line = words(found.play.group, step)
            raise Violation(f"the restore took {shown(value)}, and then {line} failed: {answer.body}", told)


def mutations(value: Any) -> Iterator[tuple[str, Any]]:
    """What a state may be that was cut, or written by something else; with a few words for each."""
    whole: tuple[Any, ...] = (None, 7, "x", [], {})
    for other in whole:
        if type(other) is not type(value) or (other != value and not other):
            yield f"{shown(other)} in its place", other
    if isinstance(value, dict):
        for key in value:
            yield f"no {key!r}", {k: each for k, each in value.items() if k != key}
            for other in _others(value[key]):
                yield f"{shown(other)} as {key!r}", {**value, key: other}
    elif isinstance(value, list | str | bytes) and value:
        yield "half of it", value[: len(value) // 2]
        if isinstance(value, list):
            for other in _others(value[0]):
                yield f"{shown(other)} first", [other, *value[1:]]


def _others(value: Any) -> Iterator[Any]:
    """Of another type, and cut short."""
    yield from (other for other in _OTHERS if type(other) is not type(value))
    if isinstance(value, list | str | bytes) and value:
        yield value[: len(value) // 2]
