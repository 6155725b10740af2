"""Works out what each life had to do, from the checkpoints that the starts of a run found, and compares.

Every rollout of the counter takes the same steps in every run: model calls, tool calls, one verify. A life begins at
the boundary that its start's head has of its rollout, or at the beginning, and goes on without a gap or a repeat. So
nothing at or before a boundary is ever repeated, and what is repeated is counted exactly: the sum over all crashes of
what came after the boundary.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from store import Checkpoint, Life

from .harness import Run

Step = tuple[str, Any]
"""("model", digest of the prompt), ("tool", its argument) or ("verify", None)."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """How much of each kind of step a record has behind it."""

    model: int = 0
    tool: int = 0
    verify: int = 0

    def of(self, kind: str) -> int:
        """Steps of one kind."""
        return int(getattr(self, kind))


@dataclass(slots=True)
class Seen:
    """What the lives of a run did, by kind, in order."""

    model: dict[Life, list[Any]] = field(default_factory=lambda: defaultdict(list))
    tool: dict[Life, list[Any]] = field(default_factory=lambda: defaultdict(list))
    verify: dict[Life, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def of(self, kind: str) -> dict[Life, list[Any]]:
        """Steps of one kind."""
        found: dict[Life, list[Any]] = getattr(self, kind)
        return found

    def lives(self) -> list[Life]:
        """Every life that did something, in the order of the run."""
        every = {*self.model, *self.tool, *self.verify}
        return sorted(every, key=lambda life: (life.epoch, life.n))


def seen_of(run: Run) -> Seen:
    """From the logs of the backend and the counter."""
    seen = Seen()
    for life, digest in run.seen_calls():
        seen.model[life].append(digest)
    for line in run.seen_tools():
        seen.of(line["kind"])[Life.parse(line["life"])].append(line["what"])
    return seen


async def boundaries(checkpoint: Checkpoint) -> dict[str, Boundary]:
    """What a checkpoint has of each rollout of its scope."""
    payloads: dict[str, dict[str, Any]] = defaultdict(dict)
    for process in checkpoint.processes:
        async with checkpoint.records([process]) as records:
            async for record in records:
                payloads[record.life.rollout_id][process.name.kind] = record.payload
    return {life.rollout_id: _boundary(payloads[life.rollout_id]) for life in checkpoint.manifest.scope}


def _boundary(payloads: Mapping[str, Any]) -> Boundary:
    episode = payloads["environment"]["state"]
    if not episode:
        return Boundary()
    agent = (payloads.get("agent") or {"state": {}})["state"].get("activation")
    if episode["step"] in ("verify", "close", "done"):
        items = episode["response"]["output"]
        steps = int(episode["response"]["metadata"]["midflight_steps"])
        verified = episode["step"] != "verify" or _kept(payloads, "resources", episode["boundary"])
        return Boundary(steps, _outputs(items), int(verified))
    if not agent:
        return Boundary()
    kept = int(_kept(payloads, "model", agent["boundary"]))
    return Boundary(agent["state"]["steps"] + kept, _outputs(agent["state"]["items"]), 0)


def _outputs(items: Sequence[Mapping[str, Any]]) -> int:
    return sum(item.get("type") == "function_call_output" for item in items)


def _kept(payloads: Mapping[str, Any], kind: str, boundary: int) -> bool:
    """Whether the callee has kept a reply for the step after this boundary."""
    replies = (payloads.get(kind) or {"replies": []})["replies"]
    return any(f":{boundary}." in reply["call"] for reply in replies)


def check(seen: Seen, alone: Seen, found: Mapping[int, Mapping[str, Boundary]]) -> Boundary:
    """Assert that every life did what was left for it, and return how much was repeated.

    `alone` is an uninterrupted run; `found` has for each epoch what its start's head had of each rollout.
    """
    lives_of: dict[str, list[Life]] = defaultdict(list)
    for life in seen.lives():
        lives_of[life.rollout_id].append(life)
    expected = {life.rollout_id: life for life in alone.lives()}
    assert lives_of.keys() == expected.keys()
    repeated = dict.fromkeys(("model", "tool", "verify"), 0)
    for rollout_id, lives in lives_of.items():
        for kind in repeated:
            whole = alone.of(kind)[expected[rollout_id]]
            done = 0
            for life in lives:
                begin = found.get(life.epoch, {}).get(rollout_id, Boundary()).of(kind)
                steps = seen.of(kind).get(life, [])
                assert steps == whole[begin : begin + len(steps)], (
                    f"{life} did {kind} steps {steps}, and its boundary has {begin} of {whole} behind it"
                )
                assert begin <= done, f"{life} begins after {kind} step {begin}, and only {done} were done before it"
                repeated[kind] += done - begin if steps else 0
                done = begin + len(steps) if steps else done
            assert done == len(whole), f"{rollout_id} ended with {done} of {len(whole)} {kind} steps"
        total = {kind: sum(map(len, seen.of(kind).values())) for kind in repeated}
    wanted = {kind: sum(map(len, alone.of(kind).values())) + repeated[kind] for kind in repeated}
    assert total == wanted
    return Boundary(**repeated)
