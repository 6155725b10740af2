"""What a soak has seen, as lines of JSON in its folder, each written at once: an interrupted run shows what it saw."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "journal.jsonl"


class Journal:
    """Appends; every line has `at`, seconds since the beginning, and `kind`."""

    def __init__(self, folder: Path) -> None:
        """Begins the file of a folder. Raises FileExistsError: two soaks are not mixed."""
        self._file = (folder / NAME).open("x", encoding="utf-8", buffering=1)
        self.violations = 0

    def write(self, at: float, kind: str, **facts: Any) -> None:
        """One line."""
        self.violations += kind == "violation"
        self._file.write(json.dumps({"at": round(at, 3), "kind": kind, **facts}) + "\n")

    def close(self) -> None:
        """No more lines come."""
        self._file.close()


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a folder, but for a last one that is torn. Raises FileNotFoundError."""
    with (folder / NAME).open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
