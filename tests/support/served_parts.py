"""Resources servers for tests of processes: one that holds calls, one that is slow to be made, one that prints."""

import os
import signal
from pathlib import Path
from typing import Any

import anyio

from participants import ResourcesServer, ResourcesSession, tool

from .waiting import until

print("what a module prints when it is imported")  # noqa: T201 - that is the point


class HeldServer(ResourcesServer):
    """Its tool comes back when a file is there, if ever."""

    def __init__(self, name: str = "main", *, folder: str, slow: bool = False, **options: Any) -> None:
        """`slow`: of all its processes one is made at once, and the others when the file `go` is in the folder."""
        super().__init__(name, **options)
        self._folder = Path(folder)
        if slow and not self._is_first():
            until((self._folder / "go").exists)

    def _is_first(self) -> bool:
        try:
            os.close(os.open(self._folder / "first", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        """Nothing."""

    @tool
    async def pid(self, session: ResourcesSession) -> dict[str, Any]:
        """The process that has the session."""
        return {"pid": os.getpid()}

    @tool
    async def hold(self, session: ResourcesSession) -> dict[str, Any]:
        """Come back when it is released."""
        (self._folder / f"held-{session.session_id}").touch()
        while not (self._folder / "release").exists():  # noqa: ASYNC110 - a file is no event
            await anyio.sleep(0.02)
        return {}

    @tool
    async def fork(self, session: ResourcesSession) -> dict[str, Any]:
        """Leave a child behind that does nothing until it is killed."""
        if (pid := os.fork()) == 0:
            signal.pause()
            os._exit(0)
        return {"pid": pid}

    async def close_session(self, session: ResourcesSession) -> None:
        """Say so."""
        (self._folder / f"closed-{session.session_id}").touch()


class StubbornServer(HeldServer):
    """Its sessions take for ever to close."""

    async def close_session(self, session: ResourcesSession) -> None:
        """Never come back."""
        (self._folder / "closing").touch()
        await anyio.sleep_forever()
