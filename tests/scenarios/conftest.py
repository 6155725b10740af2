"""Fixtures of the scenarios: one backend for all tests of a process, and a stage for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.backend import RunningBackend, start_backend

from .stage import Stage
from .variants import Variant


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known where tests of this folder are asked for by name."""
    parser.addoption("--seeds", type=int, default=20, help="how many random sequences are played")


@pytest.fixture(scope="session")
def surviving_backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    """A backend with control, a log and a token store, which no test kills."""
    folder = tmp_path_factory.mktemp("backend")
    with start_backend(folder, "--token-store", str(folder / "tokens")) as backend:
        yield backend


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path, surviving_backend: RunningBackend) -> Iterator[Stage]:
    """A stage of its own over the backend, which has forgotten all earlier calls."""
    variant: Variant = getattr(request, "param", Variant())
    surviving_backend.control.reset()
    s3 = request.getfixturevalue("seaweed") if variant.s3 else None
    stage = Stage(tmp_path, surviving_backend, variant.plan, s3, script=variant.script)
    yield stage
    stage.end()
