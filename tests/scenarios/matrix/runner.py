"""Runs cells one after the other, over one inference backend and one store server, which cells may kill."""

import itertools
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import anyio

from tests.support.backend import RunningBackend, start_backend
from tests.support.seaweed import KillableSeaweed

from .cell import Result, run_cell
from .checks import Again
from .phases import Phase
from .victims import Victim

TOLD_CHARS = 2000


@dataclass(slots=True)
class Runner:
    """What survives from cell to cell; as a context, it ends that."""

    folder: Path
    """Empty; each cell has one in it."""
    backend: RunningBackend = field(init=False)
    seaweed: KillableSeaweed | None = None
    """Started for the first cell that needs it."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def __enter__(self) -> Self:
        (self.folder / "backend").mkdir()
        self.backend = self._start_backend()
        return self

    def __exit__(self, *_: object) -> None:
        self.backend.stop()
        if self.seaweed is not None:
            self.seaweed.kill()

    def run(self, victim: Victim, phase: Phase) -> Result:
        """One cell. Where it gets stuck, that is its problem, and the next one can be run."""
        folder = self.folder / f"cell-{next(self._numbers)}"
        folder.mkdir()
        seaweed = self._seaweed() if victim.s3 else None
        try:
            result, self.backend = anyio.run(run_cell, victim, phase, folder, self.backend, seaweed)
        except Exception as error:
            sys.stderr.write(traceback.format_exc()[-TOLD_CHARS:])
            self.backend.stop()
            self.backend = self._start_backend(self.backend.port)
            said = f"{type(error).__name__}: {error}"[:TOLD_CHARS]
            return Result(victim.name, phase.name, "stuck", 0, 0, 0, Again(0, 0, 0, 0), 0, 0.0, (said,))
        return result

    def _start_backend(self, port: int = 0) -> RunningBackend:
        home = self.folder / "backend"
        return start_backend(home, "--token-store", str(home / "tokens"), port=port)

    def _seaweed(self) -> KillableSeaweed:
        if self.seaweed is None:
            home = self.folder / "seaweed"
            home.mkdir()
            self.seaweed = KillableSeaweed(home)
        self.seaweed.begin()
        self.seaweed.await_ready()
        return self.seaweed
