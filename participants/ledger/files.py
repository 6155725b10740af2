"""The files of the ledgers: where they are, the locks that all keys share, and the system calls, one method each.

    <root>/locks/<2 digits>.lock                                   64, whatever the number of lives
    <root>/<2 hex>/<rollout_id>/<epoch>.<attempt>.<n>.ledger.jsonl
    <root>/<2 hex>/<rollout_id>/<epoch>.<attempt>.<n>.records.jsonl

The two hexadecimal digits are the first of sha256 of the rollout's id. Whoever changes a file of a rollout holds
`flock` on the lock that the rollout's id falls to; readers need none. No descriptor outlives a batch.

Everything here blocks, and runs in worker threads only.
"""

import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from store import InvalidName, Life

from ..errors import Code, ParticipantError

LOCKS = 64
LOCK_TIMEOUT_S = 30.0
"""How long a batch waits for another process's batch on one lock."""
LOCK_RETRY_S = 0.002
_NEW = ".new"
_SHARD = re.compile(r"[0-9a-f]{2}")
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = re.compile(r"(0|[1-9][0-9]{0,17})\.(0|[1-9][0-9]{0,17})\.(0|[1-9][0-9]{0,17})\.ledger\.jsonl")


@contextmanager
def translated(what: object) -> Iterator[None]:
    """Errors of the disk as `store_failed`."""
    try:
        yield
    except OSError as error:
        raise ParticipantError(Code.STORE_FAILED, f"the files of {what}: {error}") from error


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one life, below a root."""

    shard: str
    """Path of the folder that the rollout's folder is in, like all of these."""
    folder: str
    ledger: str
    records: str


