"""A counter that stops at exact points of a checkpoint or a restore, to be killed there or to outstay its lease."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from participants import ResourcesSession
from store import Life, RawRecord

from .logged_counter import LoggedCounter
from .waiting import until

PAUSE_S = 0.02
WAIT, BLOCK = "wait", "block"


@dataclass(frozen=True, slots=True)
class Gates:
    """Files that hold a GatedCounter at `commit`, `stage` or `activate`; `folder` is its option `gates`."""

    folder: Path

    def shut(self, point: str, how: str = WAIT) -> None:
        """Hold it there: `wait` lets the rest of the process go on, `block` does not."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / point).write_text(how)

    def open(self, point: str) -> None:
        """Let it go on."""
        (self.folder / point).unlink()

    async def reached(self, point: str) -> None:
        """Until it is held there."""
        await anyio.to_thread.run_sync(until, (self.folder / f"{point}-reached").exists)

    def refuse(self, *rollouts: str) -> None:
        """Sessions of these cannot be imported; without any, all can."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "refused").write_text("\n".join(rollouts))

    def closed(self) -> list[str]:
        """The lives of the sessions that were given to `close_session`, in order."""
        path = self.folder / "closed"
        return path.read_text().splitlines() if path.exists() else []


class GatedCounter(LoggedCounter):
    """A counter that is held by files: see Gates."""

    def __init__(self, name: str = "main", *, gates: str, **options: Any) -> None:
        """`gates` is a folder, which need not exist."""
        super().__init__(name, **options)
        self._gates = Path(gates)

    def _shut(self, point: str) -> str:
        try:
            how = (self._gates / point).read_text()
        except FileNotFoundError:
            return ""
        (self._gates / f"{point}-reached").touch()
        return how

    def _block(self, point: str) -> None:
        while self._shut(point) == BLOCK:
            time.sleep(PAUSE_S)

    async def _wait(self, point: str) -> None:
        while self._shut(point) == WAIT:  # noqa: ASYNC110 - a file is no event
            await anyio.sleep(PAUSE_S)

    async def freeze(self, scope: Collection[Life] | None = None) -> None:
        """Held at `commit`, where it is that of a commit."""
        await super().freeze(scope)
        if scope is not None:
            await self._wait("commit")
            self._block("commit")

    async def import_now(self, records: Sequence[RawRecord]) -> None:
        """Held at `stage`."""
        await self._wait("stage")
        await super().import_now(records)

    def activate(self) -> None:
        """Held at `activate`."""
        self._block("activate")
        super().activate()

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        """Refuse what a test says, as an author's hook would that cannot read it."""
        path = self._gates / "refused"
        refused = path.read_text().split() if path.exists() else []
        if session.life is not None and session.life.rollout_id in refused:
            raise ValueError("planted in import_session")
        await super().import_session(session, exported)

    async def close_session(self, session: ResourcesSession) -> None:
        """Say that it was closed."""
        self._gates.mkdir(exist_ok=True)
        with (self._gates / "closed").open("a") as closed:
            closed.write(f"{session.life}\n")
