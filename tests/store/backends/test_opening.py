"""Opening: which URL leads where, and what the probe accepts, warns of and refuses."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from store.backends import (
    Call,
    Fault,
    LocalBackend,
    MemoryBackend,
    MemorySpace,
    make_backend,
    open_backend,
    probe,
)
from store.backends.mounts import filesystem_of
from store.backends.object_errors import NoCredentials
from store.errors import (
    AccessDenied,
    AlreadyExists,
    BackendError,
    InvalidInput,
    InvalidStoreURL,
    IOFailed,
    NoSpace,
    NotFound,
    RootMissing,
    UnsupportedStore,
)
from tests.support.file_ops import FaultyOps

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


def denied(call: Call) -> BackendError:
    return AccessDenied(call.verb, call.key, "policy")


async def test_a_path_is_a_local_store(tmp_path: Path) -> None:
    """A path, as text or not, and a file URL lead to the same folder; it is made, with its parents, for writing."""
    root = tmp_path / "runs" / "a b" / "store"
    for url in (root, str(root), f"file://{str(root).replace(' ', '%20')}"):
        opened = await open_backend(url, writable=True)
        assert opened.backend.url == f"file://{root}"
        assert opened.report.probed
        assert opened.report.exclusive_create
        assert opened.report.warnings == ()
    assert os.listdir(root) == []


@pytest.mark.parametrize(
    "name", ["a b", "100%", "a%20b", "q?x#y", "c::d", "\udcff\udcfe", "tab\tnl\n", "数学", " x ", "a:b@c"]
)
async def test_the_url_of_a_local_store_opens_it(tmp_path: Path, name: str) -> None:
    """Whatever the path is, the URL that is shown for it can be shown, and leads to the same folder."""
    (tmp_path / name).mkdir()
    opened = await open_backend(tmp_path / name, writable=False)
    assert opened.backend.url.isprintable()
    again = make_backend(opened.backend.url)
    assert isinstance(again, LocalBackend)
    assert again.root == str(tmp_path / name)


@pytest.mark.parametrize("writable", [True, False])
async def test_a_name_too_long_for_the_file_system_is_no_root(tmp_path: Path, writable: bool) -> None:
    """The request is refused: no permission, mount or disk would change that."""
    with pytest.raises(InvalidStoreURL, match="too long"):
        await open_backend(tmp_path / ("x" * 300), writable=writable)


async def test_a_root_is_not_made_over_something_else(tmp_path: Path) -> None:
    """A file, a link that leads nowhere, or a path through a file is refused as what it is."""
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("nowhere")
    for place in ("file", "link", "file/store"):
        with pytest.raises(InvalidStoreURL, match="a file, or a link"):
            await open_backend(tmp_path / place, writable=True)
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc")
async def test_a_place_that_takes_no_folders_is_a_failure_with_a_hint() -> None:
    """No statement about any object: the folder just cannot be made there."""
    with pytest.raises(IOFailed, match="takes new folders"):
        await open_backend("/proc/midflight", writable=True)


async def test_a_full_store_opens_for_deleting_and_for_nothing_else() -> None:
    """Who wants to make space must get in; a warning says that nothing was tried out."""
    backend = MemoryBackend(space=MemorySpace())
    backend.inject(Fault(verb="create", times=100, error=lambda call: NoSpace(call.verb, call.key)))
    with pytest.raises(NoSpace):
        await probe(backend)
    report = await probe(backend, only_deletes=True)
    assert "no space" in report.warnings[0]
    assert backend.space.objects == {}


async def test_a_relative_path_is_fixed_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later change of the working directory does not move the store."""
    monkeypatch.chdir(tmp_path)
    opened = await open_backend("store", writable=True)
    monkeypatch.chdir("/")
    await opened.backend.create("k", b"x")
    assert (tmp_path / "store" / "k").read_bytes() == b"x"


async def test_reading_makes_and_writes_nothing(tmp_path: Path) -> None:
    """A missing root is a clear error for a reader, and one that is there is not touched."""
    (tmp_path / "file").touch()
    with pytest.raises(RootMissing, match="it is a file, and no folder"):
        await open_backend(str(tmp_path / "file"), writable=False)
    with pytest.raises(RootMissing, match="no such folder"):
        await open_backend(tmp_path / "none", writable=False)
    assert os.listdir(tmp_path) == ["file"]
    opened = await open_backend(tmp_path, writable=False)
    assert not opened.report.probed
    assert os.listdir(tmp_path) == ["file"]


