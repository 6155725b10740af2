"""From a coroutine to an exit code: runs it, prints what it says, and turns every error into one line and a code."""

import traceback
from collections.abc import Awaitable, Callable

import anyio
import typer

from store import StoreError

from . import render
from .compose import failure
from .documents import Document, Failure
from .exits import Exit, exit_of

Job = Callable[[], Awaitable[Document]]


def finish(command: str, job: Job, *, as_json: bool) -> None:
    """Run `job`, print its document and leave with its exit code."""
    document = outcome(job)
    code = int(document.exit)
    try:
        render.print_document(document, command, as_json=as_json)
    except BrokenPipeError:
        render.silence_stdout()  # The reader has seen enough, as `head` does.
    raise typer.Exit(code)


def outcome(job: Job) -> Document:
    """What a job says, or the failure that it ended in."""
    try:
        return anyio.run(job)
    except StoreError as error:
        return failure(error, exit_of(error))
    except KeyboardInterrupt:
        return Failure(error="Interrupted", message="interrupted", hint="", exit=Exit.INTERRUPTED)
    except Exception as error:
        traceback.print_exc()
        hint = "This is a bug in midflight: please report it with the lines above"
        return Failure(error=type(error).__name__, message=str(error) or type(error).__name__, hint=hint, exit=Exit.BUG)
