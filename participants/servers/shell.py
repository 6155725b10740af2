"""A sandboxed shell: each session has a working folder, and commands run contained in it.

A session is its folder and nothing else: no process survives the call that started it. A checkpoint exports the
folder, files as bytes that it shares with the last one where they have not changed; `participants.workfolder` says what
is kept.

A row has `files`, texts by path, that the folder begins with, and what is wanted at the end: `expected_files`, texts by
path or null for what must not be there, and `check`, a command that is run on a copy of the folder, with the exit code
and, where given, the standard output that it must have. The reward is 1.0 if all of that holds, else 0.0.
"""

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field

from ..cases import Case, Conformance, ToolCall
from ..errors import Code, ParticipantError
from ..resources import ResourcesServer
from ..sandbox import Containment, Program, Ran, Sandbox, SandboxLimits
from ..sessions import ResourcesSession, parse
from ..tools import ToolError, tool
from ..workfolder import (
    BadFolder,
    Digests,
    FolderLimits,
    Place,
    check_path,
    copy_tree,
    export,
    is_there,
    read_text,
    remove_tree,
    root_of,
    tree_of,
    write_file,
    write_tree,
)

T = TypeVar("T")
MAX_COMMAND_BYTES = 131_071
"""The most that Linux takes as one argument of a program."""
THREADS = 8
"""Folders that are read, written or removed at the same time."""


class Check(BaseModel):
    """A command that tells whether the task is done."""

    model_config = ConfigDict(extra="forbid", strict=True)

    command: str
    exit_code: int = 0
    stdout: str | None = None
    timeout_s: float = Field(default=30.0, gt=0)


class ShellTask(BaseModel):
    """What a row says of its task; other fields are others' business."""

    model_config = ConfigDict(strict=True)

    files: dict[str, str] = {}
    expected_files: dict[str, str | None] = {}
    check: Check | None = None


@dataclass(slots=True)
class Workspace:
    """What a session holds."""

    folder: Path
    digests: Digests = field(default_factory=Digests)
    """Of its packs, as the last export has read them."""


