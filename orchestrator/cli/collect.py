"""`midflight collect`: an evaluation run that survives kill -9."""

import gc
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from store import CheckpointId, Fenced, NotAStore, StoreError

from .exits import Exit, exit_of


def command(
    config: Annotated[Path, typer.Argument(help="The configuration of the run, a TOML file.")],
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew; rows and checkpoints of earlier starts do not count.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option("--from", metavar="ID", help="Continue from this older checkpoint instead of from the head."),
    ] = None,
    take_over: Annotated[bool, typer.Option("--take-over", help="Take the run from a live collector.")] = False,
    accept: Annotated[
        list[str] | None, typer.Option(help="Continue although this field of the fingerprint differs; repeatable.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try rollouts again that have failed for good.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines on stdout.")] = False,
) -> None:
    """Run an evaluation, or continue it: the same command after any crash."""
    # Here and not above: no other command waits until the collection run and its participants are imported.
    from rich.console import Console

    from participants.serving.settings import GC_THRESHOLD

    from ..collect import (
        ENDS_RUN,
        Ending,
        Options,
        collect,
        is_terminal,
        json_events,
        load_config,
        plain_events,
        print_plainly,
        tracebacks_shown,
    )

    console = Console(stderr=True)
    emit = json_events(_print_line) if as_json else plain_events(console)
    ending = Ending()
    ending.install()
    gc.set_threshold(*GC_THRESHOLD)
    sys.path.insert(0, str(config.resolve().parent))  # Servers of one's own may stand beside the configuration.
    try:
        options = Options(
            fresh=fresh,
            base=CheckpointId.parse(base) if base is not None else None,
            take_over=take_over,
            accept=tuple(accept or ()),
            retry_failed=retry_failed,
            console=console if is_terminal() and not as_json else None,
            file=config,
        )
        with tracebacks_shown(partial(print_plainly, console)):
            summary = anyio.run(collect, load_config(config), options, emit, None, None, ending)
    except ENDS_RUN as error:
        code = ending.code = _code_of(error)
        print_plainly(console, f"error: {error}", "red")
        if as_json:
            emit("failed", {"error": type(error).__name__, "message": str(error), "exit_code": int(code)})
        raise typer.Exit(code) from error
    except BaseException as error:
        told = str(error) or type(error).__name__
        emit("failed", {"error": type(error).__name__, "message": told, "exit_code": int(Exit.BUG)})
        if isinstance(error, Exception):
            raise
        raise RuntimeError(f"{type(error).__name__} came out of the run") from error
    raise typer.Exit(summary.exit_code)


def _code_of(error: Exception) -> int:
    from ..collect import (
        EXIT_FENCED,
        EXIT_NOTHING_WORKS,
        EXIT_SERVERS_GONE,
        AnotherWriter,
        ConfigError,
        NothingWorks,
        ServersGone,
    )
    from ..deployment import DeploymentError, NotWritten

    if isinstance(error, NotWritten):
        return Exit.FAILED
    if isinstance(error, ServersGone):
        return EXIT_SERVERS_GONE
    if isinstance(error, NothingWorks):
        return EXIT_NOTHING_WORKS
    if isinstance(error, Fenced | AnotherWriter):
        return EXIT_FENCED
    if isinstance(error, NotAStore):
        return Exit.REFUSED  # Told at its opening, before anything was begun.
    if isinstance(error, StoreError):
        found = exit_of(error)
        return Exit.FAILED if found is Exit.NOTHING else found
    return Exit.REFUSED if isinstance(error, ConfigError | DeploymentError) else Exit.FAILED


def _print_line(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()  # What a program was told must not be lost with the process.


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("collect")(command)
