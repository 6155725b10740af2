"""`midflight serve`: a participant in processes of its own."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from store import InvalidInput

from .target import parse_option

KINDS = "environment, agent, model or resources"
Kinds = Annotated[str | None, typer.Argument(metavar="KIND", help=f"{KINDS}; --spec may say it.")]

Spans = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT,...", help="Of a role on several hosts: all its servers, in one order."),
]


def serve(
    kind: Kinds = None,
    server: Annotated[
        str | None, typer.Argument(metavar="MODULE:CLASS", help="What it is made of; else the one that ships.")
    ] = None,
    spec: Annotated[Path | None, typer.Option(help="A JSON file with the same; options here overrule it.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share the work; 1.")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = None,
    span: Spans = None,
    name: Annotated[str | None, typer.Option(help="The name of the participant; main.")] = None,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="ROLE=URL", help="A server that this one calls; repeatable.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Of the class; of a model server, a key of [model]; repeatable."),
    ] = None,
    store: Annotated[str | None, typer.Option(help="Path or URL of the checkpoint store.")] = None,
    single_writer: Annotated[
        bool, typer.Option("--single-writer", help="Accept a store without exclusive create.")
    ] = False,
    capture: Annotated[str | None, typer.Option(help="Folder of a model server's capture ledger.")] = None,
    token_env: Annotated[
        str | None, typer.Option(help="Environment variable with the control token; no control plane without.")
    ] = None,
    path: Annotated[str | None, typer.Option(help="A folder to import from; without --spec the current one.")] = None,
    shutdown_s: Annotated[float | None, typer.Option(help="How long SIGTERM leaves work in flight; 10.")] = None,
    otlp: Annotated[str | None, typer.Option(help="Base URL of an OTLP endpoint that telemetry is sent to.")] = None,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Serve metrics at /metrics, for Prometheus.")
    ] = False,
) -> None:
    """Serve a participant in one or several processes, until SIGTERM."""
    # Here and not above: no other command waits until the participants are imported.
    from participants.serving import ConfigError, parse_spec
    from participants.serving.logs import start_logs
    from participants.serving.spec import load_document
    from participants.serving.supervisor import cannot_start
    from participants.serving.supervisor import serve as supervise

    given = {
        "kind": kind,
        "name": name,
        "server": server,
        "workers": workers,
        "listen": listen,
        "span": [one.strip() for one in span.split(",")] if span else None,
        "store": store,
        "single_writer": single_writer or None,
        "capture": capture,
        "token_env": token_env,
        "path": path or (None if spec else os.getcwd()),
        "shutdown_s": shutdown_s,
        "otlp": otlp,
        "prometheus": prometheus or None,
    }
    try:
        document = load_document(spec) if spec else {}
        document |= {key: value for key, value in given.items() if value is not None}
        if "kind" not in document:
            raise ConfigError(f"KIND is missing: {KINDS}" + (f"; {spec} has no kind either" if spec else ""))
        place = "model" if document.get("kind") == "model" else "options"
        for key, found in ((place, _options(option)), ("peers", _pairs(peer))):
            if found:
                document[key] = {**(document.get(key) or {}), **found}
        parsed = parse_spec(document, str(spec) if spec else "the options")
    except ConfigError as error:
        start_logs({"kind": kind, "name": name})
        raise typer.Exit(cannot_start(error)) from error
    raise typer.Exit(supervise(parsed))


def _pairs(texts: list[str] | None) -> dict[str, str]:
    """What stands before and after each `=`."""
    pairs = [text.partition("=") for text in texts or []]
    if any(not key or not value for key, _, value in pairs):
        raise typer.BadParameter("it is not of the form role=url", param_hint="--peer")
    return {key: value for key, _, value in pairs}


def _options(texts: list[str] | None) -> dict[str, Any]:
    try:
        return dict(parse_option(text) for text in texts or [])
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint="--option") from error


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("serve")(serve)
