"""What every backend promises, asked of each of them in the same words."""

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from store.backends import Backend, LocalBackend
from store.errors import AlreadyExists, InvalidName, NotFound, ObjectTooLarge
from store.limits import MIB

from .conftest import Place

pytestmark = pytest.mark.anyio

RACERS = 16
MANY = 1100
"""More than one page of a listing in S3."""
FEW = 200
PAGED = {"fsspec", "s3"}
"""The others know no pages: there fewer objects say as much."""
ODD_KEY = "a/B-c_d.e/0=1+2@3~4%2F5 6,7(8)#&9;:'$!.json"


async def test_what_was_created_is_read_back(backend: Backend) -> None:
    """A created object has its content, its size and a time."""
    await backend.create("a/b.json", b"content")
    info = await backend.stat("a/b.json")
    assert await backend.get("a/b.json", max_bytes=7) == b"content"
    assert (info.key, info.size) == ("a/b.json", 7)
    assert info.modified_s > 0


async def test_a_create_never_replaces(backend: Backend) -> None:
    """A second create of a key is refused, also with equal content, and changes nothing."""
    await backend.create("k", b"first")
    for data in (b"second", b"first"):
        with pytest.raises(AlreadyExists):
            await backend.create("k", data)
    assert await backend.get("k", max_bytes=100) == b"first"


async def test_one_of_many_racing_creators_wins(place: Place) -> None:
    """Sixteen clients create one key at once: one succeeds, the others are told, and its content stands."""
    won: list[bytes] = []

    async def race(number: int) -> None:
        async with place.open() as client:
            data = f"racer {number}".encode()
            try:
                await client.create("chain/00000001.json", data)
            except AlreadyExists:
                return
            won.append(data)

    async with anyio.create_task_group() as tasks:
        for number in range(RACERS):
            tasks.start_soon(race, number)
    async with place.open() as client:
        assert [await client.get("chain/00000001.json", max_bytes=100)] == won


async def test_a_put_replaces_whole(backend: Backend) -> None:
    """A reader beside a writer sees one version or the other, never parts of both."""
    versions = [bytes([number]) * 200_000 for number in (1, 2)]
    await backend.put("k", versions[0])

    async def rewrite() -> None:
        for number in range(6):
            await backend.put("k", versions[number % 2])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rewrite)
        for _ in range(12):
            assert await backend.get("k", max_bytes=MIB) in versions


async def test_a_shorter_put_leaves_no_tail(backend: Backend) -> None:
    """An object put over a longer one ends where it ends."""
    await backend.put("k", b"a long content")
    await backend.put("k", b"short")
    assert await backend.get("k", max_bytes=100) == b"short"


async def test_an_empty_object_exists(backend: Backend) -> None:
    """Nothing is a content too: it is read, looked at, listed and protected like any other."""
    await backend.create("empty", b"")
    assert await backend.get("empty", max_bytes=0) == b""
    assert await backend.get_range("empty", 0, 10) == b""
    assert (await backend.stat("empty")).size == 0
    assert [info.size for info in await backend.list("")] == [0]
    with pytest.raises(AlreadyExists):
        await backend.create("empty", b"x")


async def test_a_large_object_is_whole(backend: Backend) -> None:
    """Five MiB come back byte for byte."""
    data = bytes(range(256)) * (5 * MIB // 256)
    await backend.create("large", data)
    assert await backend.get("large", max_bytes=len(data)) == data


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [(0, 3, b"012"), (4, 3, b"456"), (8, 100, b"89"), (10, 5, b""), (50, 5, b""), (3, 0, b"")],
)
async def test_a_range_is_cut_at_the_end(backend: Backend, start: int, length: int, expected: bytes) -> None:
    """A range gives what there is of it, and nothing behind the end."""
    await backend.create("digits", b"0123456789")
    assert await backend.get_range("digits", start, length) == expected


async def test_an_object_over_the_limit_is_not_read(backend: Backend) -> None:
    """One byte more than allowed is refused; exactly as many are read."""
    await backend.create("k", b"12345")
    assert await backend.get("k", max_bytes=5) == b"12345"
    with pytest.raises(ObjectTooLarge):
        await backend.get("k", max_bytes=4)


async def test_what_is_missing_is_not_found(backend: Backend) -> None:
    """Every way of reading says NotFound, also for a prefix that has objects below it."""
    await backend.create("folder/object", b"x")
    for key in ("absent", "folder/absent", "absent/object", "folder"):
        with pytest.raises(NotFound):
            await backend.get(key, max_bytes=10)
        with pytest.raises(NotFound):
            await backend.get_range(key, 0, 1)
        with pytest.raises(NotFound):
            await backend.get_range(key, 0, 0)
        with pytest.raises(NotFound):
            await backend.stat(key)


async def test_absence_is_never_remembered(place: Place) -> None:
    """Whoever looked in vain, or listed, sees at once what another client then creates."""
    async with place.open() as writer, place.open() as reader:
        for number in range(3):
            key = f"chain/{number}.json"
            with pytest.raises(NotFound):
                await reader.get(key, max_bytes=10)
            with pytest.raises(NotFound):
                await reader.stat(key)
            assert len(await reader.list("chain/")) == number
            await writer.create(key, b"entry")
            assert await reader.get(key, max_bytes=10) == b"entry"
            assert (await reader.stat(key)).size == 5
            assert [info.key for info in await reader.list("chain/")][-1] == key


