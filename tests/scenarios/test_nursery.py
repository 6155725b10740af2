"""The process that forks servers for tests: what goes wrong with it must not be told of the tests that come later."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.nursery import Forked, Nursery, nursery

pytestmark = pytest.mark.process

ASKING = 8


def forked(own: Nursery, folder: Path) -> Forked:
    """What ends at once, with 0."""
    return own.fork(["--help"], out=folder / "out", err=folder / "err", folder=folder, environment=dict(os.environ))


def test_threads_that_ask_at_once_get_each_its_own_answer(tmp_path: Path) -> None:
    """Every process is waited for by several threads, and no other process's answer is taken for its own."""
    own = Nursery()
    try:
        processes = [forked(own, tmp_path) for _ in range(6)]
        copies = [Forked(own, process.pid) for process in processes for _ in range(4)]
        with ThreadPoolExecutor(ASKING) as threads:
            assert set(threads.map(lambda each: each.wait(30.0), copies)) == {0}
    finally:
        own.end()


def test_an_order_that_cannot_be_carried_out_says_why_and_is_the_end_of_nothing(tmp_path: Path) -> None:
    """A process that is none of its children cannot be waited for; the next fork works."""
    own = Nursery()
    try:
        with pytest.raises(AssertionError, match="could not carry out"):
            own.ask({"wait": os.getpid()})
        assert forked(own, tmp_path).wait(30.0) == 0
    finally:
        own.end()


def test_one_that_has_died_says_so_and_is_replaced(tmp_path: Path) -> None:
    """What it had forked can be asked after no more; the next test has another nursery."""
    before = nursery()
    process = forked(before, tmp_path)
    os.kill(before._process.pid, signal.SIGKILL)
    before._process.wait()
    for _ in range(2):
        with pytest.raises(AssertionError, match="has ended with -9"):
            process.poll()
    assert nursery() is not before
    assert forked(nursery(), tmp_path).wait(30.0) == 0
