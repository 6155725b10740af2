"""Folders made and looked at with nothing of the code under test, and a record's way through a store."""

import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from participants.workfolder import Digests, FolderLimits, export
from store import DEFAULT_LIMITS, BlobRef, CheckpointId
from store.values import BlobPlan, encode_value, fill_blobs, parse_exactly, unescape

LIMITS = FolderLimits()
Node = Any
"""bytes: a file; str: a link; None: a fifo; 0: a socket; dict: a folder by names in bytes."""


def make(folder: bytes, content: Mapping[bytes, Node]) -> None:
    """Fill an existing folder."""
    for name, node in content.items():
        path = folder + b"/" + name
        if isinstance(node, bytes):
            with open(path, "wb") as file:
                file.write(node)
        elif isinstance(node, str):
            os.symlink(node.encode(), path)
        elif node is None:
            os.mkfifo(path)
        elif node == 0 and not isinstance(node, dict):
            bind(folder, name)
        else:
            os.mkdir(path)
            make(path, node)


def bind(folder: bytes, name: bytes) -> None:
    """A socket's file, which nobody listens at any more; the name to bind to must be short."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{fd}/made")
        os.rename("made", name, src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        os.close(fd)


def facts(folder: Path) -> dict[bytes, tuple[Any, ...]]:
    """All that counts of each thing in a folder, and of the folder itself, without following any link."""
    found: dict[bytes, tuple[Any, ...]] = {}
    root = os.fsencode(folder)
    todo = [root]
    for path in todo:
        looked = os.lstat(path)
        kind = stat.S_IFMT(looked.st_mode)
        content: Any = None
        if kind == stat.S_IFREG:
            with open(path, "rb") as file:
                content = file.read()
        elif kind == stat.S_IFLNK:
            content = os.readlink(path)
        elif kind == stat.S_IFDIR:
            todo += [path + b"/" + name for name in os.listdir(path)]
        found[path[len(root) :]] = (kind, stat.S_IMODE(looked.st_mode), looked.st_mtime_ns, content)
    return found


def stored(folder: Path, digests: Digests | None = None, limits: FolderLimits = LIMITS) -> Any:
    """The record of a folder as a restore reads it back."""
    plan = BlobPlan(CheckpointId(1, 1), (), DEFAULT_LIMITS)
    encoded = encode_value(export(folder, limits, Digests() if digests is None else digests), plan, "r")
    value = parse_exactly(encoded.data, "r")
    blobs: dict[BlobRef, bytes] = {**encoded.outgoing, **{ref: lazy.load("r") for ref, lazy in encoded.lazy.items()}}
    return fill_blobs(unescape(value, "r"), blobs) if encoded.escaped else value
