"""What the processes below this one use, and what a program has written: readings of /proc and of the file system.

Run by the keeper alone. Everything read belongs to a hostile program, which goes on changing it: whatever vanishes
while it is read counts as nothing, and what cannot be read to its end counts as too much.
"""

import os
import resource
import signal
import stat

_TICKS_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
ENTRY_BYTES = 1024
"""What a file or folder costs at least, in the kernel's memory or on the disk."""
TOO_MUCH = 1 << 62
STOP_PASSES = 500
"""Then it is left to killing: some processes cannot be stopped, as long as the kernel works for them."""


def children(pid: int | str = "self") -> list[int]:
    """Children of all threads of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found = []
    for thread in threads:
        found += _read(f"/proc/{pid}/task/{thread}/children").split()
    return [int(child) for child in found]


def descendants() -> list[int]:
    """All processes below this one, parents first."""
    found = children()
    for pid in found:
        found += children(pid)
    return found


def _read(path: str) -> str:
    try:
        with open(path, encoding="latin-1") as file:
            return file.read()
    except OSError:
        return ""


def _fields(pid: int) -> list[str]:
    """State, parent and so on of a process, from the third field of its `stat` on; empty where it is gone."""
    return _read(f"/proc/{pid}/stat").rpartition(") ")[2].split()


def stop_all() -> None:
    """Stop all processes below this one: stopped ones keep their places, so that none can fork in their stead."""
    for _ in range(STOP_PASSES):
        pids = descendants()
        running = [pid for pid in pids if _fields(pid)[:1] not in ([], ["T"], ["Z"], ["X"])]
        if not running:
            return
        below = {str(pid) for pid in (os.getpid(), *pids)}
        for pid in running:
            _stop(pid, below)


def _stop(pid: int, below: set[str]) -> None:
    """Stop a process if it is still one of ours: its number may have passed to another since it was read."""
    try:
        held = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if set(_fields(pid)[1:2]) & below:
            signal.pidfd_send_signal(held, signal.SIGSTOP)
    except OSError:
        pass
    finally:
        os.close(held)


def used(pids: list[int]) -> tuple[float, int]:
    """Processor seconds of these processes and of all that ended below this one, and their resident bytes."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = pages = 0
    for pid in pids:
        if fields := _fields(pid):
            ticks += sum(map(int, fields[11:15]))
            pages += int(fields[21])
    return ended.ru_utime + ended.ru_stime + ticks / _TICKS_S, pages * _PAGE_BYTES


def own_share(pids: list[int]) -> int:
    """Resident bytes of these processes, with what several share counted once."""
    total = 0
    for pid in pids:
        for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def in_memory(pid: int, mounts: list[str]) -> int:
    """Bytes that files take in file systems in memory that a process sees."""
    total = 0
    for mount in mounts:
        try:
            state = os.statvfs(f"/proc/{pid}/root{mount}")
        except OSError:
            continue
        total += (state.f_blocks - state.f_bfree) * state.f_frsize + (state.f_files - state.f_ffree) * ENTRY_BYTES
    return total


def removed_but_open(pids: list[int]) -> int:
    """Bytes of files that have no name any more, and that these processes still hold."""
    sizes = {}
    for pid in pids:
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                state = os.stat(f"/proc/{pid}/fd/{descriptor}")
            except OSError:
                continue
            if stat.S_ISREG(state.st_mode) and state.st_nlink == 0:
                sizes[state.st_dev, state.st_ino] = state.st_blocks * 512
    return sum(sizes.values())


def on_disk(folder: str, most: int) -> int:
    """Bytes that a folder takes on disk; it stops counting at `most`. Links are not followed."""
    total, open_folders = 0, [folder]
    while open_folders:
        path = open_folders.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    total += max(ENTRY_BYTES, entry.stat(follow_symlinks=False).st_blocks * 512)
                    if total > most:
                        return total
                    if entry.is_dir(follow_symlinks=False):
                        open_folders.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # Unreadable, or deeper than a path can name.
            return TOO_MUCH
    return total
