"""Train a small Llama through real servers, with checkpoints of trainer and rollouts in one step.

    python -m examples.training [FOLDER]            again after any kill: it goes on

What is in FOLDER: weights/<step>, the store of checkpoints, the capture ledger, and log.jsonl of everything that was
done, also of what a crash undid. The end is in history.json: what was trained on, and a digest of the last weights.
"""

import argparse
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import httpx
import orjson

import midflight
from orchestrator.collect.config import load_participants
from orchestrator.deployment import deployed
from orchestrator.training import TrainingRun

from .learner import Learner
from .samples import RolloutFailed, Sample, sample_of
from .vowels import GROUP_SIZE, TURNS, group_rows
from .worker import Worker, worker_of

SERVERS = f"""
model = {{{{ base_url = "{{url}}/v1", model = "midflight-llama", dialect = "responses" }}}}
agent = {{{{ server = "participants.gymnasium_agent:GymnasiumAgent", max_steps = {TURNS} }}}}
resources.vowels = {{{{ server = "vowels:VowelServer" }}}}
capture = {{{{ folder = "ledger" }}}}
checkpoint = {{{{ enabled = true, url = "checkpoints" }}}}
fleet = {{{{ mode = "adopt" }}}}
"""
MOST_STARTS = 20


@dataclass(frozen=True)
class Plan:
    """What is asked for; another number of steps, groups or another seed is another run."""

    folder: Path
    steps: int = 50
    groups: int = 6
    """Of each step."""
    save_s: float = 2.0
    """Between two checkpoints."""
    seed: int = 0

    @property
    def meaning(self) -> dict[str, str]:
        """What makes it another run."""
        return {"steps": f"{self.steps}", "groups": f"{self.groups}", "seed": f"{self.seed}"}


@dataclass(frozen=True, slots=True)
class Places:
    """Where the run reads and tells: the capture ledger, the worker, the log."""

    client: httpx.AsyncClient
    model_url: str
    worker: Worker


class Trainer:
    """The loop, and everything that it would lose in a crash."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._learner = Learner(plan.seed, plan.steps)
        self.history: list[dict[str, Any]] = []
        """What was trained on, a step each."""
        self.buffer: dict[str, Sample] = {}
        """Rollouts that have come and were not trained on."""

    @property
    def weights(self) -> Path:
        """The folder of the newest ones; its name is their version."""
        return self._plan.folder / "weights" / str(len(self.history))

    async def train(self, run: TrainingRun, places: Places) -> None:
        """From the head to the last step."""
        if run.state is not None:
            self.history, self.buffer = run.state["history"], run.state["buffer"]
            self._learner.load(run.files["weights"].parent)
        else:
            self._learner.save(self.weights)
        self._log("began", buffered=len(self.buffer), undelivered=len(run.undelivered))
        await places.worker.load(self.weights.name)
        due = anyio.current_time()
        while len(self.history) < self._plan.steps:
            if not run.undelivered and not self.buffer:
                await self._dispatch(run)
            result = None
            with anyio.move_on_after(due - anyio.current_time()):
                result = await run.next()
            if result is not None:
                sample = await sample_of(result, places.client, places.model_url, self.weights.name)
                self.buffer[result.rollout_id] = sample
            if self.buffer and not run.undelivered:
                self._learn()
                await places.worker.load(self.weights.name)
            if anyio.current_time() >= due:
                await self._checkpoint(run)
                due = anyio.current_time() + self._plan.save_s
        await self._checkpoint(run)

    async def _dispatch(self, run: TrainingRun) -> None:
        """The groups of a step; the cursor is the number of the first group that nobody has."""
        first = run.cursor or 0
        behind = first + self._plan.groups
        rows = {name: row for group in range(first, behind) for name, row in group_rows(group).items()}
        await run.dispatch(rows, cursor=behind, after=run.cursor)

    async def _checkpoint(self, run: TrainingRun) -> None:
        """Trainer and rollouts as they stand now, in one step."""
        async with run.checkpoint() as save:
            save.state = {"history": self.history, "buffer": self.buffer}
            save.file("weights", self.weights / "model.safetensors")
            save.file("optimizer", self.weights / "optimizer.safetensors")
        self._log("saved", held_s=save.held_s, buffered=len(self.buffer), undelivered=len(run.undelivered))

    def _learn(self) -> None:
        """One step, on its groups in the order of the cursor, whatever order they came in."""
        ids = sorted(self.buffer)
        samples = [self.buffer[name] for name in ids]
        step, version = len(self.history), self.weights.name
        self._learner.update(step, [samples[n : n + GROUP_SIZE] for n in range(0, len(samples), GROUP_SIZE)])
        self.history.append(
            {
                "rollouts": ids,
                "tokens": sha256(orjson.dumps([[each["ids"], each["logprobs"]] for each in samples])).hexdigest(),
                "weights": version,
                "reward": sum(each["reward"] for each in samples) / len(samples),
            }
        )
        self.buffer = {}
        self._learner.save(self.weights)
        self._log("trained", carried=sum(each["carried"] for each in samples), **self.history[-1])

    def _log(self, event: str, **facts: Any) -> None:
        line = orjson.dumps({"event": event, "at": time.time(), **facts, "step": len(self.history)})
        with (self._plan.folder / "log.jsonl").open("ab") as log:
            log.write(line + b"\n")
        if event == "trained":
            print(f"step {len(self.history)}: reward {self.history[-1]['reward']:.3f}", flush=True)

    def finish(self) -> None:
        """Say what it all came to."""
        end = {"history": self.history, "weights": self._learner.digest()}
        (self._plan.folder / "history.json").write_bytes(orjson.dumps(end, option=orjson.OPT_INDENT_2))


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[list[midflight.HttpLink], Places]]:
    """Worker and servers as processes: those that a killed trainer has left, and new ones for what is missing."""
    async with worker_of(folder) as worker:
        (folder / "run.toml").write_text(SERVERS.format(url=worker.url))
        config = load_participants(folder / "run.toml")
        assert config.fleet is not None
        async with (
            deployed(config, config.fleet, path=Path(__file__).parent) as fleet,
            midflight.http_client(fleet.token) as client,
        ):
            [model] = [server.url for server in fleet.servers if server.role == "model.main"]
            links = [midflight.HttpLink(server.url, client) for server in fleet.servers]
            yield links, Places(client, model, worker)


async def start(plan: Plan) -> None:
    """One start: whatever is there of the run is continued, to its end."""
    trainer = Trainer(plan)
    async with (
        midflight.open_store(plan.folder / "checkpoints", "write") as store,
        served(plan.folder) as (links, places),
        midflight.training_run(links, store, fingerprint=plan.meaning) as run,
    ):
        await trainer.train(run, places)
    trainer.finish()


async def main(plan: Plan) -> None:
    """Start, and start again where servers were lost: everything goes on from the last checkpoint."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    for _ in range(MOST_STARTS):
        try:
            return await start(plan)
        except* (midflight.CoordinationError, RolloutFailed) as lost:
            print(f"again from the last checkpoint: {lost.exceptions}", flush=True)
    raise SystemExit(f"{MOST_STARTS} starts have failed")


def plan_of(arguments: list[str] | None = None) -> Plan:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m examples.training")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/training"))
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--groups", type=int, default=Plan.groups, help="of a step")
    parser.add_argument("--save-s", type=float, default=Plan.save_s, help="between two checkpoints")
    return Plan(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    anyio.run(main, plan_of())
