"""A run with a backend of its own, for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.backend import start_backend

from .harness import Run, counter_row


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Four rows, checkpoints on the local disk and only when asked for, and calls that can be held."""
    with start_backend(tmp_path) as backend:
        run = Run(tmp_path, backend, [counter_row(number) for number in range(4)], checkpoint={"interval_s": 0})
        yield run
        run.end_servers()
