"""Hostile programs: each is bounded, gets nothing that is not its own, and leaves nothing behind."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from participants.sandbox import Program, Sandbox, compile_cpp, python_paths

from . import hostile, reaching
from .hostile import Hostile
from .ways import Target, run_hostile

pytestmark = [pytest.mark.process, pytest.mark.anyio]

HEADERS = """
#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
"""
COMPILER = shutil.which("g++")
MACHINE_CODE: dict[Hostile, Path] = {}


@pytest.fixture(scope="module", autouse=True)
def compiled_ones() -> Iterator[None]:
    """Each is compiled once; afterwards they are removed."""
    yield
    for folder in MACHINE_CODE.values():
        shutil.rmtree(folder)
    MACHINE_CODE.clear()


async def command_of(program: Hostile, sandbox: Sandbox) -> tuple[list[str], dict[str, Path]]:
    """How to run it, and what it has to read for that."""
    if program.language != "cpp":
        return ([python_paths()[0], "-I", "-c"] if program.language == "python" else ["sh", "-c"]) + [
            program.source
        ], {}
    if not COMPILER:
        pytest.skip("there is no g++ here")
    if program not in MACHINE_CODE:
        folder = Path(tempfile.mkdtemp())
        ran = await compile_cpp(sandbox, HEADERS + program.source, folder, flags=["-O0"])
        assert ran.exit_code == 0, ran.stderr.decode()
        os.chmod(folder, 0o755)
        MACHINE_CODE[program] = folder
    path = MACHINE_CODE[program] / "program"
    return [str(path)], {str(path): path}


@pytest.mark.parametrize("program", [*hostile.ALL, *reaching.ALL], ids=str)
async def test_a_hostile_program_is_contained(program: Hostile, sandbox: Sandbox, target: Target) -> None:
    """It ends as it may end, within its limits, has reached nothing, and the machine is left as it was."""
    command, read_only = await command_of(program, sandbox)
    order = Program(command=command, environment=target.environment, read_only=read_only)
    ran = await run_hostile(sandbox, order, program.limits, target.mark)
    said = ran.stdout.decode(errors="replace")
    assert "ESCAPED" not in said
    assert ran.ended in program.ended, ran
    assert program.says in said, ran
    assert ran.wall_s < program.limits.wall_s + 1.0
    assert ran.cpu_s < program.limits.cpu_s + 1.0
    assert ran.peak_bytes < 2.0 * program.limits.memory_bytes
    assert max(len(ran.stdout), len(ran.stderr)) <= program.limits.output_bytes
