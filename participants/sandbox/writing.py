"""Writing files into a folder that a program may have filled with links to elsewhere."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import anyio.to_thread

from ..errors import Code, ParticipantError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


async def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files below a folder, in place of what has their names; no link is followed.

    Raises ParticipantError INVALID_REQUEST for a name that leads out of the folder, also through a link.
    """
    await anyio.to_thread.run_sync(_write_all, folder, files)


def _write_all(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise ParticipantError(Code.INVALID_REQUEST, f"{name!r} is no name of a file in a folder")
        try:
            _write(folder, path, content.encode() if isinstance(content, str) else content)
        except OSError as error:
            raise ParticipantError(Code.INVALID_REQUEST, f"{name!r} cannot be written: {error.strerror}") from error


def _write(folder: Path, path: PurePosixPath, content: bytes) -> None:
    at = os.open(folder, _FOLDER)
    try:
        for part in path.parts[:-1]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=at)
            below = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=at)
        with open(os.open(path.name, _NEW, 0o644, dir_fd=at), "wb") as file:
            file.write(content)
    finally:
        os.close(at)
