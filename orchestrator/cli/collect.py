"""`midflight collect`: an evaluation run that survives kill -9."""

import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console

from store import StoreError

from ..collect import ConfigError, Options, collect, is_terminal, json_events, load_config, plain_events
from ..errors import CoordinationError
from .exits import Exit, exit_of


def command(
    config: Annotated[Path, typer.Argument(help="The configuration of the run, a TOML file.")],
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew; rows and checkpoints of earlier starts do not count.")
    ] = False,
    take_over: Annotated[bool, typer.Option("--take-over", help="Take the run from a live collector.")] = False,
    accept: Annotated[list[str] | None, typer.Option(help="Continue although this fingerprint field differs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines on stdout.")] = False,
) -> None:
    """Run an evaluation, or continue it: the same command after any crash."""
    console = Console(stderr=True)
    emit = json_events(sys.stdout.write) if as_json else plain_events(console)
    options = Options(fresh=fresh, take_over=take_over, accept=tuple(accept or ()), live=is_terminal() and not as_json)
    try:
        summary = anyio.run(collect, load_config(config), options, emit)
    except ConfigError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        raise typer.Exit(Exit.REFUSED) from error
    except StoreError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        raise typer.Exit(exit_of(error)) from error
    except CoordinationError as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        raise typer.Exit(Exit.FAILED) from error
    emit("summary", summary.as_facts())
    raise typer.Exit(summary.exit_code)


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("collect")(command)