async def test_memory_is_shared_by_name() -> None:
    """Two openings of one memory URL are one store."""
    first = await open_backend("memory://opening-test", writable=True)
    second = await open_backend("memory://opening-test", writable=False)
    await first.backend.create("k", b"x")
    assert await second.backend.get("k", max_bytes=1) == b"x"


@pytest.mark.parametrize(
    "url",
    [
        "nonsense://x/y",
        "",
        "a\0b",
        "s3://",
        "s3:///prefix",
        "s3://bucket/../other",
        "s3://bucket/a//b",
        "file://host/path",
        "file://relative",
        "simplecache::s3://bucket/x",
        "http://user:secret@host/x",
        "s3://AKIA:secret@bucket/x",
        "ftp://host/x",
    ],
)
async def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    """An unknown scheme, a broken path, a synchronous file system: refused before anything is touched."""
    with pytest.raises(InvalidStoreURL):
        await open_backend(url, writable=True)


async def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    """A URL with a secret in it is refused, by a message without the secret."""
    with pytest.raises(InvalidStoreURL) as raised:
        await open_backend("s3://AKIAEXAMPLE:hunter2@bucket/run", writable=True)
    assert "hunter2" not in str(raised.value)
    assert "AKIAEXAMPLE" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"foo": "bar"},
        {"region": 9},
        {"client_kwargs": 5},
        {"client_kwargs": {"foo": 1}},
        {"config_kwargs": "x"},
        {"config_kwargs": {"foo": 1}},
        {"endpoint_url": "no-url"},
        {"max_concurrency": "x"},
        {"session": 5},
    ],
)
async def test_an_option_that_the_file_system_does_not_take_is_refused(options: dict[str, Any]) -> None:
    """It is wrong input, and no bug and no failure of the store; the message names the option."""
    named = {"key": "none", "secret": "none", **options}

    async def use() -> None:
        backend = await anyio.to_thread.run_sync(partial(make_backend, "s3://bucket/run", storage_options=named))
        await backend.get("format.json", max_bytes=1)

    with pytest.raises(InvalidInput, match=next(iter(options))):
        await use()


def test_an_http_store_is_asked_at_its_whole_url() -> None:
    """Its file system wants the scheme too: without it, every connection would look like a missing object."""
    backend = make_backend("http://host:9/run")
    assert backend.url == "http://host:9/run"


def test_the_url_of_a_backend_holds_no_credentials() -> None:
    """Credentials that come by options appear neither in the url nor in the repr."""
    options = {"key": "AKIAEXAMPLE", "secret": "hunter2"}
    backend = make_backend("s3://bucket/run/", storage_options=options)
    assert backend.url == "s3://bucket/run"
    assert "hunter2" not in repr(backend)


async def test_the_probe_leaves_nothing_behind() -> None:
    """A store that passed is as empty as before, and one that failed too."""
    good, bad = MemoryBackend(space=MemorySpace()), MemoryBackend(space=MemorySpace())
    await probe(good)
    bad.inject(Fault(verb="put", error=denied))
    with pytest.raises(AccessDenied):
        await probe(bad)
    assert good.space.objects == bad.space.objects == {}


class _IgnoresCondition(MemoryBackend):
    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, data)


class _LiesAboutRefusal(MemoryBackend):
    async def create(self, key: str, data: bytes) -> None:
        taken = key in self.space.objects
        await self.put(key, data)
        if taken:
            raise AlreadyExists("create", key)


class _ServesOld(MemoryBackend):
    _first: bytes | None = None

    async def get(self, key: str, *, max_bytes: int) -> bytes:
        data = await super().get(key, max_bytes=max_bytes)
        self._first = self._first or data
        return self._first


@pytest.mark.parametrize("kind", [_IgnoresCondition, _LiesAboutRefusal, _ServesOld])
async def test_a_store_that_breaks_a_promise_is_refused(kind: type[MemoryBackend]) -> None:
    """A create that replaces, one that replaces and says it did not, and a read from a cache."""
    backend = kind(space=MemorySpace())
    with pytest.raises(UnsupportedStore):
        await probe(backend)
    assert backend.space.objects == {}


async def test_a_single_writer_may_use_a_store_without_exclusive_create() -> None:
    """On the caller's word the store is accepted, with a warning."""
    report = await probe(_IgnoresCondition(space=MemorySpace()), single_writer=True)
    assert not report.exclusive_create
    assert "not exclusive" in report.warnings[0]


