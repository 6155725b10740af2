"""A sandbox of each way, and a target for hostile programs."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from participants.sandbox import Sandbox
from participants.sandbox.sandbox import working_bubblewrap

from .ways import WAYS, Target, target


@pytest.fixture(params=sorted(WAYS))
def way(request: pytest.FixtureRequest) -> str:
    """One way of containment; without bubblewrap here, its tests are left out and say so."""
    name: str = request.param
    if name == "bubblewrap" and not working_bubblewrap():
        pytest.skip("there is no bubblewrap here that can make namespaces")
    return name


@pytest.fixture
def sandbox(way: str) -> Sandbox:
    """Of that way."""
    return WAYS[way](at_once=2)


@pytest.fixture(name="target")
def a_target() -> Iterator[Target]:
    """What hostile programs go for."""
    with target() as made:
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can reach; pytest's own cannot be."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        yield Path(path)
        os.chmod(path, 0o700)
