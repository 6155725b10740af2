"""A resources server for tests whose processes are killed before they serve."""

import os
import signal
from pathlib import Path
from typing import Any

from participants import ResourcesServer


class MortalServer(ResourcesServer):
    """SIGKILL ends the first of its processes while they are made, as a kernel does that has no memory left."""

    def __init__(self, name: str = "main", *, folder: str, deaths: int, **options: Any) -> None:
        """`deaths` is of how many, over all workers; each leaves a file in the folder."""
        super().__init__(name, **options)
        for death in range(deaths):
            try:
                os.close(os.open(Path(folder, f"death-{death}"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
