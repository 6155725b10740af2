"""Files below a folder that hostile programs have filled: no link is followed, and nothing outside is ever touched.

Everything goes through descriptors: each name of a path is opened in the folder before it, with O_NOFOLLOW. No program
runs in the folder meanwhile; what a program has left behind is all that there is to fear.

A folder or file without permission for its owner is given it while it is open, and has its own mode again afterwards.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .entries import MAX_DEPTH

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PIECE_BYTES = 1 << 20


@contextmanager
def root_of(folder: Path) -> Iterator[int]:
    """A descriptor of the folder itself."""
    with _opened(os.fsencode(folder), None, _FOLDER, 0o700) as fd:
        yield fd


@contextmanager
def folder_in(parent: int, name: bytes) -> Iterator[int]:
    """A descriptor of a folder in another one. Raises OSError, also where it is a link."""
    with _opened(name, parent, _FOLDER, 0o700) as fd:
        yield fd


@contextmanager
def parent_of(root: int, path: bytes) -> Iterator[tuple[int, bytes]]:
    """A descriptor of the folder that holds a path, and the last name."""
    *folders, name = path.split(b"/")
    with ExitStack() as opened:
        fd = root
        for folder in folders:
            fd = opened.enter_context(folder_in(fd, folder))
        yield fd, name


@contextmanager
def file_in(parent: int, name: bytes) -> Iterator[int]:
    """A descriptor of a regular file, to be read. Raises OSError for anything else."""
    with _opened(name, parent, _FILE, 0o600) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{name!r} is no regular file")
        yield fd


@contextmanager
def _opened(name: bytes, parent: int | None, flags: int, wanted: int) -> Iterator[int]:
    mode = -1
    try:
        fd = os.open(name, flags, dir_fd=parent)
    except PermissionError:
        mode = stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        os.chmod(name, mode | wanted, dir_fd=parent)  # Neither of a link: opening that is no question of permission.
        fd = os.open(name, flags, dir_fd=parent)
    try:
        # A folder that can be listed and not entered opens all the same.
        if mode < 0 and flags & os.O_DIRECTORY and (found := stat.S_IMODE(os.fstat(fd).st_mode)) & wanted != wanted:
            mode = found
            os.fchmod(fd, mode | wanted)
        yield fd
    finally:
        if mode >= 0:
            os.fchmod(fd, mode)
        os.close(fd)


def pieces_of(fd: int) -> Iterator[bytes]:
    """The content of an open file."""
    while piece := os.read(fd, PIECE_BYTES):
        yield piece


def read_text(root: int, path: bytes, limit: int) -> bytes | None:
    """The first so many bytes of a file below the folder; None where there is no regular file."""
    try:
        with parent_of(root, path) as (parent, name), file_in(parent, name) as fd:
            data = bytearray()
            while len(data) < limit and (piece := os.read(fd, min(PIECE_BYTES, limit - len(data)))):
                data += piece
            return bytes(data)
    except OSError:
        return None


def is_there(root: int, path: bytes) -> bool:
    """Whether there is anything of that path, which does not go through a link."""
    try:
        with parent_of(root, path) as (parent, name):
            os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return False
    return True


def write_file(root: int, path: bytes, data: bytes) -> None:
    """Put a file there with its folders, in place of a file. Raises OSError where a link or so is in the way."""
    *folders, name = path.split(b"/")
    with ExitStack() as opened:
        fd = root
        for folder in folders:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o755, dir_fd=fd)
            fd = opened.enter_context(folder_in(fd, folder))
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        target = os.open(name, flags, 0o644, dir_fd=fd)
        try:
            if not stat.S_ISREG(os.fstat(target).st_mode):
                raise OSError(f"{name!r} is no regular file")
            os.ftruncate(target, 0)
            write_all(target, memoryview(data))
        finally:
            os.close(target)


def write_all(fd: int, data: memoryview) -> None:
    """All of it."""
    while data:
        data = data[os.write(fd, data) :]


def remove_tree(folder: Path) -> None:
    """Remove a folder and all that is in it, however deep; nothing where it is not there."""
    with suppress(FileNotFoundError):
        with root_of(folder) as root:
            while _empty(root, root, 0):
                pass  # What lay too deep is near to the top now.
        folder.rmdir()


def _empty(fd: int, root: int, depth: int) -> bool:
    """Remove what is in a folder; True where something of it was only brought up to the root."""
    with os.scandir(fd) as found:
        children = [(os.fsencode(each.name), each.is_dir(follow_symlinks=False)) for each in found]
    left = False
    for name, is_folder in children:
        if not is_folder:
            os.unlink(name, dir_fd=fd)
        elif depth == MAX_DEPTH:
            os.rename(name, f"deep-{os.urandom(8).hex()}", src_dir_fd=fd, dst_dir_fd=root)
            left = True
        else:
            with folder_in(fd, name) as child:
                os.fchmod(child, 0o700)
                left |= _empty(child, root, depth + 1)
            os.rmdir(name, dir_fd=fd)
    return left
