"""A black box as an agent: any command-line program that talks to an OpenAI-compatible endpoint and to tools over HTTP.

For each activation the command is started in a fresh working folder, contained by `participants.sandbox`, with the
network of this host. What it finds, and what it is to leave behind:

    OPENAI_BASE_URL, OPENAI_API_KEY    the policy model; the key means nothing
    OPENAI_MODEL                       the name of the model
    MIDFLIGHT_TOOLS_URL                POST <it>/<name of a tool> with its arguments as a JSON object
    standard input                     the text of the task's messages
    task.json                          the whole request: `input`, `tools` and whatever else the row has
    result.json, if it writes one      {"text": "..."} or {"output": [items of the Responses API]}
    standard output, if it does not    the text of the answer
    exit code 0                        it has answered; anything else is a failure of class `agent_failed`

It can say nothing of its state, so it is restart-only: it never holds a checkpoint back, and after a crash its rollout
starts over. When it ends, is retired or cancelled, or its server dies, no process of it is left (docs/sandbox.md), and
its URLs are nobody's any more (`participants.harness_door`).
"""

import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import anyio.to_thread
import orjson

from .agent import Agent, OutOfTime, Session
from .errors import Code, ParticipantError
from .harness_door import TOOLS, Door, Visit
from .holder import Held
from .sandbox import PATH, WORK, Program, Ran, Sandbox, SandboxLimits
from .workfolder import Place, remove_tree

TASK, RESULT = "task.json", "result.json"
LIMITS = {"wall_s": 86_400.0, "cpu_s": 3_600.0, "memory_bytes": 4 << 30, "processes": 256}
"""Of a program, where they are not those of every sandbox: it waits for a model most of the time."""
AT_ONCE = 256
_TOLD = 1_500
"""Characters of what it said last, in a failure."""
_WHY = {
    "timed_out": "used up its wall or processor time",
    "output_limit": "said more than {output_bytes} bytes",
    "stopped": "used more memory, files or processes than it may",
}


class HarnessAgent(Agent):
    """Runs a program for each activation."""

    def __init__(
        self,
        *given: Any,
        command: Sequence[str],
        files: Sequence[str] = (),
        read_only: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        model_name: str = "policy",
        limits: Mapping[str, float] | None = None,
        at_once: int = AT_ONCE,
        contained_by: Literal["bubblewrap", "rlimits"] = "rlimits",
        **rest: Any,
    ) -> None:
        """`files`, and what is in folders among them, are copied for each program; `read_only` are paths that it sees.

        `limits` are those of SandboxLimits, `contained_by` the least containment that will do. Raises ValueError.
        """
        super().__init__(*given, **rest)
        if not command:
            raise ValueError("command is empty: it names the program and its arguments")
        self.command = tuple(_listed("command", command))
        self.environment = {name: str(value) for name, value in _table("environment", environment).items()}
        self.model_name = model_name
        self.limits = _limits({**LIMITS, **_table("limits", limits)})
        self._files = [_found("files", each) for each in _listed("files", files)]
        paths = [_found("read_only", each) for each in _listed("read_only", read_only)]
        self._read_only = {str(path): path for path in paths}
        _check_program(self.command[0])
        self._sandbox = Sandbox(at_once=at_once, require=contained_by)
        self._door = Door(self.role)
        self._place: Place | None = None

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Agent]:
        """Listen for the programs while the context is open, and have a place for their folders."""
        async with self._door.open():
            root = Path(tempfile.gettempdir(), f"midflight-agent-{os.getuid()}")
            place = self._place = await anyio.to_thread.run_sync(Place, root)
            try:
                yield self
            finally:
                self._place = None
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(place.close)

    async def run_activation(self, held: Held[Session], body: Mapping[str, Any]) -> dict[str, Any]:
        """Run the program to its end; gives the Responses object. Raises `agent_failed` where it gives no answer."""
        activation, access = held.state.activation, held.state.config.get("resources", {})
        assert activation is not None
        held.state.config = {**held.state.config, "resources": {**access, "restart_only": True}}
        visit = Visit(self.role, self.gate, (self.model, self.resources), held)
        ran: Ran | None = None
        async with self._folder(body) as folder:
            async with self._door.visit(visit) as url:
                with visit.ending:
                    ran = await self._run_program(self._program(folder, url, body), self._time_left(activation))
            if ran is None:
                raise visit.failure or ParticipantError(Code.INTERNAL, "the program was given up")
            if failure := failure_of(ran, self.limits):
                raise failure
            result = await anyio.to_thread.run_sync(_read_result, folder, self.limits.output_bytes)
        return self._response(held, body, output_of(ran.stdout, result))

    async def _run_program(self, program: Program, left_s: float | None) -> Ran:
        """Raises OutOfTime."""
        try:
            async with self.gate.time_limit(left_s, "the program"):
                return await self._sandbox.run(program, self.limits)
        except ParticipantError as error:
            if error.code is Code.DEADLINE_EXCEEDED:
                raise OutOfTime from error
            raise

    def _program(self, folder: Path, url: str, body: Mapping[str, Any]) -> Program:
        return Program(
            command=self.command,
            stdin=prompt_of(body).encode(),
            folder=folder,
            read_only=self._read_only,
            environment={
                **self.environment,
                "OPENAI_BASE_URL": f"{url}/v1",
                "OPENAI_API_KEY": "none",
                "OPENAI_MODEL": self.model_name,
                "MIDFLIGHT_TOOLS_URL": f"{url}{TOOLS.rstrip('/')}",
            },
            network=True,
        )

    @asynccontextmanager
    async def _folder(self, body: Mapping[str, Any]) -> AsyncIterator[Path]:
        """A fresh working folder, which is gone afterwards."""
        if self._place is None:
            raise ParticipantError(Code.INTERNAL, f"{self.role} is used outside its run(), where it listens")
        folder = await anyio.to_thread.run_sync(self._place.fresh, "program")
        try:
            await anyio.to_thread.run_sync(_fill, folder, self._files, dict(body))
            yield folder
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_tree, folder)

    def _response(
        self, held: Held[Session], body: Mapping[str, Any], output: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        activation = held.state.activation
        assert activation is not None
        given = body.get("metadata") or {}
        return {
            "id": f"resp_{_digest(held)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": body.get("model") or self.model_name,
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "output": list(output),
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "usage": None,
            "metadata": {**given, "midflight_steps": str(activation.calls)},
        }


def _listed(option: str, given: Any) -> Sequence[str]:
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise ValueError(f"{option} is a list of texts, and not {given!r:.200}")
    return given


def _table(option: str, given: Any) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"{option} is a table, and not {given!r:.200}")
    return given or {}


