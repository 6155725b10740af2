"""Opening a root: it is made once, keeps its run, and is never made inside somebody else's folder."""

from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from store import (
    AccessDenied,
    BackendError,
    Limits,
    LocalBackend,
    MemoryBackend,
    NotAStore,
    RootMissing,
    StoreError,
    TransientError,
    UnsupportedVersion,
    open_store,
)
from store.backends import MemorySpace
from store.backends.memory import Call, Fault
from store.layout import FORMAT_KEY
from store.root import load_format
from store.sealed import seal
from store.tasks import map_bounded

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

LIMITS = Limits()


async def test_a_root_keeps_its_run_for_ever(tmp_path: Path) -> None:
    """The first opening for writing makes the run, and each later one, for reading or writing, finds it."""
    runs = []
    for mode in ("write", "read", "write"):
        async with open_store(tmp_path / "new" / "root", mode) as store:
            runs.append(store.run_id)
            assert store.url.endswith("/new/root")
    assert len(set(runs)) == 1
    async with open_store(tmp_path / "other", "write") as other:
        assert other.run_id != runs[0]


async def test_reading_makes_nothing(tmp_path: Path) -> None:
    """A mistyped path is an error, not a new store."""
    with pytest.raises(RootMissing):
        async with open_store(tmp_path / "nothing"):
            pass
    with pytest.raises(NotAStore, match=r"no format\.json"):
        async with open_store(tmp_path):
            pass
    assert not await anyio.to_thread.run_sync(lambda: list(tmp_path.iterdir()))


async def test_of_many_processes_that_make_one_root_at_once_all_get_the_same_run(tmp_path: Path) -> None:
    """The exclusive create decides, and the losers read what the winner wrote."""
    space = MemorySpace()

    async def memory(_: int) -> str:
        return (await load_format(MemoryBackend(space=space), LIMITS, create=True)).run_id

    async def local(_: int) -> str:
        return (await load_format(LocalBackend(tmp_path), LIMITS, create=True)).run_id

    for opener in (memory, local):
        assert len(set(await map_bounded(opener, range(8), 8))) == 1


async def test_a_reply_lost_while_a_root_is_made_changes_nothing() -> None:
    """The next look finds the format that was written, whose ever it was."""
    backend = MemoryBackend(space=MemorySpace())
    backend.inject(Fault(verb="create", after=True, error=lost))
    with pytest.raises(TransientError):
        await load_format(backend, LIMITS, create=True)
    made = await load_format(backend, LIMITS, create=False)
    assert await load_format(backend, LIMITS, create=True) == made


def lost(call: Call) -> BackendError:
    return TransientError(call.verb, call.key, applied=None)


def denied(call: Call) -> BackendError:
    return AccessDenied(call.verb, call.key)


async def test_without_permission_to_list_a_root_can_still_be_made() -> None:
    """Nobody can tell then whether the folder is foreign, and conditional creates protect what is there."""
    backend = MemoryBackend(space=MemorySpace())
    backend.inject(Fault(verb="list", error=denied, times=9))
    assert (await load_format(backend, LIMITS, create=True)).run_id


async def test_a_folder_of_something_else_is_refused_with_an_example() -> None:
    """What is there is named and counted, and nothing is written."""
    backend = MemoryBackend(space=MemorySpace())
    await backend.put("data/train.parquet", b"x")
    with pytest.raises(NotAStore, match=r"1 other objects, such as 'data/train\.parquet'"):
        await load_format(backend, LIMITS, create=True)
    assert list(backend.space.objects) == ["data/train.parquet"]


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"format": "midflight.store", "version": [2, 0], "run_id": "0" * 32}, UnsupportedVersion),
        ({"format": "midflight.store", "version": [1, 0], "features": ["x"], "run_id": "0" * 32}, UnsupportedVersion),
        ({"format": "midflight.store", "version": [1, 0], "run_id": "../x"}, StoreError),
        ({"format": "midflight.chain", "version": [1, 0], "run_id": "0" * 32}, StoreError),
        ({"format": "midflight.store", "version": [1, 0]}, StoreError),
        ({"anything": "x" * (5 << 20)}, StoreError),
    ],
    ids=["newer", "feature", "run id", "another sort", "no run", "huge"],
)
@pytest.mark.fault(58, 62)
async def test_a_format_file_that_is_not_ours_is_refused_by_name(
    document: dict[str, object], error: type[StoreError]
) -> None:
    """A newer version, a run id that would be a path, and anything else under that name; and it stays."""
    backend = MemoryBackend(space=MemorySpace())
    data = seal(document)
    await backend.put(FORMAT_KEY, data)
    with pytest.raises(error, match=r"format\.json"):
        await load_format(backend, LIMITS, create=True)
    assert backend.space.objects[FORMAT_KEY].data == data
