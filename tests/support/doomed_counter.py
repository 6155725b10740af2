"""A counter whose process dies at its first tool call, as long as a file is there."""

import os
import signal
from pathlib import Path
from typing import Any

from participants import ResourcesSession

from .logged_counter import LoggedCounter


class DoomedCounter(LoggedCounter):
    """Kills its server, supervisor and all."""

    def __init__(self, name: str = "main", *, doom: str, **options: Any) -> None:
        """`doom` is the file."""
        super().__init__(name, **options)
        self._doom = Path(doom)

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        """None, where the file is there."""
        if self._doom.exists():
            os.killpg(0, signal.SIGKILL)
        return await super().call_tool(session, name, arguments)