async def test_content_is_never_remembered(place: Place) -> None:
    """Whoever read an object reads the new one after another client put or deleted it."""
    async with place.open() as writer, place.open() as reader:
        await writer.put("alive/1", b"1")
        assert await reader.get("alive/1", max_bytes=10) == b"1"
        await writer.put("alive/1", b"22")
        assert await reader.get("alive/1", max_bytes=10) == b"22"
        assert (await reader.stat("alive/1")).size == 2
        await writer.delete(["alive/1"])
        with pytest.raises(NotFound):
            await reader.get("alive/1", max_bytes=10)


async def test_a_listing_is_sorted_and_bounded_by_its_prefix(backend: Backend) -> None:
    """A prefix is a whole folder, at any depth; what only begins alike is not in it."""
    keys = ["a/1", "a/b/2", "a/b/c/3", "a.b/4", "ab/5", "z"]
    for key in reversed(keys):
        await backend.create(key, key.encode())
    assert [info.key for info in await backend.list("")] == sorted(keys)
    assert [info.key for info in await backend.list("a/")] == ["a/1", "a/b/2", "a/b/c/3"]
    assert [(info.key, info.size) for info in await backend.list("a/b/c/")] == [("a/b/c/3", 7)]
    assert await backend.list("none/") == []


async def test_a_listing_has_every_page(place: Place, backend: Backend) -> None:
    """More objects than one page holds are all listed, and deleted in one call."""
    keys = [f"many/{number:05}" for number in range(MANY if place.name in PAGED else FEW)]
    limiter = anyio.CapacityLimiter(32)

    async def create(key: str) -> None:
        async with limiter:
            await backend.create(key, b"x")

    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(create, key)
    assert [info.key for info in await backend.list("many/")] == keys
    await backend.delete(keys)
    assert await backend.list("many/") == []


async def test_deleting_is_idempotent(backend: Backend) -> None:
    """A missing object among those to delete is no error, once or twice."""
    await backend.create("a/b/c", b"x")
    await backend.create("d", b"x")
    for _ in range(2):
        await backend.delete(["a/b/c", "absent/object", "d"])
        await backend.delete(["a/b/c"])
        await backend.delete([])
    assert await backend.list("") == []


async def test_a_deleted_key_is_free(backend: Backend) -> None:
    """After a delete the same key can be created again, folders and all."""
    for content in (b"1", b"2"):
        await backend.create("a/b/c", content)
        assert await backend.get("a/b/c", max_bytes=1) == content
        await backend.delete(["a/b/c"])


async def test_a_key_of_odd_characters_is_kept(backend: Backend) -> None:
    """A key comes back from a listing exactly as it was given."""
    await backend.create(ODD_KEY, b"odd")
    assert await backend.get(ODD_KEY, max_bytes=3) == b"odd"
    assert [info.key for info in await backend.list("a/")] == [ODD_KEY]
    await backend.delete([ODD_KEY, "a/other"])
    assert await backend.list("") == []


async def test_case_tells_keys_apart(backend: Backend) -> None:
    """Two keys that differ in case only are two objects."""
    await backend.create("k/Name", b"upper")
    await backend.create("k/name", b"lower")
    assert await backend.get("k/Name", max_bytes=5) == b"upper"


@pytest.mark.parametrize(
    "key",
    [
        *(
            "",
            "/etc/passwd",
            "a//b",
            "a/",
            "../x",
            "a/../../x",
            "./a",
            "a/.",
            "a\0b",
            "a\nb",
            "\ud800",
            ".a.1.tmp",
        ),
        *("x" * 256, "/".join(["x" * 200] * 6)),
    ],
)
async def test_a_key_that_is_no_plain_name_is_refused(backend: Backend, key: str) -> None:
    """Keys that could leave the root, or break a backend, reach none."""
    calls: list[Callable[[], Awaitable[object]]] = [
        partial(backend.create, key, b"x"),
        partial(backend.put, key, b"x"),
        partial(backend.get, key, max_bytes=1),
        partial(backend.get_range, key, 0, 1),
        partial(backend.stat, key),
    ]
    for call in calls:
        with pytest.raises(InvalidName):
            await call()
    if key not in {"", ".a.1.tmp"}:
        with pytest.raises(InvalidName):
            await backend.delete([key])


async def test_a_write_cancelled_at_any_moment_is_whole_or_absent(place: Place) -> None:
    """However far a create got when it was cancelled, no part of it is seen, and the key can be written."""
    async with place.open() as backend:
        for number in range(10):
            key = f"k/{number}"
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(backend.create, key, b"x" * MIB)
                    for _ in range(number):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
        for info in await backend.list(""):
            assert info.size == MIB
            assert await backend.get(info.key, max_bytes=MIB) == b"x" * MIB
        if isinstance(backend, LocalBackend):
            assert await backend.list_leftovers() == []
        await backend.put("k/0", b"fine")
        assert await backend.get("k/0", max_bytes=4) == b"fine"


async def test_a_lock_is_held_by_one(place: Place) -> None:
    """Where a backend declares a host lock, the second holder is told, until the first lets go."""
    async with place.open() as first, place.open() as second:
        async with first.lock("alive/1.lock") as mine, second.lock("alive/1.lock") as theirs:
            assert mine
            assert theirs is not first.traits.host_lock
        async with second.lock("alive/1.lock") as theirs:
            assert theirs