@pytest.mark.parametrize("operation", ["create", "get", "put"])
async def test_denied_reading_or_writing_fails_at_opening(operation: Any) -> None:
    """Who may not write or read finds out at opening, with what to do, and not when a checkpoint is due."""
    backend = MemoryBackend(space=MemorySpace())
    backend.inject(Fault(verb=operation, times=100, error=denied))
    with pytest.raises(AccessDenied, match="opened for writing"):
        await probe(backend)


async def test_where_there_are_no_credentials_it_says_where_to_put_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And not that others would be needed for writing."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(NoCredentials, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"):
        await open_backend("s3://bucket/run", writable=True)


@pytest.mark.parametrize(("operation", "field"), [("list", "can_list"), ("delete", "can_delete")])
async def test_denied_listing_or_deleting_is_a_warning(
    operation: Any, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without these two it works, less well: the report says so, and so does the log."""
    backend = MemoryBackend(space=MemorySpace())
    backend.inject(Fault(verb=operation, times=100, error=denied))
    report = await probe(backend)
    assert getattr(report, field) is False
    assert len(report.warnings) == 1
    assert "denied" in report.warnings[0]
    assert report.warnings[0] in caplog.text


async def test_a_stale_listing_is_a_warning() -> None:
    """A listing that lacks the new object is only a hint anyway."""
    backend = MemoryBackend(space=MemorySpace())
    backend.freeze_listing()
    assert "stale" in (await probe(backend)).warnings[0]


async def test_denied_instead_of_not_found_is_refused() -> None:
    """S3 without the list permission denies what does not exist: then the end of the chain could not be told."""
    backend = MemoryBackend(space=MemorySpace())
    backend.inject(Fault(verb="stat", key_part="absent", error=denied))
    with pytest.raises(AccessDenied, match="listing"):
        await probe(backend)


@pytest.mark.parametrize(("code", "expected"), [("EROFS", AccessDenied), ("EACCES", AccessDenied), ("ENOSPC", NoSpace)])
async def test_a_folder_that_cannot_be_written_fails_at_opening(
    tmp_path: Path, code: str, expected: type[BackendError]
) -> None:
    """Read-only, permission denied and full are told apart, at opening."""
    import errno

    ops = FaultyOps(1, getattr(errno, code), lambda op: op.name in {"create_file", "mkdir"})
    with pytest.raises(expected):
        await probe(LocalBackend(tmp_path, ops))


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:40 / /data rw - nfs4 server:/export rw
41 40 8:2 / /data/local\\040disk rw - xfs /dev/sdb rw
42 22 0:42 / /mnt/ssh rw - fuse.sshfs me@there: rw
43 22 0:43 / /over rw - ext4 /dev/sdc rw
44 22 0:44 / /over rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/somewhere", "ext4"),
        ("/data", "nfs4"),
        ("/data/run/store", "nfs4"),
        ("/database", "ext4"),
        ("/data/local disk/store", "xfs"),
        ("/mnt/ssh/x", "fuse.sshfs"),
        ("/over/x", "cifs"),
    ],
)
def test_the_innermost_and_latest_mount_counts(path: str, kind: str) -> None:
    """A path belongs to the longest mount point above it, and to the last of two on one folder."""
    assert filesystem_of(path, lambda: MOUNTS) == kind
    assert filesystem_of(path, lambda: "") == ""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"])
async def test_a_network_file_system_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    """Where names are cached between opens two hosts would not see each other's creates; one writer may use it."""

    def mounts() -> str:
        return f"22 1 0:1 / / rw - {kind} server:/x rw\n"

    with pytest.raises(UnsupportedStore, match=f"on {kind},"):
        await open_backend(tmp_path / "s", writable=True, mountinfo=mounts)
    opened = await open_backend(tmp_path / "s", writable=True, single_writer=True, mountinfo=mounts)
    assert opened.report.filesystem == kind
    assert (await open_backend(tmp_path / "s", writable=False, mountinfo=mounts)).report.probed is False


async def test_a_missing_key_is_still_missing_after_the_probe(tmp_path: Path) -> None:
    """Opening leaves no object that a later listing or read could meet."""
    opened = await open_backend(tmp_path, writable=True)
    assert await opened.backend.list("") == []
    with pytest.raises(NotFound):
        await opened.backend.get("format.json", max_bytes=10)
