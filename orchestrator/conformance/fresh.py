"""A process that has nothing of the one that took the checkpoint: what a crash really leaves.

A child imports the class once and forks for every job, so that each restore finds modules and classes as they are right
after the import. One job is one line of JSON to it, and one line back.
"""

import base64
import importlib
import json
import os
import sys
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from participants import ResourcesServer
from participants.serving.loading import find_class
from store import CheckpointId, Life, MemoryBackend, Ref
from store.backends import MemorySpace

from .answers import Answer
from .playing import Outputs, Play, Recording, steps_of, take
from .stand import stand
from .subject import ROLE, Subject, case_of, document_of, packages

JOB_S = 60.0
MODULE = "orchestrator.conformance"


@dataclass(slots=True)
class Child:
    """The other process."""

    process: Process
    lines: AsyncIterator[str]
    left: str = field(default="")

    async def continuation(self, run: Recording, done: int, *, later_s: float = 0.0) -> list[Answer]:
        """What a recording is answered from a boundary on, with all clocks so much later. Raises ChildDied."""
        job = {
            "run": run.run,
            "objects": {key: base64.b64encode(each.data).decode() for key, each in run.space.objects.items()},
            "ref": [str(run.refs[done].checkpoint), run.refs[done].digest],
            "lives": [str(life) for life in run.play.lives],
            "group": [document_of(case) for case in run.play.group],
            "outputs": run.outputs(done).given,
            "done": done,
            "later_s": later_s,
        }
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps(job).encode() + b"\n")
        with anyio.fail_after(JOB_S):
            found = json.loads(await self._line())
        if "error" in found:
            raise ChildDied(found["error"])
        return [Answer(*each) for each in found["answers"]]

    async def _line(self) -> str:
        while "\n" not in self.left:
            try:
                self.left += await anext(self.lines)
            except (StopAsyncIteration, anyio.EndOfStream):
                raise ChildDied(f"it ended with code {await self.process.wait()}") from None
        line, _, self.left = self.left.partition("\n")
        return line


class ChildDied(Exception):
    """The other process could not do it; the message says why."""


@asynccontextmanager
async def child(subject: Subject) -> AsyncIterator[Child]:
    """Start it, and end it with the context."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", MODULE, subject.target, json.dumps(_sent(subject.conformance.options))]
    process = await anyio.open_process(command, env=environment, stderr=None)
    assert process.stdout is not None
    assert process.stdin is not None
    # What the server has imported at first use here: else each of the forks would import it, for seconds.
    await process.stdin.send(json.dumps(sorted(packages() - subject.imported)).encode() + b"\n")
    try:
        yield Child(process, aiter(TextReceiveStream(process.stdout)))
    finally:
        with anyio.CancelScope(shield=True):
            await process.stdin.aclose()
            with anyio.move_on_after(5):
                await process.wait()
            if process.returncode is None:
                process.kill()
            await process.aclose()


def _sent(options: Mapping[str, Any]) -> dict[str, Any]:
    """What can be sent of the options; the class itself gives the others there."""
    return {key: value for key, value in options.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


# The other side


def serve_jobs(target: str, options: dict[str, Any], jobs: TextIO, answers: TextIO) -> None:
    """Do the jobs of a parent until it has no more."""
    subject = load(target, options)
    for name in json.loads(jobs.readline() or "[]"):
        with suppress(ImportError):
            importlib.import_module(name)
    for line in jobs:
        answers.flush()
        number = os.fork()
        if number == 0:
            _do(subject, json.loads(line), answers)
        _, status = os.waitpid(number, 0)
        if status:
            told = f"the process that restored it ended with code {os.waitstatus_to_exitcode(status)}"
            answers.write(json.dumps({"error": told}) + "\n")
        answers.flush()


def load(target: str, options: dict[str, Any]) -> Subject:
    """The class that is named, with what it says of itself. Raises ConfigError."""
    found: type[ResourcesServer] = find_class(ROLE, target, ResourcesServer)
    said = found.conformance()
    return Subject(found, replace(said, options={**said.options, **options}), target)


def _do(subject: Subject, job: dict[str, Any], answers: TextIO) -> None:
    """In the fork, which ends here."""
    try:
        if job["later_s"]:
            shift_clocks(job["later_s"])
        found: dict[str, Any] = {"answers": anyio.run(_continue, subject, job)}
    except BaseException as error:
        traceback.print_exc()
        found = {"error": repr(error)[:2000]}
    answers.write(json.dumps(found) + "\n")
    answers.flush()
    os._exit(0)


def shift_clocks(seconds: float) -> None:
    """Let every clock of the module `time` be so much later, as after a long time down, or on another machine."""
    import time

    for name in ("time", "monotonic", "perf_counter"):
        _shift(time, name, seconds)
        _shift(time, f"{name}_ns", int(seconds * 1e9))


def _shift(module: Any, name: str, by: float) -> None:
    true = getattr(module, name)
    setattr(module, name, lambda: true() + by)


async def _continue(subject: Subject, job: dict[str, Any]) -> list[list[Any]]:
    space = MemorySpace()
    for key, text in job["objects"].items():
        await MemoryBackend(space=space).put(key, base64.b64decode(text))
    group = tuple(case_of(document) for document in job["group"])
    lives = tuple(Life.parse(text) for text in job["lives"])
    checkpoint, digest = job["ref"]
    ref = Ref(checkpoint=CheckpointId.parse(checkpoint), digest=digest, run_id=job["run"])
    outputs = Outputs({int(who): given for who, given in job["outputs"].items()})
    async with stand(subject.make(), space, job["run"]) as at:
        await at.restore(ref, lives)
        play = Play(group, lives).continued(at)
        answers = [await take(at, play, step, outputs) for step in steps_of(group)[job["done"] :]]
    await _free(subject)
    return [[answer.status, answer.body, answer.code] for answer in answers]


async def _free(subject: Subject) -> None:
    for server in subject.made:
        await server.aclose()
