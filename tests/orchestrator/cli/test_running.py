"""Whatever happens inside a command, it ends in one document and one exit code."""

import pytest

from orchestrator.cli.documents import Copied, Document, Failure
from orchestrator.cli.exits import Exit
from orchestrator.cli.jsonout import to_json
from orchestrator.cli.running import outcome
from store import CheckpointId, NoCheckpoint

pytestmark = pytest.mark.unit

COPIED = Copied(source="a", destination="b", checkpoint=CheckpointId(1, 2), run_id="r", digest="d")


def test_what_a_job_says_is_the_outcome() -> None:
    """Nothing is added, and a fine one exits with 0."""

    async def job() -> Document:
        return COPIED

    assert outcome(job) is COPIED
    assert to_json(COPIED, "copy").startswith(b'{"command":"copy","exit_code":0,"source":"a"')


def test_an_error_of_the_store_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Type, message and hint, which are the same for people and for programs."""

    async def job() -> Document:
        raise NoCheckpoint("s3://b/x", "1.1")

    found = outcome(job)
    assert isinstance(found, Failure)
    assert (found.exit, found.error) == (Exit.NOTHING, "NoCheckpoint")
    assert "checkpoints list" in found.hint
    assert capsys.readouterr() == ("", "")


def test_a_bug_shows_its_traceback_and_is_not_taken_for_damage(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is one of its own, and stdout stays clean for programs."""

    async def job() -> Document:
        raise ZeroDivisionError("of all things")

    found = outcome(job)
    assert isinstance(found, Failure)
    assert (found.exit, found.error, found.message) == (Exit.BUG, "ZeroDivisionError", "of all things")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" in shown.err


def test_an_interrupt_is_not_taken_for_damage() -> None:
    """It exits as a shell expects."""

    async def job() -> Document:
        raise KeyboardInterrupt

    assert outcome(job).exit is Exit.INTERRUPTED