def _check_program(name: str) -> None:
    """Refuse now what no sandbox would find; a program among the files shows when it is started."""
    if "/" not in name:
        if shutil.which(name, path=PATH) is None:
            raise ValueError(f"command: there is no program {name} on the path that programs have, {PATH}")
    elif name.startswith("/") and not name.startswith(f"{WORK}/") and not os.path.exists(name):
        raise ValueError(f"command: there is no {name}")


def _limits(given: Mapping[str, Any]) -> SandboxLimits:
    usual = SandboxLimits()
    known = {field.name: type(getattr(usual, field.name)) for field in fields(usual)}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"there is no limit {name}; there are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"the limit {name} is {value!r}, and must be a number above 0")
    return SandboxLimits(**{name: known[name](value) for name, value in given.items()})


def _found(option: str, path: str) -> Path:
    """A path that an option names; a relative one is looked for where modules are, as beside the file of a run."""
    places = (Path(place or ".", path) for place in sys.path)
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise ValueError(f"{option}: there is no {path}, and none beside the file of the run")
    return found.resolve()


def prompt_of(body: Mapping[str, Any]) -> str:
    """The text of the messages of a request, in order."""
    given = body.get("input") or ""
    if isinstance(given, str):
        return given
    contents = [item.get("content") for item in given if isinstance(item, dict) and "content" in item]
    return "\n\n".join(text for content in contents for text in _texts(content))


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def failure_of(ran: Ran, limits: SandboxLimits) -> ParticipantError | None:
    """Why a program has not answered; None where it ended well."""
    if ran.ended == "exited" and ran.exit_code == 0:
        return None
    if ran.ended == "exited":
        why = f"exited with code {ran.exit_code}"
    elif ran.ended == "signalled":
        why = f"was ended by signal {ran.signal}"
    else:
        why = _WHY[ran.ended].format(output_bytes=limits.output_bytes)
    said = ran.stderr.decode(errors="replace").strip()[-_TOLD:]
    code = Code.DEADLINE_EXCEEDED if ran.ended == "timed_out" else Code.AGENT_FAILED
    return ParticipantError(code, f"the program {why}" + (f"; it said last: {said}" if said else ""))


def output_of(stdout: bytes, result: bytes | None) -> list[Mapping[str, Any]]:
    """The output items of what a program has left behind. Raises `agent_failed`."""
    if result is None:
        return [_message(stdout.decode(errors="replace").strip())]
    try:
        found = orjson.loads(result)
    except orjson.JSONDecodeError as error:
        raise ParticipantError(Code.AGENT_FAILED, f"{RESULT} is not JSON: {error}") from error
    if isinstance(found, dict) and found.keys() == {"text"} and isinstance(found["text"], str):
        return [_message(found["text"])]
    items = found.get("output") if isinstance(found, dict) and found.keys() == {"output"} else None
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise ParticipantError(Code.AGENT_FAILED, f'{RESULT} is neither {{"text": "..."}} nor {{"output": [items]}}')
    return items


def _message(text: str) -> Mapping[str, Any]:
    if not text:
        raise ParticipantError(Code.AGENT_FAILED, f"the program ended without an answer in {RESULT} or on its stdout")
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": [part]}


def _digest(held: Held[Session]) -> str:
    return hashlib.sha256(held.life.rollout_id.encode()).hexdigest()[:32]


def _fill(folder: Path, files: Sequence[Path], body: dict[str, Any]) -> None:
    for path in files:
        if path.is_dir():
            shutil.copytree(path, folder, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(path, folder)
    folder.chmod(0o700)
    task = folder / TASK
    task.unlink(missing_ok=True)
    task.write_bytes(orjson.dumps(body))


def _read_result(folder: Path, most: int) -> bytes | None:
    """What the program wrote, which may be anything; None for nothing. Raises `agent_failed`."""
    try:
        descriptor = os.open(folder / RESULT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ParticipantError(Code.AGENT_FAILED, f"{RESULT} cannot be read: {error.strerror}") from error
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            raise ParticipantError(Code.AGENT_FAILED, f"{RESULT} is no plain file of at most {most} bytes")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)
