"""The commands of `midflight`, put together."""

import logging
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from . import backend, checkpoints, collect, conformance, ledger, render, serve, up
from .exits import Exit

app = typer.Typer(
    help="Checkpoints LLM rollouts in mid-flight and continues them after a crash.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(ledger.app, name="ledger")
backend.register(app)
collect.register(app)
conformance.register(app)
serve.register(app)
up.register(app)


def _show_version(asked: bool) -> None:
    if asked:
        render.print_text(f"midflight {version('midflight')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Checkpoints LLM rollouts in mid-flight and continues them after a crash."""


def run() -> None:
    """Run what the arguments say; what its libraries log is no part of what a command says."""
    logging.getLogger().addHandler(logging.NullHandler())
    stdout = sys.stdout
    try:
        app(prog_name="midflight")
    except SystemExit:
        if sys.stdout is stdout:
            raise
        # Typer has met a reader that went away, has put another stream there, and exits with the code of damage.
        sys.exit(0 if "--help" in sys.argv else Exit.REFUSED)
