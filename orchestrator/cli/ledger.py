"""`midflight ledger`: list, show and check, on the capture ledgers in a folder."""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import anyio.to_thread
import typer

from store import InvalidInput

from .documents import Document
from .running import finish

app = typer.Typer(
    help="Look at the capture ledgers in a folder, and check them.", no_args_is_help=True, rich_markup_mode=None
)

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="The folder of the ledgers.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for programs.")]


@app.command("list")
def list_command(folder: Folder, as_json: Json = False) -> None:
    """List the ledgers, with their capture keys, rows and records."""

    def job() -> Document:
        from .ledgers import list_ledgers

        return list_ledgers(folder)

    _finish("list", job, as_json=as_json)


@app.command("show")
def show_command(
    folder: Folder,
    key: Annotated[str, typer.Argument(metavar="KEY", help="A capture key: a rollout id, or one with -a and N.")],
    rows: Annotated[bool, typer.Option("--rows", help="Print its rows instead.")] = False,
    records: Annotated[
        bool, typer.Option("--records", help="Print the complete records of its calls instead.")
    ] = False,
    version: Annotated[
        str, typer.Option("--version", metavar="V", help="As they stood when it was frozen at this version.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show what the ledger that a key names holds, its rows, or its records."""
    _finish("show", partial(_show, folder, key, rows=rows, records=records, version=version), as_json=as_json)


def _show(folder: str, key: str, *, rows: bool, records: bool, version: str) -> Document:
    from .ledgers import show_ledger, show_records, show_rows

    if rows and records:
        raise InvalidInput("--rows and --records are asked for at once", hint="Ask for one after the other")
    if version and not (rows or records):
        raise InvalidInput("--version is asked for alone", hint="Say --rows or --records, too")
    if rows:
        return show_rows(folder, key, version)
    return show_records(folder, key, version) if records else show_ledger(folder, key)


@app.command("check")
def check_command(
    folder: Folder,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Check these only.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Work out every digest of the ledgers again, say what is wrong, and change nothing."""

    def job() -> Document:
        from .ledgers import check_ledgers

        return check_ledgers(folder, keys or ())

    _finish("check", job, as_json=as_json)


def _finish(command: str, read: Callable[[], Document], *, as_json: bool) -> None:
    """Files are read in a thread, and what is much of them while it is printed."""
    job = partial(anyio.to_thread.run_sync, read, abandon_on_cancel=True)
    finish(command, job, as_json=as_json)
