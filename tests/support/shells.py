"""A shell server without a shell: a few commands in Python, so that what is around them is quick to test."""

import mmap
import os
from pathlib import Path
from typing import Any

import anyio.to_thread

from participants.sandbox import Ran
from participants.servers import ShellServer


class HandShell(ShellServer):
    """Its commands are `write PATH TEXT`, `large PATH SIZE`, `link PATH TARGET`, `drop PATH`, `count` and `exit N`.

    And `patch PATH`, which changes one byte of a file through memory.
    """

    async def contained(self, folder: Path, command: str, timeout_s: float) -> Ran:
        """Each of them at once, in a thread."""
        return await anyio.to_thread.run_sync(_run, folder, command)


def _run(folder: Path, command: str) -> Ran:
    code, said = 0, ""
    match command.split():
        case ["write", path, text]:
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        case ["large", path, size]:
            (folder / path).write_bytes(path[:1].encode() * int(size))
        case ["patch", path]:
            with (folder / path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
                mapped[0] ^= 1
        case ["link", path, target]:
            os.symlink(target, folder / path)
        case ["drop", path]:
            (folder / path).unlink()
        case ["count"]:
            said = f"{len(list(folder.rglob('*')))}\n"
            (folder / "counted").touch()
        case ["exit", number]:
            code = int(number)
        case _:
            code = 127
    facts: dict[str, Any] = {"signal": None, "wall_s": 0.0, "cpu_s": 0.0, "peak_bytes": 0}
    return Ran(ended="exited", exit_code=code, stdout=said.encode(), stderr=b"", **facts)
