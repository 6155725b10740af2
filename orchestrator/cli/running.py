"""From a coroutine to an exit code: runs it, prints what it says, and turns every error into one line and a code."""

import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import typer

from store import StoreError

from . import render
from .compose import failure
from .documents import Document, Failure
from .exits import Exit, exit_of
from .signals import interruptible

Job = Callable[[], Awaitable[Document]]


def finish(command: str, job: Job, *, as_json: bool) -> None:
    """Run `job`, print its document and leave with its exit code."""
    raise typer.Exit(int(tell(outcome(job), command, as_json=as_json)))


def tell(document: Document, command: str, *, as_json: bool) -> Exit:
    """Print a document; the exit code is its own, unless it could not be printed."""
    try:
        render.print_document(document, command, as_json=as_json)
    except BrokenPipeError:
        render.silence(sys.stdout)  # The reader has seen enough, as `head` does.
    except OSError as error:
        render.silence(sys.stdout)
        render.print_failure(_unprinted(error))
        return Exit.FAILED
    except Exception as error:
        found = _bug(error)
        render.print_failure(found)
        return found.exit
    return document.exit


def outcome(job: Job) -> Document:
    """What a job says, or the failure that it ended in."""
    try:
        with interruptible():
            return anyio.run(job)
    except StoreError as error:
        return failure(error, exit_of(error))
    except KeyboardInterrupt:
        return Failure(error="Interrupted", message="interrupted", hint="", exit=Exit.INTERRUPTED)
    except Exception as error:
        return _bug(error)


def _bug(error: Exception) -> Failure:
    with suppress(OSError):
        traceback.print_exception(error)
    hint = "This is a bug in midflight: please report it with the lines above"
    return Failure(error=type(error).__name__, message=str(error) or type(error).__name__, hint=hint, exit=Exit.BUG)


def _unprinted(error: OSError) -> Failure:
    message = f"the command has run, and what it says could not be printed: {os.strerror(error.errno or 0)}"
    hint = "Give it a stdout that takes it"
    return Failure(error="OutputFailed", message=message, hint=hint, exit=Exit.FAILED)
