"""Compiling C++ for a sandbox: the compiler is run contained like any program, since its input is untrusted too."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import anyio.to_thread

from ..errors import Code, ParticipantError
from .program import Program, Ran, SandboxLimits
from .sandbox import Sandbox

MOST_BYTES = 4 << 30
"""Of memory: headers of the standard library alone need several hundred MB of address space."""
COMPILE_LIMITS = SandboxLimits(wall_s=60.0, cpu_s=60.0, memory_bytes=MOST_BYTES)
DEFAULT_FLAGS = ("-O2", "-std=c++17", "-pipe")


async def compile_cpp(
    sandbox: Sandbox,
    source: str,
    folder: Path,
    *,
    files: Mapping[str, str] | None = None,
    output: str = "program",
    flags: Sequence[str] = DEFAULT_FLAGS,
    limits: SandboxLimits | None = None,
) -> Ran:
    """Compile a source, beside `files` (name to text), in a folder that exists; the program is then `folder / output`.

    What the compiler says of the source is in the answer. Raises ParticipantError: EXECUTOR_FAILED where there is no
    compiler, or it cannot be contained; INVALID_REQUEST for a name that would leave the folder.
    """
    texts = {f"{output}.cpp": source, **(files or {})}
    await anyio.to_thread.run_sync(_write, folder, texts)
    command = ["g++", *flags, "-o", output, f"{output}.cpp"]
    ran = await sandbox.run(Program(command=command, folder=folder), limits or COMPILE_LIMITS)
    if ran.exit_code == 127:
        raise ParticipantError(Code.EXECUTOR_FAILED, "there is no g++ on this host; install it")
    return ran


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ParticipantError(Code.INVALID_REQUEST, f"{name!r} is no name of a file in the folder")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
