"""Measuring whole operations: a span and a duration each, and at a participant what its answer tells.

`operated` is the one door through which a control plane is asked, in this process or over HTTP.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import ParticipantError
from ..wire import Adopted, Committed, Prepared, Retire, Retired, Submitted
from . import names
from .hook import NO_SPAN, NoSpan, OpenSpan, active, add, observe, span
from .records import Attribute

if TYPE_CHECKING:
    from ..plane import ControlPlane


class Measured:
    """An operation that goes on."""

    __slots__ = ("outcome", "span")

    def __init__(self, opened: OpenSpan | NoSpan) -> None:
        """It ends well unless an error or somebody says otherwise."""
        self.span = opened
        self.outcome = "ok"

    def set(self, **attributes: Attribute) -> None:
        """Say something that was not known at the beginning."""
        for key, value in attributes.items():
            self.span.set(key, value)


@contextmanager
def measured(
    name: str, duration: str, labels: Mapping[str, str], attributes: Mapping[str, Attribute]
) -> Iterator[Measured]:
    """A span of that name, and a value of the histogram `duration` with these labels and the outcome."""
    if not active():
        yield Measured(NO_SPAN)
        return
    began = time.perf_counter()
    with span(name, **attributes) as opened:
        found = Measured(opened)
        try:
            yield found
        except Exception:
            found.outcome = "failed" if found.outcome == "ok" else found.outcome
            raise
        except BaseException:
            found.outcome = "cancelled"
            raise
        finally:
            observe(duration, time.perf_counter() - began, **labels, outcome=found.outcome)


def controlled(operation: str, **attributes: Attribute) -> Any:
    """One operation of the controller: a context manager that gives a `Measured`."""
    labels = {"operation": operation}
    return measured(f"midflight.{operation}", names.CONTROLLER_DURATION, labels, attributes)


def refused(participant: str, error: ParticipantError) -> None:
    """A request was refused; counts where what it belongs to is over."""
    if error.code in names.STALE:
        add(names.REFUSED, participant=participant, code=error.code.value)


@contextmanager
def refusing(participant: str) -> Iterator[None]:
    """What the block refuses is counted as by `refused`; on paths that are taken for every call, call that instead."""
    try:
        yield
    except ParticipantError as error:
        refused(participant, error)
        raise


async def operated(plane: "ControlPlane", operation: str, message: Any) -> Any:
    """Have a control plane carry out one operation. Raises what it raises."""
    carry_out: Callable[[Any], Awaitable[Any]] = getattr(plane, operation)
    if not active():
        return await carry_out(message)
    participant = plane.meter.participant
    labels = {"participant": participant, "operation": operation}
    attributes: dict[str, Attribute] = {**plane.meter.who, **_of_message(message)}
    try:
        with measured(f"{names.OPERATION}{operation}", names.PARTICIPANT_DURATION, labels, attributes) as found:
            answer = await carry_out(message)
            if isinstance(answer, Prepared) and not answer.prepared:
                found.outcome = "blocked"
            found.set(**_of_answer(answer))
    except ParticipantError as error:
        refused(participant, error)
        raise
    finally:
        plane.meter.count_requests()
    _count(participant, message, answer)
    return answer


def _of_message(message: Any) -> dict[str, Attribute]:
    """What a message says of itself: its round, and how many it is about."""
    found: dict[str, Attribute] = {}
    if (round_ := getattr(message, "round", None)) is not None:
        found["round"] = str(round_)
    for key in ("scope", "lives", "episodes", "rollouts"):
        if (given := getattr(message, key, None)) is not None:
            found["lives"] = len(given)
    return found


def _of_answer(answer: Any) -> dict[str, Attribute]:
    match answer:
        case Prepared():
            facts = {"blockers": answer.blocker_count, "restarts": len(answer.restarts)}
            return {"prepared": answer.prepared, **facts}
        case Committed():
            return {"records": answer.manifest.records, "bytes": answer.bytes_written}
        case Retired():
            return {"not_stopped": len(answer.not_stopped)}
        case Submitted():
            return {"refused": len(answer.refused)}
        case Adopted():
            return {"lives": len(answer.lives)}
    return {}


def _count(participant: str, message: Any, answer: Any) -> None:
    match answer:
        case Prepared():
            for blocker in answer.blockers:
                add(names.BLOCKERS, participant=participant, reason=names.reason_of(blocker))
            if unlisted := answer.blocker_count - len(answer.blockers):
                add(names.BLOCKERS, unlisted, participant=participant, reason=names.UNLISTED)
            if answer.restarts:
                add(names.RESTARTS, len(answer.restarts), participant=participant)
        case Retired():
            assert isinstance(message, Retire)
            add(names.RETIRED, len(message.lives), participant=participant)
            if answer.not_stopped:
                add(names.NOT_STOPPED, len(answer.not_stopped), participant=participant)
