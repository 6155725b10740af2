"""Files outside the store: what is wrong with one is told by name, and no URL is opened that nobody allowed."""

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from store import (
    AccessDenied,
    CorruptCheckpoint,
    External,
    InvalidInput,
    MemoryBackend,
    Store,
    copy_checkpoint,
    open_checkpoint,
    verify_store,
)
from store import externals as module
from store.errors import StoreUnavailable
from store.externals import check_externals, may_open
from tests.support.checkpoints import AGENT, memory_store, publish_rounds, records, store_with
from tests.support.damage import forge_aggregate

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

WEIGHTS = b"weights"


def weights(url: str) -> External:
    return External(url=url, size=len(WEIGHTS), sha256=hashlib.sha256(WEIGHTS).hexdigest())


async def store_that_names(*urls: str) -> Store:
    """A sound checkpoint, whose writer then says that it refers to these files."""
    store = await store_with({AGENT: records(2)})
    named = [weights(url).model_dump(mode="json") for url in urls]
    forge_aggregate(store, lambda document: document.update(externals=named))
    return store


async def findings(store: Store, **more: Any) -> dict[tuple[str, str], str]:
    """Message by severity and object."""
    return {(f.severity, f.object): f.message for f in (await verify_store(store, **more)).findings}


def folder_of(remote: str) -> MemoryBackend:
    """What is opened for a file in its folder `run`."""
    return MemoryBackend(f"{remote}/run".removeprefix("memory://"))


@pytest.fixture
async def remote() -> str:
    """The URL of a store elsewhere, in memory, that holds `run/weights`."""
    url = f"memory://elsewhere-{secrets.token_hex(8)}"
    await folder_of(url).put("weights", WEIGHTS)
    return url


