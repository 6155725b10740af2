"""Watching one program until it is over, or has used more than it may: run by the keeper alone."""

import os
import select
import time

from . import tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .order import Order

TICK_S = 0.05
"""How often it looks at what the program uses."""
SETUP_S = 30.0
"""How long containment may take to stand, which on an idle machine is a hundredth of a second."""
DISK_SHARE = 10
"""Counting the folder takes at most one part in so many of a processor."""
COUNT_S = 1.0
"""But it is done so often at least."""


class Watch:
    """Looks at one program."""

    def __init__(self, order: "Order", child: int, told: int) -> None:
        """`told` is the end of a pipe where the child says that the program begins, or why it cannot."""
        self.peak = 0
        self.cpu_s = 0.0
        self.said = b""
        self.began = time.monotonic()
        """When the program began; until that is known, when its preparation did."""
        self._order = order
        self._child = child
        self._told = told
        self._stands = False
        self._next_count = self.began
        os.set_blocking(told, False)

    def until_over(self, control: int, server: int) -> str:
        """Why it is over: `over` by itself, `told` by the server or its end, else what it used too much of."""
        poller = select.poll()
        for descriptor in (control, self._told, child := os.pidfd_open(self._child)):
            poller.register(descriptor, select.POLLIN)
        while True:
            left_s = self.began + (self._order.wall_s if self._stands else SETUP_S) - time.monotonic()
            ready = dict(poller.poll(max(0.0, min(left_s, TICK_S)) * 1000))
            if self._told in ready:
                self.hear()
                poller.unregister(self._told)
            if control in ready or os.getppid() != server:
                return "told"
            if child in ready:
                return "over"
            if left_s <= 0 and self._told not in ready:
                return "time"
            if exceeded := self._exceeded():
                return exceeded

    def hear(self) -> None:
        """Read what the child says: a word, or that it has closed the pipe by becoming the program."""
        try:
            self.said += os.read(self._told, 4096)
        except BlockingIOError:
            return
        if not self._stands:
            self._stands = True
            self.began = time.monotonic()

    def look(self, pids: list[int]) -> int:
        """Note what these and those that have ended have used; resident bytes now."""
        cpu_s, resident = tree.used(pids)
        if resident > self._order.memory_bytes:
            resident = tree.own_share(pids)
        self.cpu_s = max(self.cpu_s, cpu_s)
        self.peak = max(self.peak, resident)
        return resident

    def _exceeded(self) -> str:
        """What it has used too much of, or nothing."""
        order, pids = self._order, tree.descendants()
        resident = self.look(pids)
        if self.cpu_s > order.cpu_s:
            return "time"
        if resident > order.memory_bytes:
            return "memory"
        too_much = self._stands and (self._memory_too_large(pids) or self._folder_too_large(pids))
        return "files" if too_much else ""

    def _memory_too_large(self, pids: list[int]) -> bool:
        """The first process below bubblewrap sees the program's file systems: those of the host until they stand."""
        mounts = list(self._order.in_memory)
        return bool(mounts) and len(pids) > 1 and tree.in_memory(pids[1], mounts) > self._order.folder_bytes

    def _folder_too_large(self, pids: list[int]) -> bool:
        if self._order.folder is None or time.monotonic() < self._next_count:
            return False
        began_s = time.process_time()
        size = tree.on_disk(self._order.folder, self._order.folder_bytes) + tree.removed_but_open(pids)
        took_s = time.process_time() - began_s
        self._next_count = time.monotonic() + min(COUNT_S, max(TICK_S, DISK_SHARE * took_s))
        return size > self._order.folder_bytes
