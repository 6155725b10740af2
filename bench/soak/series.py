"""The series of a soak, made of its journal: what each is measured on, and what it may rise by."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .looking import Seen
from .verdict import Point, Tolerance, Verdict, judge

NEW_S = (5.0, 60.0)
"""A process between these ages counts as new."""
LONG_LIVED = {
    "served": ("environment.main", "agent.main", "model.main", "resources.counter", "up"),
    "controlled": ("collect",),
}
"""By fleet, the roles that nobody kills."""
ENTRY_BYTES = 4000
"""That an entry of the chain takes in the memory of a controller, which keeps all of them: by design, so no leak."""
AGES_S = {"under 10 s": 10.0, "to 1 min": 60.0, "to 10 min": 600.0, "to 1 h": 3600.0, "over 1 h": float("inf")}

MEMORY = Tolerance(0.05, 4e6)
DESCRIPTORS = Tolerance(0.0, 3.0)
THREADS = Tolerance(0.0, 2.0)
STORE_BYTES = Tolerance(0.10, 100e3)
STORE_OBJECTS = Tolerance(0.10, 30.0)
WORK_FILES = Tolerance(0.0, 5.0)
SECONDS = Tolerance(0.50, 0.25)


@dataclass(slots=True)
class Series:
    """One of them."""

    name: str
    unit: str
    tolerance: Tolerance | None
    """None for one that is shown and not judged."""
    points: list[Point] = field(default_factory=list)

    def verdict(self, until_s: float) -> Verdict | None:
        """None where it is not judged, or too short."""
        return judge(self.points, until_s, self.tolerance) if self.tolerance is not None else None


class Board:
    """All series, in the order in which they are first met."""

    def __init__(self) -> None:
        """None."""
        self.all: dict[str, Series] = {}

    def add(self, at_s: float, name: str, value: float, unit: str, tolerance: Tolerance | None = None) -> None:
        """One point."""
        series = self.all.setdefault(name, Series(name, unit, tolerance))
        series.points.append(Point(at_s, value))


def series_of(lines: Iterable[Mapping[str, Any]]) -> list[Series]:
    """Of the time with kills: what comes after it is no steady state."""
    board = Board()
    for line in lines:
        if line["kind"] == "drain":
            break
        read = _READERS.get(line["kind"])
        if read is not None:
            read(board, line)
    return sorted(board.all.values(), key=lambda series: series.name)


def _fleet(board: Board, line: Mapping[str, Any]) -> None:
    fleet, at_s = line["fleet"], line["at"]
    if (store := line.get("store")) is not None:
        board.add(at_s, f"{fleet}: store, bytes", store["size"], "B", STORE_BYTES)
        board.add(at_s, f"{fleet}: store, objects", store["objects"], "", STORE_OBJECTS)
        board.add(at_s, f"{fleet}: chain, entries (grows by design)", store["chain_objects"], "")
    board.add(at_s, f"{fleet}: folder of the servers, files", line["work_files"], "", WORK_FILES)
    board.add(at_s, f"{fleet}: rows done so far", line["rows"], "")
    seen = [Seen(*values) for values in line["processes"]]
    entries = (store or {}).get("chain_objects", 0)
    _processes(board, fleet, at_s, [_without_chain(one, entries) for one in seen])


def _without_chain(one: Seen, entries: int) -> Seen:
    return replace(one, rss=one.rss - entries * ENTRY_BYTES) if one.role == "collect" else one


def _processes(board: Board, fleet: str, at_s: float, seen: list[Seen]) -> None:
    roles: dict[str, list[Seen]] = defaultdict(list)
    for one in seen:
        roles[one.role].append(one)
    for role, found in roles.items():
        if role in LONG_LIVED.get(fleet, ()):
            _resources(board, f"{fleet}: {role}, lives on", at_s, found, 1)
        elif new := [one for one in found if NEW_S[0] <= one.age_s <= NEW_S[1]]:
            _resources(board, f"{fleet}: {role}, new", at_s, new, len(new))


def _resources(board: Board, name: str, at_s: float, seen: list[Seen], count: int) -> None:
    """All processes of a role together, divided by `count`."""
    board.add(at_s, f"{name}: memory", sum(one.rss for one in seen) / count, "B", MEMORY)
    board.add(at_s, f"{name}: descriptors", sum(one.descriptors for one in seen) / count, "", DESCRIPTORS)
    board.add(at_s, f"{name}: threads", sum(one.threads for one in seen) / count, "", THREADS)


def _commit(board: Board, line: Mapping[str, Any]) -> None:
    board.add(line["at"], f"{line['fleet']}: commit", line["took_s"], "s", SECONDS)


def _restore(board: Board, line: Mapping[str, Any]) -> None:
    board.add(line["at"], f"{line['fleet']}: restore", line["took_s"], "s", SECONDS)


def _look(board: Board, line: Mapping[str, Any]) -> None:
    board.add(line["at"], "load of the machine", line["load"], "")


_READERS = {"fleet": _fleet, "commit": _commit, "restore": _restore, "look": _look}


def by_age(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[Seen]]]:
    """Every process that was seen, by fleet and role, and by its age then."""
    found: dict[str, dict[str, list[Seen]]] = defaultdict(lambda: {name: [] for name in AGES_S})
    for line in lines:
        for values in line["processes"] if line["kind"] in ("fleet", "look") else ():
            one = Seen(*values)
            name = next(name for name, limit_s in AGES_S.items() if one.age_s < limit_s)
            found[f"{line['fleet']}: {one.role}" if "fleet" in line else one.role][name].append(one)
    return found