class ShellServer(ResourcesServer):
    """Runs shell commands."""

    checkpoint_mode = "exported"
    checkpoint_verify = "replay"
    exports_at_once = THREADS

    def __init__(
        self,
        name: str = "main",
        *,
        root: str = "",
        require: Containment = "rlimits",
        at_once: int | None = None,
        limits: dict[str, Any] | None = None,
        max_timeout_s: float = 120.0,
        max_session_bytes: int = 256 << 20,
        max_session_entries: int = 100_000,
        **options: Any,
    ) -> None:
        """Folders lie below `root`, by default in the system's folder for temporary files.

        `limits` are those of a command, by the names of SandboxLimits. A folder with more than `max_session_bytes` in
        files, or more entries, is in no checkpoint, and its rollout starts over after a crash.
        """
        super().__init__(name, **options)
        self._root = Path(root or Path(tempfile.gettempdir()) / f"midflight-shell-{os.getuid()}")
        self._limits = SandboxLimits(**{"output_bytes": 64 << 10, **(limits or {})})
        self._sandbox = Sandbox(at_once=at_once, limits=self._limits, require=require)
        self._max_timeout_s = max_timeout_s
        self.max_session_bytes = max_session_bytes
        self._folder_limits = FolderLimits(entries=max_session_entries, bytes=max_session_bytes)
        self._threads = anyio.CapacityLimiter(THREADS)
        self._placing = anyio.Lock()
        self._place: Place | None = None

    # Tools

    @tool
    async def run_command(self, session: ResourcesSession, command: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """Run a command with bash in the working folder, and wait for its end.

        Files are kept between calls; nothing else is, such as variables, the current folder or background processes.
        """
        if not 0 < timeout_s <= self._max_timeout_s:
            raise ToolError(f"timeout_s must be more than 0 and at most {self._max_timeout_s:g}")
        if "\0" in command:
            raise ToolError("a command holds no NUL")
        if len(command.encode()) > MAX_COMMAND_BYTES:
            raise ToolError(f"a command may have {MAX_COMMAND_BYTES} bytes; write a file, and run that")
        ran = await self.contained(session.state.folder, command, timeout_s)
        streams = {"stdout": _text(ran.stdout), "stderr": _text(ran.stderr)}
        return {**streams, "exit_code": ran.exit_code, "ended": ran.ended}

    @tool
    async def read_file(self, session: ResourcesSession, path: str) -> dict[str, Any]:
        """Read a text file of the working folder."""
        limit = self._limits.output_bytes
        data = await self._look(session.state.folder, read_text, _path(path), limit + 1)
        if data is None:
            raise ToolError(f"there is no regular file {path!r}")
        if len(data) > limit:
            raise ToolError(f"{path!r} has more than {limit} bytes")
        return {"content": _text(data)}

    @tool
    async def write_file(self, session: ResourcesSession, path: str, content: str) -> dict[str, Any]:
        """Write a text file of the working folder, in place of what is there, and make its folders."""
        data, where = content.encode(), _path(path)
        if len(data) > self._limits.file_bytes:
            raise ToolError(f"a file may have {self._limits.file_bytes} bytes")
        try:
            await self._look(session.state.folder, write_file, where, data)
        except OSError as error:  # No ToolError: folders may have been made.
            return {"written": False, "error": error.strerror or str(error)}
        return {"written": True}

    # Hooks

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        """A folder with the row's files."""
        task = parse(ShellTask, row)
        folder = await self._new_folder(session)
        try:
            for path, text in task.files.items():
                await self._look(folder, write_file, check_path(path.encode()), text.encode())
        except (OSError, ValueError) as error:
            await self._remove(folder)
            raise ParticipantError(Code.INVALID_REQUEST, f"the row's files cannot be: {error}") from error
        except BaseException:
            await self._remove(folder)
            raise

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """1.0 if the folder is as the row expects, and its check on a copy comes out as it says."""
        task = parse(ShellTask, row)
        if not task.expected_files and task.check is None:
            raise ParticipantError(Code.INVALID_REQUEST, "the row has neither expected_files nor a check")
        folder = session.state.folder
        wrong = [path for path, text in task.expected_files.items() if not await self._is_as(folder, path, text)]
        result: dict[str, Any] = {"wrong_files": wrong}
        if task.check is not None:
            ran = await self._checked(session, task.check)
            ended, code = (ran.ended, ran.exit_code) if ran is not None else ("stopped", None)
            result |= {"check_ended": ended, "check_exit_code": code}
            passed = ran is not None and code == task.check.exit_code
            passed = passed and task.check.stdout in (None, _text(ran.stdout) if ran is not None else "")
        else:
            passed = True
        return {"reward": float(passed and not wrong), **result}

    async def _is_as(self, folder: Path, path: str, text: str | None) -> bool:
        try:
            where = check_path(path.encode())
        except ValueError as error:
            raise ParticipantError(Code.INVALID_REQUEST, f"the row's expected_files cannot be: {error}") from error
        if text is None:
            return not await self._look(folder, is_there, where)
        wanted = text.encode()
        return await self._look(folder, read_text, where, len(wanted) + 1) == wanted

    async def _checked(self, session: ResourcesSession, check: Check) -> Ran | None:
        """Run it on a copy; None for a folder past the limits, which a program made so: no failure of ours."""
        place = await self._placed()
        copy = await self._in_thread(place.fresh, f"check-{session.session_id}")
        try:
            await self._in_thread(copy_tree, session.state.folder, copy, self._folder_limits)
            return await self.contained(copy, check.command, check.timeout_s)
        except BadFolder:
            return None
        finally:
            await self._remove(copy)

    async def export_session(self, session: ResourcesSession) -> Any:
        """The folder. Files are read here only where they have changed, and again when a commit writes them."""
        place = await self._placed()
        digests = session.state.digests if place.times_tell else Digests()
        return await self._in_thread(export, session.state.folder, self._folder_limits, digests)

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        """A new folder with what the record has. Raises BadFolder, and leaves nothing behind."""
        tree = await self._in_thread(tree_of, exported, self._folder_limits)
        folder = await self._new_folder(session)
        try:
            await self._in_thread(write_tree, folder, tree)
        except BaseException:
            await self._remove(folder)
            raise

    async def close_session(self, session: ResourcesSession) -> None:
        """Remove the folder."""
        if isinstance(session.state, Workspace):
            await self._remove(session.state.folder)

    async def aclose(self) -> None:
        """Remove all folders."""
        await super().aclose()
        if self._place is not None:
            await self._in_thread(self._place.close)

    # How

    async def contained(self, folder: Path, command: str, timeout_s: float) -> Ran:
        """Run a command in a folder. Raises `executor_failed` where it cannot be contained."""
        limits = replace(self._limits, wall_s=timeout_s, cpu_s=max(timeout_s, self._limits.cpu_s))
        return await self._sandbox.run(Program(command=["bash", "-c", command], folder=folder), limits)

    async def _placed(self) -> Place:
        async with self._placing:
            if self._place is None:
                self._place = await self._in_thread(Place, self._root)
            return self._place

    async def _new_folder(self, session: ResourcesSession) -> Path:
        place = await self._placed()
        folder = await self._in_thread(place.fresh, f"{session.life or 'nobody'}-{session.session_id}")
        session.state = Workspace(folder)
        return folder

    async def _remove(self, folder: Path) -> None:
        with anyio.CancelScope(shield=True):
            await self._in_thread(remove_tree, folder)

    async def _look(self, folder: Path, work: Callable[..., T], *arguments: Any) -> T:
        """Do some work below a folder, with its descriptor."""

        def look() -> T:
            with root_of(folder) as root:
                return work(root, *arguments)

        return await self._in_thread(look)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await anyio.to_thread.run_sync(work, *arguments, limiter=self._threads)

    @classmethod
    def conformance(cls) -> Conformance:
        """Sixty small tasks of which a third ends wrong; every command takes some hundredths of a second."""
        return Conformance(cases=tuple(_cases(60)))


def _path(path: str) -> bytes:
    try:
        return check_path(path.encode())
    except ValueError as error:
        raise ToolError(str(error)) from error


def _text(data: bytes) -> str:
    """What is not UTF-8 is replaced."""
    return data.decode(errors="replace")


def _cases(count: int) -> Iterator[Case]:
    """Each keeps its own account of the folder, in Python."""
    numbers = random.Random(0)
    for case in range(count):
        words = [f"{numbers.choice('abcdefgh')}{numbers.randrange(1000):03}" for _ in range(6)]
        folder = {"list.txt": "".join(f"{word}\n" for word in words[:3]), "old.txt": "old\n"}
        seeded, commands = dict(folder), list[str]()
        for word in words[3:]:
            commands.append(_change(numbers.randrange(6), word, folder))
        expected: dict[str, str | None] = {**dict.fromkeys(seeded), **folder}
        check = {"command": "cat list.txt | wc -l; touch seen", "stdout": f"{folder['list.txt'].count(chr(10))}\n"}
        if case % 3 == 2:
            expected["list.txt"] = "something else\n"
        row = {"files": seeded, "expected_files": expected, **({"check": check} if case % 4 == 0 else {})}
        calls = [ToolCall(name="run_command", arguments={"command": command}) for command in commands]
        yield Case(row=row, calls=calls, said="Done.")


def _change(kind: int, word: str, folder: dict[str, str]) -> str:
    """A command, and what it does to the folder."""
    match kind:
        case 0:
            folder["list.txt"] += f"{word}\n"
            return f"echo {word} >> list.txt"
        case 1:
            folder["list.txt"] = "".join(sorted(folder["list.txt"].splitlines(keepends=True)))
            return "LC_ALL=C sort -o list.txt list.txt"
        case 2:
            folder[f"sub/{word}.txt"] = f"{word}\n"
            return f"mkdir -p sub && echo {word} > sub/{word}.txt && chmod 600 sub/{word}.txt"
        case 3:
            folder.pop("old.txt", None)
            return f"rm -f old.txt; ln -sfn list.txt {word}"
        case 4:
            folder["large.txt"] = f"{word}\n" * 14_000
            return f"yes {word} | head -n 14000 > large.txt"
    folder["copy.txt"] = folder["list.txt"]
    return "cp list.txt copy.txt; mkdir -p empty"
