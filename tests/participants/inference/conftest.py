"""One backend for a module, reset before each test, and the official client for it."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.support.backend import RunningBackend, start_backend


@pytest.fixture(scope="module")
def module_backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    """A backend for all tests of a module."""
    with start_backend(tmp_path_factory.mktemp("backend")) as running:
        yield running


@pytest.fixture
def backend(module_backend: RunningBackend) -> RunningBackend:
    """The same, with nothing left of the test before."""
    module_backend.control.reset()
    return module_backend


@pytest.fixture
def client(backend: RunningBackend) -> Iterator[OpenAI]:
    """The official client, unchanged but for where it goes and that it does not retry."""
    with OpenAI(base_url=backend.base_url, api_key="unused", max_retries=0) as client:
        yield client
