"""A program that nobody has read, run contained: what it answers, and what becomes of one that never ends."""

import anyio

from participants.sandbox import Program, Sandbox, SandboxLimits, python_paths

SOURCES = ["a, b = map(int, input().split()); print(a + b)", "while True: pass"]


async def main() -> None:
    """Run two of them."""
    sandbox = Sandbox(at_once=4)
    python, _ = python_paths()
    for source in SOURCES:
        program = Program(command=[python, "-I", "-c", source], stdin=b"3 4\n")
        ran = await sandbox.run(program, SandboxLimits(wall_s=2.0))
        print(source, "->", ran.ended, ran.exit_code, ran.stdout.decode().strip())


anyio.run(main)
