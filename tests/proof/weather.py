"""What becomes of each message and each request of the store now: from the faults that last, and from chance."""

import random

from .history import History
from .scenario import Fault, Scenario


class Skies:
    """Implements `Weather` and `Climate`."""

    def __init__(self, scenario: Scenario, chance: random.Random, history: History) -> None:
        self._scenario = scenario
        self._chance = chance
        self._history = history
        self.lasting: list[Fault] = []

    def begin(self, fault: Fault) -> None:
        self.lasting.append(fault)

    def end(self, fault: Fault) -> None:
        self.lasting.remove(fault)

    def _strikes(self, kind: str) -> bool:
        found = any(fault.kind == kind and self._chance.random() < fault.rate for fault in self.lasting)
        if found:
            self._history.reached[kind] += 1
        return found

    # The network

    def delay(self, sender: str, receiver: str) -> float:
        late = 200.0 if self.lasting and self._strikes("network_late") else 1.0
        return self._chance.random() * self._scenario.network_s * late

    def fate(self, sender: str, receiver: str) -> str:
        if not self.lasting:
            return "fine"
        for fault in self.lasting:
            if fault.kind == "partition":
                cut = fault.target.split()
                if (_place(sender) in cut) != (_place(receiver) in cut):
                    self._history.reached["partition"] += 1
                    return "lost"
        for fate in ("lost", "broken", "twice"):
            if self._strikes(f"network_{fate}"):
                return fate
        return "fine"

    def silent_crash(self) -> bool:
        return self._chance.random() < 0.2

    # The store

    def store_delay(self, verb: str) -> float:
        slow = 100.0 if self.lasting and self._strikes("store_slow") else 1.0
        return self._chance.random() * self._scenario.store_s * slow

    def store_fate(self, verb: str, key: str) -> str:
        if not self.lasting:
            return "fine"
        writes: tuple[str, ...] = ("full", "denied", "broken") if verb in ("create", "put") else ()
        reads: tuple[str, ...] = ("cut",) if verb in ("get", "get_range") else ()
        for fate in ("unsent", "reply_lost", *writes, *reads):
            if self._strikes(f"store_{fate}"):
                return fate
        return "fine"

    def listing_age(self) -> float:
        return 30.0 if self.lasting and self._strikes("store_stale") else 0.0

    def after_death(self, verb: str) -> str:
        torn = any(fault.kind == "store_torn" for fault in self.lasting)
        drawn = self._chance.random()
        return "torn" if torn and drawn < 0.5 else "lost" if drawn < 0.7 else "done"


def _place(name: str) -> str:
    """Of a process: controllers are all in one."""
    return "controller" if name.startswith("controller") else name
