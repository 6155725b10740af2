"""Which file system a path is on, as far as that decides whether several writers can share it."""

import os
import re
from collections.abc import Callable

MountReader = Callable[[], str]
"""Gives the text of /proc/self/mountinfo."""

NETWORK_FILESYSTEMS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "glusterfs", "ncpfs", "davfs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.blobfuse", "fuse.blobfuse2",
    "fuse.mount-s3", "fuse.mountpoint-s3", "fuse.goofys", "fuse.davfs",
})  # fmt: skip
"""Types whose clients cache names or attributes between opens, or whose rename and link are not atomic everywhere.

Lustre, CephFS and JuiceFS are coherent between hosts and therefore not among them.
"""


def read_mountinfo() -> str:
    """The mounts of this process, or nothing where there is no such file."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def filesystem_of(path: str, read: MountReader = read_mountinfo) -> str:
    """The type of the file system that holds `path`, or an empty string where nobody says."""
    path = os.path.realpath(path)
    best, found = "", ""
    for line in read().splitlines():
        mount_point, kind = _parse(line)
        if _holds(mount_point, path) and len(mount_point) >= len(best):  # of two on one folder the later is on top
            best, found = mount_point, kind
    return found


def is_network(kind: str) -> bool:
    """Whether a file system of this type is refused to several writers."""
    return kind in NETWORK_FILESYSTEMS


def _parse(line: str) -> tuple[str, str]:
    """`36 35 98:0 /root /mount/point opts [fields...] - type source superopts`."""
    before, _, after = line.partition(" - ")
    fields = before.split(" ")
    if len(fields) < 5 or not after:
        return "", ""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4]), after.split(" ")[0]


def _holds(mount_point: str, path: str) -> bool:
    return bool(mount_point) and (path == mount_point or path.startswith(mount_point.rstrip("/") + "/"))
