"""A fake trainer: a cursor over rows, a buffer of results, weights and an optimizer that say what they were made of.

Weights are a digest over the ids trained on, in their order, so that a rollout that is trained on twice, or never,
changes them. `check_chain` looks at every checkpoint that was published: rows up to the cursor, and no others, are
trained on, in the buffer, or undelivered, each once.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midflight import CoordinationError, Fenced, ServersLost, Store, StoreError, TrainingRun, open_checkpoint
from store.reader import published

Rows = Sequence[Mapping[str, Any]]


def id_of(position: int) -> str:
    """The rollout of a row."""
    return f"row-{position}"


def weights_after(trained: Sequence[str]) -> bytes:
    """What training on these, in this order, makes of the weights."""
    return hashlib.sha256(" ".join(trained).encode()).digest()


@dataclass
class Trainer:
    """One life of a trainer."""

    rows: Rows
    in_flight: int = 3
    batch: int = 2
    every: int = 1
    """Steps between two checkpoints."""
    folder: Path | None = None
    """Where weights are written as files, too."""
    tell: Callable[[str], object] = str
    """Is told of each checkpoint."""
    trained: list[str] = field(default_factory=list)
    buffer: list[str] = field(default_factory=list)
    step: int = 0
    saved: int = 0
    """The step that is known to be in a checkpoint."""

    def begin(self, run: TrainingRun) -> None:
        """Go on where the head was taken."""
        state = run.state
        if state is None:
            return
        self.trained, self.buffer, self.step = state["trained"], state["buffer"], state["step"]
        assert state["weights"] == weights_after(self.trained)
        assert state["optimizer"] == weights_after(self.trained[::-1])
        if self.folder is not None:
            assert run.files["weights"].read_bytes() == state["weights"]

    def own_state(self) -> Any:
        """What a checkpoint needs."""
        return {
            "trained": self.trained,
            "buffer": self.buffer,
            "step": self.step,
            "weights": weights_after(self.trained),
            "optimizer": weights_after(self.trained[::-1]),
        }

    async def train(self, run: TrainingRun) -> None:
        """Until every row is trained on, and all of it is in a checkpoint."""
        while len(self.trained) < len(self.rows):
            await self.fill(run)
            result = await run.next()
            assert result.failure is None, result
            self.buffer.append(result.rollout_id)
            if len(self.buffer) >= self.batch or not run.undelivered:
                self.trained += self.buffer
                self.buffer = []
                self.step += 1
                if self.step % self.every == 0:
                    await self.save(run)
        while self.saved < self.step:
            await self.save(run)

    async def fill(self, run: TrainingRun) -> None:
        """Keep rollouts in flight."""
        cursor = run.cursor or 0
        while cursor < len(self.rows) and len(run.undelivered) < self.in_flight:
            await run.dispatch({id_of(cursor): self.rows[cursor]}, cursor=cursor + 1, after=run.cursor)
            cursor += 1

    async def save(self, run: TrainingRun) -> None:
        """One checkpoint; where it fails the next one is tried in time."""
        try:
            async with run.checkpoint() as save:
                save.state = self.own_state()
                if self.folder is not None:
                    path = self.folder / f"weights-{self.step}"
                    path.write_bytes(weights_after(self.trained))
                    save.file("weights", path)
            self.saved = self.step
            self.tell(f"saved {len(self.trained)} with {len(run.undelivered)}")
        except (ServersLost, Fenced):
            raise
        except (CoordinationError, StoreError):
            return


def problems_of(state: Any, rows: int) -> list[str]:
    """Why the state of one checkpoint is of no single moment."""
    trainer = state["trainer"]
    counts = Counter([*trainer["trained"], *trainer["buffer"], *state["rows"]])
    read = {id_of(position) for position in range(state["cursor"] or 0)}
    return [
        *(f"{rollout_id} is there {times} times" for rollout_id, times in counts.items() if times > 1),
        *(f"{rollout_id} is behind the cursor, and nowhere" for rollout_id in sorted(read - counts.keys())),
        *(f"{rollout_id} is there, and the cursor before it" for rollout_id in sorted(counts.keys() - read)),
        *(["more rows are read than there are"] if len(read) > rows else []),
    ]


async def check_chain(store: Store, rows: int) -> Any:
    """Every published checkpoint is of one moment; gives the trainer's state in the last."""
    state: Any = None
    for ref in published(await store.chain()):
        checkpoint = await open_checkpoint(store, ref)
        await checkpoint.verify()
        state = await checkpoint.state()
        assert problems_of(state, rows) == [], ref.checkpoint
        manifest = checkpoint.manifest
        lives = (*manifest.scope, *manifest.restarts, *(dropped.life for dropped in manifest.dropped))
        assert {life.rollout_id for life in lives} == state["rows"].keys()
    return state


def check_finished(state: Any, rows: int) -> None:
    """Every row was trained on once, and the weights were made of nothing else."""
    trainer = state["trainer"]
    assert Counter(trainer["trained"]) == Counter(map(id_of, range(rows)))
    assert (trainer["buffer"], state["rows"], state["cursor"]) == ([], {}, rows)
    assert trainer["weights"] == weights_after(trainer["trained"])