class Disk:
    """The system calls. A subclass overrides `step` to record them, or to raise in their place."""

    def step(self, name: str, path: str) -> None:
        """Called before each call."""

    def make_folder(self, path: str) -> bool:
        """Make one folder; whether it is new."""
        self.step("mkdir", path)
        try:
            os.mkdir(path)
        except FileExistsError:
            return False
        return True

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file to append; a link is refused."""
        self.step("create" if create else "open", path)
        return os.open(path, os.O_RDWR | os.O_APPEND | _FLAGS | (os.O_CREAT if create else 0), 0o666)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """Bytes of an open file."""
        return os.fstat(fd).st_size

    def write(self, fd: int, path: str, data: bytes) -> None:
        """Append all of it."""
        rest = memoryview(data)
        while rest:
            self.step("write", path)
            rest = rest[os.write(fd, rest) :]

    def truncate(self, fd: int, path: str, size: int) -> None:
        """Cut a file."""
        self.step("truncate", path)
        os.ftruncate(fd, size)

    def sync(self, fd: int, path: str) -> None:
        """Make a file's content durable."""
        self.step("fsync", path)
        self.flush(fd)

    def sync_folder(self, path: str) -> None:
        """Make a folder's names durable."""
        self.step("fsync", path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.flush(fd)
        finally:
            os.close(fd)

    def flush(self, fd: int) -> None:
        """The call itself."""
        os.fsync(fd)

    def read(self, path: str) -> bytes | None:
        """A whole file; None where there is none."""
        self.step("read", path)
        try:
            with open(os.open(path, os.O_RDONLY | _FLAGS), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def rename(self, path: str, target: str) -> None:
        """Rename a file, in place of any other."""
        self.step("rename", target)
        os.rename(path, target)

    def remove(self, path: str) -> bool:
        """Remove a file; whether there was one."""
        self.step("unlink", path)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def remove_folder(self, path: str) -> None:
        """Remove a folder, if it is empty."""
        self.step("rmdir", path)
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def names(self, path: str) -> list[str]:
        """The names in a folder, none where there is no folder."""
        self.step("names", path)
        try:
            return os.listdir(path)
        except FileNotFoundError:
            return []

    def try_lock(self, path: str) -> int | None:
        """Hold `flock` on a file, made if it is missing; the descriptor that holds it, None where another has it."""
        self.step("lock", path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return fd


class Layout:
    """Names below one root, and the locks."""

    def __init__(self, root: str | os.PathLike[str], disk: Disk) -> None:
        """`root` is made at the first need of it."""
        self.root = os.fspath(root)
        self._disk = disk
        self._durable: set[str] = set()
        """Shards whose names are durable for certain; at most 256."""

    def place(self, life: Life) -> Place:
        """Where the files of a life are; what is put into a path has been checked by `Life`."""
        shard = f"{self.root}/{hashlib.sha256(life.rollout_id.encode()).hexdigest()[:2]}"
        folder = f"{shard}/{life.rollout_id}"
        stem = f"{folder}/{life.epoch}.{life.attempt}.{life.n}"
        return Place(shard, folder, f"{stem}.ledger.jsonl", f"{stem}.records.jsonl")

    def lives(self, rollout_id: str) -> list[Life]:
        """The lives of a rollout that have a ledger, oldest first."""
        folder = self.place(Life(rollout_id, 0, 0, 0)).folder
        matches = [match for name in self._disk.names(folder) if (match := _NAME.fullmatch(name))]
        found = [Life(rollout_id, *(int(number) for number in match.groups())) for match in matches]
        return sorted(found, key=lambda life: (life.epoch, life.n))

    def rollouts(self) -> list[str]:
        """The rollouts that have a folder, in the order of their names; other names are not ours."""
        found: list[str] = []
        for shard in filter(_SHARD.fullmatch, self._disk.names(self.root)):
            found += (name for name in self._disk.names(f"{self.root}/{shard}") if self._is_ours(shard, name))
        return sorted(found)

    def _is_ours(self, shard: str, name: str) -> bool:
        try:
            return self.place(Life(name, 0, 0, 0)).shard == f"{self.root}/{shard}"
        except InvalidName:
            return False

    def make_root(self) -> None:
        """The root and the folder of its locks."""
        missing, path = [], os.path.abspath(f"{self.root}/locks")
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            self._disk.make_folder(folder)
            self._disk.sync_folder(os.path.dirname(folder))

    def make_folders(self, place: Place) -> bool:
        """The folders of a life, which `sync_names` makes durable; whether that of the rollout is new."""
        if place.shard not in self._durable:
            self._disk.make_folder(place.shard)
        return self._disk.make_folder(place.folder)

    def lock_of(self, rollout_id: str) -> int:
        """The number of the lock that a rollout falls to."""
        return hashlib.sha256(rollout_id.encode()).digest()[1] % LOCKS

    @contextmanager
    def locked(self, numbers: Collection[int]) -> Iterator[None]:
        """Hold these locks, taken in ascending order, against every other process and thread."""
        with ExitStack() as held:
            for number in sorted(numbers):
                held.callback(os.close, self._lock(f"{self.root}/locks/{number:02d}.lock"))
            yield

    def _lock(self, path: str) -> int:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        with translated("a lock of the ledgers"):
            while (fd := self._disk.try_lock(path)) is None:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"another process held it for {LOCK_TIMEOUT_S:g} s")
                time.sleep(LOCK_RETRY_S)
        return fd

    def write_first(self, place: Place, data: bytes) -> None:
        """Write the first line of a ledger that is not there yet; a torn one is none."""
        fd = self._disk.open(place.ledger, create=True)
        try:
            self._disk.write(fd, place.ledger, data)
        finally:
            self._disk.close(fd)

    def write_whole(self, place: Place, data: bytes) -> None:
        """Write a ledger durably, in place of any other: it comes to be whole or not at all."""
        new = place.ledger + _NEW
        self._disk.remove(new)  # Left by a crash.
        fd = self._disk.open(new, create=True)
        try:
            self._disk.write(fd, new, data)
            self._disk.sync(fd, new)
        finally:
            self._disk.close(fd)
        self._disk.rename(new, place.ledger)
        self.sync_names(place)

    def folders_to_sync(self, place: Place) -> list[str]:
        """The folders that are to be synced before the names of a life's files are durable."""
        return [place.folder, place.shard, *([] if place.shard in self._durable else [self.root])]

    def are_durable(self, place: Place) -> None:
        """They have been synced."""
        self._durable.add(place.shard)

    def sync_names(self, place: Place) -> None:
        """Make the names of a life's files durable, and those of their folders."""
        for folder in self.folders_to_sync(place):
            self._disk.sync_folder(folder)
        self.are_durable(place)

    def remove(self, place: Place) -> int:
        """Remove the files of a life, the ledger last, durably; how many there were."""
        names = (place.ledger + _NEW, place.records, place.ledger)
        count = sum(self._disk.remove(name) for name in names)
        self._disk.remove_folder(place.folder)
        if count:
            with suppress(FileNotFoundError):
                self._disk.sync_folder(place.folder)
            self._disk.sync_folder(place.shard)
        return count
