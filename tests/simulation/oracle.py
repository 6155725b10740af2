"""What must hold in every state, said independently of the code under test, from the bytes alone."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from store import StoreError

from .actors import Told, prefix
from .exploration import Space, State

CHAIN = "chain/"
Read = Callable[[Mapping[str, bytes]], Iterable[str]]
"""The tokens that a fresh reader finds on the chain."""


@dataclass(slots=True)
class Replay:
    """The chain read by the letter of the design."""

    epoch: int = 0
    head: str | None = None
    base: str | None = None
    standing: dict[str, str] = field(default_factory=dict)
    """Checkpoint to digest: published or imported, and in no plan."""
    planned: set[str] = field(default_factory=set)
    plans: dict[int, list[str]] = field(default_factory=dict)
    published: set[str] = field(default_factory=set)

    def take(self, entry: dict[str, Any]) -> str:
        """What is wrong with the next entry; empty where nothing is."""
        action, epoch = entry["action"], entry["epoch"]
        problem = str(getattr(self, f"_{action['kind']}")(entry["n"], epoch, action))
        if problem:
            return f"entry {entry['n']}: {problem}"
        state = entry["state"]
        summed = (self.epoch, self.head, self.base, [[n, ids] for n, ids in self.plans.items()])
        plans = [[plan["n"], plan["checkpoints"]] for plan in state["plans"]]
        if summed != (state["epoch"], _id(state["head"]), _id(state["base"]), plans):
            return f"entry {entry['n']} sums up {state}, and not {summed}"
        return ""

    def _claim(self, n: int, epoch: int, action: dict[str, Any]) -> str:
        base = action["base"]
        if epoch <= self.epoch or (base and epoch <= int(base["checkpoint"].split(".")[0])):
            return f"epoch {epoch} does not rise"
        self.epoch, self.head, self.base = epoch, _id(base), _id(base)
        return "" if base is None else self._must_stand(base)

    def _seal(self, n: int, epoch: int, action: dict[str, Any]) -> str:
        return "" if epoch == self.epoch else f"a seal of epoch {epoch} stands after claim {self.epoch}"

    def _publication(self, n: int, epoch: int, action: dict[str, Any]) -> str:
        name = action["ref"]["checkpoint"]
        if epoch != self.epoch or int(name.split(".")[0]) != epoch:
            return f"publication {name} of epoch {epoch} stands after claim {self.epoch}"
        if name in self.published:
            return f"{name} is published twice"
        self.published.add(name)
        self.head = name
        return self._exists_now(action["ref"])

    def _import(self, n: int, epoch: int, action: dict[str, Any]) -> str:
        return self._exists_now(action["ref"])

    def _deletion(self, n: int, epoch: int, action: dict[str, Any]) -> str:
        names = action["checkpoints"]
        self.plans[n] = names
        self.planned |= set(names)
        for name in names:
            self.standing.pop(name, None)
        return f"the head {self.head} is in the plan" if self.head in names else ""

    def _deletion_end(self, n: int, epoch: int, action: dict[str, Any]) -> str:
        return "" if self.plans.pop(action["plan"], None) is not None else "it ends no open plan"

    def _must_stand(self, ref: dict[str, Any]) -> str:
        return "" if self.standing.get(ref["checkpoint"]) == ref["digest"] else f"{ref['checkpoint']} does not stand"

    def _exists_now(self, ref: dict[str, Any]) -> str:
        name = ref["checkpoint"]
        if name in self.planned:
            return f"{name} was planned to go and exists again"
        if self.standing.setdefault(name, ref["digest"]) != ref["digest"]:
            return f"{name} stands with another digest"
        return ""


def _id(ref: dict[str, Any] | None) -> str | None:
    return ref["checkpoint"] if ref else None


@dataclass(frozen=True, slots=True)
class Facts:
    """What one set of objects amounts to."""

    problem: str
    tokens: Counter[str]
    """How many entries carry each token."""
    publications: Counter[tuple[str, str]]
    """How many publications of each checkpoint have a token with each prefix of an actor."""


def facts(objects: Mapping[str, bytes], needs: Mapping[str, Iterable[str]]) -> Facts:
    """Judge the chain and what it names. `needs` has the keys that belong to the checkpoint of a digest."""
    keys = sorted(key for key in objects if key.startswith(CHAIN))
    if keys != [f"{CHAIN}{n:012d}.json" for n in range(1, len(keys) + 1)]:
        return Facts(f"the chain has a gap: {keys}", Counter(), Counter())
    entries = [json.loads(objects[key]) for key in keys]
    replay = Replay()
    problem = next((problem for problem in map(replay.take, entries) if problem), "")
    problem = problem or next(_missing(replay, objects, needs), "")
    publications = Counter(
        (entry["action"]["ref"]["checkpoint"], entry["token"][: len(prefix(0))])
        for entry in entries
        if entry["action"]["kind"] == "publication"
    )
    return Facts(problem, Counter(entry["token"] for entry in entries), publications)


def _missing(replay: Replay, objects: Mapping[str, bytes], needs: Mapping[str, Iterable[str]]) -> Iterator[str]:
    for name, digest in replay.standing.items():
        aggregate = f"checkpoints/{name}/manifest.json"
        for key in (aggregate, *needs.get(digest, ())):
            if key not in objects:
                yield f"{name} exists and {key} is gone"
        if aggregate in objects and json.loads(objects[aggregate])["sha256"] != digest:
            yield f"{aggregate} is not the one that was published"


class Oracle:
    """Judges each state; remembers each set of objects and each combination with journals."""

    def __init__(self, space: Space, needs: Mapping[str, Iterable[str]], read: Read) -> None:
        self._space = space
        self._needs = needs
        self._read = read
        self._facts: dict[int, Facts] = {}
        self._told: dict[Any, str] = {}

    def __call__(self, state: State) -> str:
        """What is wrong, or nothing."""
        found = self._facts.get(state.objects)
        if found is None:
            found = self._facts[state.objects] = self._judge(self._space.sets[state.objects])
        if found.problem:
            return found.problem
        key = (state.objects, *(node.journal for node in state.nodes))
        if key not in self._told:
            told = (contradiction(found, who, node.journal) for who, node in enumerate(state.nodes))
            self._told[key] = next(filter(None, told), "")
        return self._told[key]

    def _judge(self, objects: Mapping[str, bytes]) -> Facts:
        found = facts(objects, self._needs)
        if found.problem:
            return found
        try:
            seen = sorted(self._read(objects))
        except StoreError as error:
            return replace(found, problem=f"a reader with a stale listing is refused: {error}")
        if seen != sorted(found.tokens.elements()):
            return replace(found, problem=f"a reader with a stale listing sees {seen}, and there is {found.tokens}")
        return found

    def outcomes(self) -> int:
        """How many distinct sets of objects were met."""
        return len(self._facts)


def contradiction(found: Facts, who: int, journal: Iterable[Told]) -> str:
    """Where what an actor was told is not what stands on the chain."""
    for told in {told.what: told for told in journal}.values():
        if told.what.startswith(prefix(who)):
            problem = _append_problem(found, told)
        elif told.what[0].isdigit():
            problem = _publish_problem(found, who, told)
        else:
            problem = ""
        if problem:
            return f"actor {who}: {problem}"
    return ""


def _append_problem(found: Facts, told: Told) -> str:
    own = found.tokens[told.what]
    if own > 1:
        return f"{told.what} stands {own} times"
    if told.verdict == "refused" and own:
        return f"{told.what} was refused ({told.found}) and stands"
    if told.verdict == "ok" and found.tokens[told.found] != 1:
        return f"{told.what} succeeded as {told.found}, which does not stand"
    if told.verdict == "ok" and told.found != told.what and own:
        return f"{told.what} stands beside {told.found}"
    return ""


def _publish_problem(found: Facts, who: int, told: Told) -> str:
    own = found.publications[told.what, prefix(who)]
    total = sum(count for (name, _), count in found.publications.items() if name == told.what)
    if told.verdict == "refused" and own:
        return f"the publication of {told.what} was refused ({told.found}) and stands"
    if told.verdict == "ok" and total != 1:
        return f"the publication of {told.what} succeeded and stands {total} times"
    return ""
