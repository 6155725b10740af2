"""The first and the last that a forked worker does: it is the supervisor no more, and says how it ended."""

import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from store import StoreError

from .board import Board
from .ears import Ears
from .settings import ConfigError
from .sockets import let_go
from .spec import ServerSpec
from .worker import Seat, work

FINE, REFUSED, STORE_FAILED, BUG = 0, 2, 4, 70
_CODES: tuple[tuple[type[BaseException], int], ...] = ((ConfigError, REFUSED), (StoreError, STORE_FAILED))
_PR_SET_PDEATHSIG = 1
_MAX_TOLD = 600
"""Characters of an error in a note, which must fit into one write to a pipe."""


def be_worker(spec: ServerSpec, seat: Seat, others: Sequence[Seat], board: Board, ears: Ears, parent: int) -> NoReturn:
    """Be the worker of a seat, in a process that was just forked from `parent` with its signals held back."""
    code = BUG
    try:
        _die_with(parent)
        ears.forget()
        for other in others:
            other.private.close()
        ports = [listener.getsockname()[1] for listener in (seat.public, seat.private)]
        os.register_at_fork(after_in_child=lambda: let_go(ports))
        code = _worked(spec, seat, board, ears)
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # It died before that was said.
        os._exit(BUG)


def _worked(spec: ServerSpec, seat: Seat, board: Board, ears: Ears) -> int:
    """Do the work; the exit code. What goes wrong is noted for the supervisor, and a defect logged."""
    try:
        work(spec, seat, board, lambda incarnation: ears.note(incarnation=incarnation))
    except BaseException as error:
        bare = error
        while isinstance(bare, BaseExceptionGroup):
            bare = bare.exceptions[0]
        code = next((code for kind, code in _CODES if isinstance(bare, kind)), BUG)
        told = f"{type(bare).__name__}: {bare}" if code == BUG else str(bare)
        ears.note(told=told[:_MAX_TOLD], code=code)
        if code == BUG:
            logging.getLogger("midflight.serving").error("a worker failed", exc_info=error)
        return code
    return FINE