WRONG: dict[str, Callable[[str], str]] = {
    "a missing folder": lambda folder: f"{folder}/nowhere/x",
    "a missing file": lambda folder: f"{folder}/x",
    "a folder": lambda folder: f"{folder}/sub",
    "below a file": lambda folder: f"{folder}/weights/x",
    "a link": lambda folder: f"{folder}/link",
    "another host": lambda folder: "file://host/x",
    "a URL of nothing": lambda folder: "file://",
    "a broken URL": lambda folder: "file://[/x",
    "a query": lambda folder: f"file://{folder}/weights?x",
    "a zero byte in the folder": lambda folder: "/x\0y/z",
    "a zero byte in the name": lambda folder: f"{folder}/we\0ights",
    "an escaped zero byte": lambda folder: f"file://{folder}/a%00b/weights",
    "no absolute path": lambda folder: "relative/x",
    "a zero byte and no absolute path": lambda folder: "x\0y/z",
    "a long folder": lambda folder: f"{folder}/{'d' * 300}/x",
    "a long name": lambda folder: f"{folder}/{'n' * 300}",
    "a folder's own name": lambda folder: f"{folder}/",
    "dots": lambda folder: f"{folder}/sub/..",
    "nothing": lambda folder: "",
    "the root": lambda folder: "/",
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_an_external_that_is_missing_or_can_be_no_file_is_damage_named_by_it(wrong: str, tmp_path: Path) -> None:
    """Verifying a checkpoint raises damage, and verifying a root notes it and goes on to the next one."""
    await anyio.Path(tmp_path / "sub").mkdir()
    await anyio.Path(tmp_path / "weights").write_bytes(WEIGHTS)
    await anyio.Path(tmp_path / "link").symlink_to(tmp_path / "weights")
    url, later = WRONG[wrong](str(tmp_path)), str(tmp_path / "later")
    store = await store_that_names(url, later)
    with pytest.raises(CorruptCheckpoint) as caught:
        await (await open_checkpoint(store)).verify()
    assert caught.value.name == url
    assert set(await findings(store)) == {("damage", url), ("damage", later)}


@pytest.mark.parametrize(
    "form", ["{}/a b%/wei#ghts?", "file://{}/a%20b%25/wei%23ghts%3F", "FILE://localhost{}/a%20b%25/wei%23ghts%3F"]
)
async def test_a_local_file_is_found_by_its_path_and_by_its_url(form: str, tmp_path: Path) -> None:
    """What stands in a path for itself is escaped in a URL, in the folder and in the name."""
    await anyio.Path(tmp_path / "a b%").mkdir()
    await anyio.Path(tmp_path / "a b%" / "wei#ghts?").write_bytes(WEIGHTS)
    store = await store_that_names(form.format(tmp_path))
    await (await open_checkpoint(store)).verify()
    assert await findings(store) == {}


async def test_a_url_that_nobody_allowed_is_never_opened(remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest may be hostile: verifying and copying refuse its URL by name, verifying a root warns of it."""

    async def opened(*args: Any, **more: Any) -> Any:
        raise AssertionError(f"{args} was opened")

    monkeypatch.setattr(module, "open_backend", opened)
    url = f"{remote}/run/weights"
    store = await store_that_names(url)
    with pytest.raises(InvalidInput, match=f"{url}.* nor allowed"):
        await (await open_checkpoint(store)).verify()
    with pytest.raises(InvalidInput, match=f"{url}.* nor allowed"):
        await copy_checkpoint(store, memory_store(), externals=["memory://other"])
    found = await findings(store)
    assert list(found) == [("warning", url)]
    assert found["warning", url].startswith("not checked")


async def test_a_url_below_an_allowed_one_is_checked(remote: str) -> None:
    """Verifying, verifying a root, and copying open it, and find what is wrong with it."""
    store, allowed = await store_that_names(f"{remote}/run/weights"), [f"{remote}/run"]
    await (await open_checkpoint(store)).verify(externals=allowed)
    assert await findings(store, externals=allowed) == {}
    await copy_checkpoint(store, memory_store(), externals=allowed)
    await folder_of(remote).put("weights", b"weighty")
    with pytest.raises(CorruptCheckpoint, match=f"{remote}/run/weights"):
        await (await open_checkpoint(store)).verify(externals=allowed)
    assert list(await findings(store, externals=allowed)) == [("damage", f"{remote}/run/weights")]


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("s3://bucket/run/x", True),
        ("s3://bucket/run/deep/x", True),
        ("s3://bucket/run", True),
        ("s3://bucket/running/x", False),
        ("s3://bucket/run/../x", False),
        ("s3://bucket/run//x", False),
        ("s3://bucket/x", False),
        ("S3://bucket/run/x", False),
        ("gs://bucket/run/x", False),
        ("simplecache::s3://bucket/run/x", False),
        ("/s3://bucket/x", True),
        ("file:///x", True),
        ("http://127.0.0.1/x", False),
    ],
)
@pytest.mark.parametrize("root", ["s3://bucket/run", "s3://bucket/run/"])
def test_what_is_allowed_is_what_lies_below(url: str, allowed: bool, root: str) -> None:
    """A URL is no prefix of a name that merely begins like it, and none leads out of it."""
    expected = allowed and (url, root) != ("s3://bucket/run", "s3://bucket/run/")
    assert may_open(url, [root]) == expected


@pytest.mark.parametrize("error", [AccessDenied, StoreUnavailable])
async def test_an_external_that_cannot_be_reached_is_no_damage(
    error: type[Any], remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verifying a root says that it was not checked and goes on; a restore gets the error itself."""

    async def refused(*args: Any, **more: Any) -> Any:
        raise error("open", remote)

    monkeypatch.setattr(module, "open_backend", refused)
    url = f"{remote}/run/weights"
    store = await store_that_names(url)
    with pytest.raises(error):
        await (await open_checkpoint(store)).verify(externals=[remote])
    assert list(await findings(store, externals=[remote])) == [("warning", url)]


async def test_all_externals_of_the_controller_itself_are_checked_when_it_publishes(remote: str) -> None:
    """It names its own files, so that nobody need allow them."""
    url = f"{remote}/run/weights"
    await publish_rounds(memory_store(), [{AGENT: records(1)}], externals=[weights(url)])
    other = External(url=url, size=len(WEIGHTS), sha256="ab" * 32)
    with pytest.raises(CorruptCheckpoint, match=url):
        await publish_rounds(memory_store(), [{AGENT: records(1)}], externals=[other])


async def test_an_external_that_shrinks_while_it_is_read_is_damage(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short answer ends the look, whatever size the manifest announces."""

    class Short(MemoryBackend):
        async def get_range(self, key: str, start: int, length: int) -> bytes:
            return (await super().get_range(key, start, length))[:-1]

    class Opened:
        backend = Short(space=folder_of(remote).space)

    async def opened(*args: Any, **more: Any) -> Any:
        return Opened

    monkeypatch.setattr(module, "open_backend", opened)
    with pytest.raises(CorruptCheckpoint, match="ends after 6 of 7 bytes"):
        await check_externals([weights(f"{remote}/run/weights")], None)
