"""A failure that says "its log has the traceback" is right: stderr has it, once for each kind of error."""

import logging
from collections.abc import Callable

import pytest

from orchestrator.collect.tracebacks import LONGEST, MOST_DISTINCT, tracebacks_shown

from .harness import Run

log = logging.getLogger("midflight.tests")


def fail(number: int, act: Callable[[], object]) -> None:
    """Log what an act raises."""
    try:
        act()
    except Exception:
        log.exception("step %d failed", number)


def raise_it(text: str) -> None:
    """Always at the same line."""
    raise ValueError(text)


@pytest.mark.unit
def test_the_same_traceback_is_told_once_and_then_counted() -> None:
    """Of a thousand, whatever each says: the whole first one, a line at powers of ten, and the sum at the end."""
    told: list[str] = []
    with tracebacks_shown(told.append):
        for number in range(1_000):
            fail(number, lambda number=number: raise_it(f"of {number}"))  # type: ignore[misc]
        log.warning("no error")
        fail(0, lambda: int("x"))
    log.error("outside the block")
    assert told[0].startswith("error 1: step 0 failed\nTraceback (most recent call last):")
    assert told[0].endswith("ValueError: of 0")
    assert told[1:4] == [f"error 1 (ValueError) came {10**n} times by now" for n in range(1, 4)]
    assert told[4].startswith("error 2: step 0 failed\n")
    assert told[5:] == ["error 1 (ValueError) came 1000 times in all"]


@pytest.mark.unit
def test_causes_and_groups_tell_errors_apart_and_depth_does_not() -> None:
    """What lies behind an error belongs to it; a recursion that went deeper is the same error."""
    told: list[str] = []

    def chained(error: Exception) -> None:
        raise ValueError("as a whole") from error

    def grouped(error: Exception) -> None:
        raise ExceptionGroup("several", [error])

    def deep(left: int) -> None:
        deep(left - 1) if left else raise_it("deep")

    with tracebacks_shown(told.append):
        for depth in (3, 4):
            fail(0, lambda depth=depth: deep(depth))  # type: ignore[misc]
        for error in (KeyError(1), KeyError(2), TypeError()):
            fail(0, lambda error=error: chained(error))  # type: ignore[misc]
            fail(0, lambda error=error: grouped(error))  # type: ignore[misc]
    assert [one.partition(":")[0] for one in told[:-1]] == [f"error {n}" for n in range(1, 6)]
    assert told[-1].count("came 2 times in all") == 3


@pytest.mark.unit
def test_what_is_told_is_bounded() -> None:
    """In kinds, in the size of each, and whatever becomes of the reader."""
    told: list[str] = []
    with tracebacks_shown(told.append):
        fail(0, lambda: raise_it("x" * 10 * LONGEST))
        for number in range(3 * MOST_DISTINCT):
            log.error(f"kind {number}")
    assert len(told[0]) < LONGEST + 100
    assert len(told) == MOST_DISTINCT + 2
    assert told[-1] == f"errors of other kinds came {2 * MOST_DISTINCT + 1} times in all"

    def gone(text: str) -> None:
        raise BrokenPipeError

    with tracebacks_shown(gone):
        for _ in range(2):
            fail(0, lambda: raise_it("unheard"))


SERVER = """
from participants import tool
from participants.servers.counter import CounterServer

class Broken(CounterServer):
    def __init__(self, name, **options):
        super().__init__(name)

    @tool
    async def increment_counter(self, session, count: int) -> dict:
        '''Add a number to the counter.'''
        raise RuntimeError("the hook's own")
"""


@pytest.mark.process
def test_the_traceback_of_a_hook_is_on_stderr_of_the_run(run: Run) -> None:
    """With `--json`, once for all episodes and attempts, and stdout has events alone."""
    (run.folder / "broken_server.py").write_text(SERVER)
    run.server = "broken_server:Broken"
    ended = run.finish(code=1)
    errors = ended.errors.read_text()
    assert errors.count("Traceback") == 1
    assert 'broken_server.py", line ' in errors
    assert "RuntimeError: the hook's own" in errors
    assert "error 1 (RuntimeError) came 12 times in all" in errors
    assert len(ended.events("failure")) == 12
