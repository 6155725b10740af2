"""Bugs that are put into the system on purpose, to show that the checker finds them, and in how many seeds.

Each takes the place of one decision of the real code while a simulation runs, and says which invariants it may break.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import anyio

import orchestrator.collect.epoch
import orchestrator.coordination
import orchestrator.fleet
import orchestrator.rounds
from orchestrator.collect.collector import Collector
from orchestrator.collect.ledger import RunLedger, Sets
from participants import ControlPlane, Fences, Gate, Holder, Replies
from participants.book import Book
from participants.custody import SessionHolder
from store import Controller, Segment
from store import publish as publishing

from .scenario import Fault, Scenario

Swap = Callable[[Any, str, Any], None]


@dataclass(frozen=True, slots=True)
class Planted:
    """One bug."""

    name: str
    breaks: frozenset[int]
    """Invariants, any of which shows it; 0 for a defect."""
    plant: Callable[[Swap], None]
    scenario: Scenario
    """What brings it to light, in most seeds."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """The bug is there while the block runs."""
        undo: list[tuple[Any, str, Any]] = []

        def swap(where: Any, name: str, value: Any) -> None:
            undo.append((where, name, vars(where)[name]))
            setattr(where, name, value)

        try:
            self.plant(swap)
            yield
        finally:
            for where, name, value in reversed(undo):
                setattr(where, name, value)


def _lease_ignored(swap: Swap) -> None:
    async def watch_lease(self: ControlPlane) -> None:
        await anyio.sleep_forever()

    swap(ControlPlane, "_watch_lease", watch_lease)
    swap(Book, "lease_ran_out", lambda self, now: False)


def _stale_epoch_accepted(swap: Swap) -> None:
    def check_call(self: Book, call: Any) -> None:
        if call.incarnation != self.incarnation:
            real(self, call)

    real = Book.check_call
    swap(Book, "check_call", check_call)


def _blocker_dropped(swap: Swap) -> None:
    async def wait_quiet(self: Gate) -> None:
        await anyio.lowlevel.checkpoint()

    swap(Gate, "wait_quiet", wait_quiet)
    swap(Gate, "in_flight", lambda self, limit: ([], 0))
    swap(orchestrator.coordination, "check_tallies", lambda fleet, answers: None)


def _restore_half_applied(swap: Swap) -> None:
    def activate(self: Holder[Any]) -> None:
        for rollout_id in list(self._staged)[1::2]:
            del self._staged[rollout_id]
        real(self)

    real = Holder.activate
    swap(Holder, "activate", activate)


def _fence_forgotten(swap: Swap) -> None:
    swap(Fences, "fence", lambda self, life: False)
    swap(Fences, "check_not_stale", lambda self, life: None)


def _double_delivery(swap: Swap) -> None:
    def begin(cls: Any, epoch: int, rollouts: Any, done: Any, *rest: Any) -> RunLedger:
        made: RunLedger = real.__func__(cls, epoch, rollouts, (), *rest)
        return made

    real: Any = vars(RunLedger)["begin"]
    swap(RunLedger, "begin", classmethod(begin))


def _publish_before_renew(swap: Swap) -> None:
    async def renew(*_: Any, **__: Any) -> None:
        await anyio.lowlevel.checkpoint()

    swap(orchestrator.rounds, "renew", renew)


def _cursor_ahead(swap: Swap) -> None:
    def segment(self: Collector) -> Segment:
        return Segment(name=str(self._output.epoch), length=self._output.length + 1000)

    swap(Collector, "segment", property(segment))


def _commit_marker_early(swap: Swap) -> None:
    written: list[Any] = []

    async def create_later(backend: Any, key: str, data: bytes) -> bool:
        written.append((backend, key, data))
        return True

    async def settle(self: Controller, decide: Any) -> Any:
        entry = await real(self, decide)
        while written:
            await create_once(*written.pop())
        return entry

    create_once, real = vars(publishing)["create_once"], Controller._settle
    swap(publishing, "create_once", create_later)
    swap(Controller, "_settle", settle)


def _no_plan(swap: Swap) -> None:
    async def plan(*_: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return True

    swap(import_module("store.prune"), "_plan", plan)


def _replies_not_exported(swap: Swap) -> None:
    swap(Replies, "export", lambda self: [])


def _not_once(swap: Swap) -> None:
    async def once(self: Any, held: Any, request: Any, run: Any) -> Any:
        return await run()

    swap(Holder, "once", once)


def _nothing_freed(swap: Swap) -> None:
    async def finish_all(self: Any, lives: Any) -> None:
        await anyio.lowlevel.checkpoint()

    swap(Holder, "finish_all", finish_all)
    swap(SessionHolder, "finish_all", finish_all)


def _scope_forgets_one(swap: Swap) -> None:
    def sets(self: RunLedger, restarts: Any) -> Sets:
        found = real(self, restarts)
        return Sets(found.scope[1:], found.restarts, found.dropped)

    async def unnamed(*_: Any) -> list[Any]:
        return []

    real = RunLedger.sets
    swap(RunLedger, "sets", sets)
    swap(Holder, "unnamed", unnamed)


def _not_sealed(swap: Swap) -> None:
    async def seal(self: Controller, segments: Any) -> None:
        await anyio.lowlevel.checkpoint()

    swap(Controller, "seal", seal)


def _no_deadline(swap: Swap) -> None:
    async def ask_all(members: Any, message: Any, answer: Any, *, timeout_s: float = 0.0) -> Any:
        return await real(members, message, answer, timeout_s=10_000.0)

    real = orchestrator.fleet.ask_all
    for where in (orchestrator.fleet, orchestrator.coordination):
        swap(where, "ask_all", ask_all)


def _gate_stays_closed(swap: Swap) -> None:
    def reopen(self: Gate) -> None:
        if self._closed_for == 0.0 or self.parked:
            real(self)

    real = Gate.reopen
    swap(Gate, "reopen", reopen)


ONE_EACH = {"environment.main": 1, "agent.main": 1, "model.main": 1, "resources.counter": 1}
BASE = Scenario(
    seed=0,
    amounts=((2,), (5, 1)),
    concurrency=2,
    workers=ONE_EACH,
    verify="replay",
    interval_s=0.3,
    lease_s=0.6,
    prepare_timeout_s=0.4,
    more_time_s=0.2,
    keep_last=1,
    slow=0.3,
    horizon_s=60.0,
)
"""Small and quick; each bug says which faults bring it to light."""


def _at(moment: str, kind: str, target: str = "", *, nth: int = 1, for_s: float = 0.1, rate: float = 0.0) -> Fault:
    return Fault(kind, 0.0, target, for_s, rate, moment, nth)


def _dead_controller() -> Scenario:
    return BASE.smaller(faults=tuple(_at("commit", "kill_controller", nth=nth) for nth in (2, 9, 14, 19)))


def _killed(*targets: str) -> Scenario:
    faults = [_at("renew", "kill", target, nth=nth) for target in targets for nth in (10, 18, 26)]
    return BASE.smaller(faults=tuple(faults), store_s=0.001, interval_s=0.15, slow=1.0, amounts=((2,), (5, 1), (4,)))


def _weather(kind: str, rate: float) -> Scenario:
    return BASE.smaller(faults=(Fault(f"network_{kind}", 0.05, for_s=6.0, rate=rate),), network_s=0.02)


def _taken_over(moment: str) -> Scenario:
    hang, rival = _at(moment, "hang_controller", for_s=3.0), _at(moment, "rival")
    return BASE.smaller(faults=(hang, rival), amounts=((), (), (1,), (1,)), concurrency=4, slow=0.1)


def _restarted() -> Scenario:
    return BASE.smaller(faults=(_at("rows", "kill_controller", nth=2), _at("rows", "kill_controller", nth=3)))


def _late_rows() -> Scenario:
    """A controller that stands still with a result in its hands, while another one takes over and delivers it too."""
    faults = [_at("verify", "hang_controller", nth=nth, for_s=4.0) for nth in (1, 2)]
    rival = Fault("rival", 0.0, for_s=0.1, moment="verify", nth=2)
    return BASE.smaller(faults=(*faults, rival), amounts=((), ()), network_s=0.05)


def _long_rounds() -> Scenario:
    """Leases that begin at different times, since some participants wait for tools, and end while others write."""
    amounts = ((2, 3), (5, 1), (4, 4))
    return BASE.smaller(lease_s=0.45, store_s=0.04, slow=0.6, verify="wait", amounts=amounts, concurrency=3)


def _hung() -> Scenario:
    return BASE.smaller(faults=(_at("prepare", "hang", "resources.counter-0", nth=2, for_s=40.0),))


PLANTED: Mapping[str, Planted] = {
    planted.name: planted
    for planted in (
        Planted("lease ignored", frozenset({4, 6}), _lease_ignored, _dead_controller()),
        Planted("stale epoch accepted", frozenset({1, 4}), _stale_epoch_accepted, _taken_over("prepare")),
        Planted("blocker dropped", frozenset({2}), _blocker_dropped, _long_rounds()),
        Planted("restore half applied", frozenset({7}), _restore_half_applied, _killed("environment.main-0")),
        Planted("fences forgotten", frozenset({1, 3, 12}), _fence_forgotten, _weather("twice", 0.5)),
        Planted("double delivery", frozenset({3}), _double_delivery, _restarted()),
        Planted("published before renewed", frozenset({2}), _publish_before_renew, _long_rounds()),
        Planted("cursor ahead", frozenset({4}), _cursor_ahead, BASE),
        Planted("commit marker early", frozenset({2}), _commit_marker_early, BASE),
        Planted("deleted without a plan", frozenset({8}), _no_plan, BASE),
        Planted(
            "replies not exported", frozenset({11}), _replies_not_exported, _killed("agent.main-0", "model.main-0")
        ),
        Planted("carried out twice", frozenset({11}), _not_once, _weather("twice", 0.5)),
        Planted("nothing freed", frozenset({12}), _nothing_freed, BASE),
        Planted("scope forgets one", frozenset({4}), _scope_forgets_one, BASE),
        Planted("not sealed", frozenset({3}), _not_sealed, _late_rows().smaller(seed=3)),
        Planted("no deadline", frozenset({10}), _no_deadline, _hung()),
        Planted("gate stays closed", frozenset({4, 6}), _gate_stays_closed, BASE),
    )
}
