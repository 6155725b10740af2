"""Compiling C++ for a sandbox: the compiler is run contained like any program, since its input is untrusted too."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import Code, ParticipantError
from .program import Program, Ran, SandboxLimits
from .sandbox import Sandbox
from .writing import write_files

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
    compiler, or it cannot be contained; INVALID_REQUEST for a name that leads out of the folder.
    """
    texts: dict[str, str | bytes] = {f"{output}.cpp": source, **(files or {})}
    await write_files(folder, texts)
    command = ["g++", *flags, "-o", output, f"{output}.cpp"]
    ran = await sandbox.run(Program(command=command, folder=folder), limits or COMPILE_LIMITS)
    if ran.exit_code == 127:
        raise ParticipantError(Code.EXECUTOR_FAILED, "there is no g++ on this host; install it")
    return ran
