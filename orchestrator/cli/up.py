"""`midflight up`: the servers of a fleet in the foreground, and one table of what runs where."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from .exits import Exit
from .words import cell, names, safe, table_of

if TYPE_CHECKING:
    from rich.console import Console

    from ..collect.config import Participants
    from ..deployment import FleetTable
    from ..deployment.crew import Tell

_WIDE = 1000
"""Columns where the output is no terminal: lines are never broken for a program that reads them."""
NOT_AS_WISHED = 1
"""The exit code where a server ended by itself, or had to be killed."""
_COLUMNS = ("role", "kind", "workers", "url", "pid", "log")


def command(
    config: Annotated[Path, typer.Argument(help="The configuration of a run with a table [fleet], a TOML file.")],
    stop: Annotated[
        bool, typer.Option("--stop", help="End the servers that outlived whoever started them, and start none.")
    ] = False,
    host: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which of [fleet.hosts] this is: its servers alone are run.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines on stdout.")] = False,
) -> None:
    """Run the servers of a fleet until SIGTERM or Ctrl-C; none that dies is started again."""
    # Here and not above: no other command waits until the participants are imported.
    import anyio
    from rich.console import Console

    from participants.serving import ConfigError

    from ..collect.config import load_participants
    from ..deployment import BadState, CannotBe, DeploymentError, FolderTaken, PortTaken

    errors = Console(stderr=True, width=None if sys.stderr.isatty() else _WIDE)
    tell = _json if as_json else _plain(errors)
    try:
        found = load_participants(config)
        if found.fleet is None:
            raise ConfigError(f"{config}: there is no table [fleet], so its run has no servers")
        raise typer.Exit(anyio.run(_run, found, found.fleet, config.resolve().parent, host, stop, tell))
    except (ConfigError, DeploymentError, OSError) as error:
        refused = isinstance(error, ConfigError | BadState | CannotBe | FolderTaken | PortTaken)
        code = Exit.REFUSED if refused else Exit.FAILED
        for line in f"error: {error}".splitlines():  # It may quote a log.
            _say(errors, line, "red")
        if as_json:
            tell("failed", {"error": type(error).__name__, "message": str(error), "exit_code": int(code)})
        raise typer.Exit(code) from error


async def _run(
    config: "Participants", table: "FleetTable", path: Path, host: str | None, stop: bool, tell: "Tell"
) -> int:
    from participants.serving import ConfigError

    from ..deployment.deployment import Deployment
    from ..deployment.hosts import check_host, spans_of
    from ..deployment.plan import elsewhere, roles_of
    from ..deployment.standing import stand

    if len(elsewhere(config, table)) == len(roles_of(config)):
        raise ConfigError("every server of [fleet] has a url: there is nothing to start")
    check_host(table, spans_of(table, roles_of(config)), host)
    async with Deployment(config, table, path=path, tell=tell, host=host) as deployment:
        if stop:
            await deployment.end_survivors()
            return 0
        stood = await stand(deployment, adopt=table.mode == "adopt", tell=tell)
    return NOT_AS_WISHED if stood.died or stood.killed else 0


def _print(text: str) -> None:
    """A reader may go away: the servers are worth more than what is said of them."""
    with suppress(OSError, ValueError):
        sys.stdout.write(text)
        sys.stdout.flush()


def _say(errors: "Console", line: str, style: str | None = None) -> None:
    with suppress(OSError, ValueError, SystemExit):  # The last is what rich makes of a reader that went away.
        errors.print(safe(line), style=style, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _json(event: str, facts: Mapping[str, Any]) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    _print(orjson.dumps({"event": event, "at": at, **facts}).decode() + "\n")


def _plain(errors: "Console") -> "Tell":
    """Events as sentences on stderr, what is bad in red, and the table on stdout."""

    def tell(event: str, facts: Mapping[str, Any]) -> None:
        if event == "up":
            _print_table(facts["servers"])
            _say(errors, f"up: {len(facts['servers'])} servers; SIGTERM or Ctrl-C ends them", "green")
            return
        says, style = _SAYS[event]
        _say(errors, says(facts), style)

    return tell


def _print_table(servers: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console

    table = table_of(*(name.upper() if name != "role" else "SERVER" for name in _COLUMNS), right=("WORKERS", "PID"))
    for server in servers:
        table.add_row(*(cell("-" if server[name] is None else str(server[name])) for name in _COLUMNS))
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(table)
    _print("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def _ended(facts: Mapping[str, Any]) -> str:
    died = f"; {names(facts['died'])} had ended before" if facts["died"] else ""
    killed = f"; {names(facts['killed'])} had to be killed" if facts["killed"] else ""
    return f"ended: no server is left{died}{killed}"


def _endpoint(facts: Mapping[str, Any]) -> str:
    return f"{facts['role']}: {facts.get('process')}: {facts.get('message')}"


def _worker(facts: Mapping[str, Any]) -> str:
    how = facts.get("signal") or f"exit code {facts.get('exit_code')}"
    return f"{facts['role']}: WORKER {facts.get('process')} (process {facts.get('pid')}) DIED of {how}"


_SAYS: dict[str, tuple[Callable[[Mapping[str, Any]], str], str | None]] = {
    "leftover_ended": (
        lambda f: f"{f['role']}: ended process {f['pid']} of an earlier start{', by force' if f['killed'] else ''}",
        "yellow",
    ),
    "server_started": (lambda f: f"{f['role']}: started at {f['url']} as process {f['pid']}", None),
    "server_adopted": (lambda f: f"{f['role']}: adopted at {f['url']} as process {f['pid']}", None),
    "server_lost": (
        lambda f: (
            f"{f['role']}: SERVER LOST: process {f['pid']} {f['how']}. It is not started again; "
            f"{f['left']} servers are left. Its log: {f['log']}"
        ),
        "bold red",
    ),
    "worker_died": (_worker, "bold red"),
    "endpoint": (_endpoint, "yellow"),
    "worker_started": (
        lambda f: (
            f"{f['role']}: worker {f.get('process')} was started again, as process {f.get('pid')}; "
            "what it had in memory is gone"
        ),
        "red",
    ),
    "stopping": (
        lambda f: f"{f['signal']}: {'killing every server' if f['at_once'] else 'every server is told to end'}",
        None,
    ),
    "state_not_written": (lambda f: f["message"], "red"),
    "ended": (_ended, None),
}


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("up")(command)
