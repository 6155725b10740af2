"""The places where the conformance suite runs: each a root that is empty and that several backends can open."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from store.backends import Backend, LocalBackend, MemoryBackend, MemorySpace, make_backend
from tests.support.seaweed import S3Server


@dataclass(frozen=True, slots=True)
class Place:
    """A root, and how to open it once more, as another process would."""

    name: str
    connect: Callable[[], Backend]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Backend]:
        """One client, closed at the end of the block."""
        backend = self.connect()
        try:
            yield backend
        finally:
            await backend.aclose()


@pytest.fixture(
    params=[
        pytest.param("memory", marks=pytest.mark.unit),
        pytest.param("local", marks=pytest.mark.unit),
        pytest.param("fsspec", marks=pytest.mark.unit),
        pytest.param("s3", marks=pytest.mark.real),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty root of each kind."""
    if request.param == "memory":
        space = MemorySpace()
        return Place("memory", lambda: MemoryBackend(space=space))
    if request.param == "local":
        return Place("local", lambda: LocalBackend(tmp_path))
    if request.param == "fsspec":
        return _generic_place(tmp_path)
    import store.backends.s3  # noqa: F401 - here, because an import blocks the event loop

    server: S3Server = request.getfixturevalue("seaweed")
    return Place("s3", lambda: make_backend(server.url, storage_options=server.options()))


def _generic_place(folder: Path) -> Place:
    """Any asynchronous fsspec file system: here that of memory, wrapped."""
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
    from fsspec.implementations.memory import MemoryFileSystem

    from store.backends.object import ObjectBackend

    def connect() -> Backend:
        memory = AsyncFileSystemWrapper(MemoryFileSystem(), asynchronous=True)
        return ObjectBackend(memory, str(folder), scheme="wrapped")

    return Place("fsspec", connect)


@pytest.fixture
async def backend(place: Place) -> AsyncIterator[Backend]:
    """One client of the place."""
    async with place.open() as backend:
        yield backend
