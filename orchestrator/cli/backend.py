"""`midflight backend`: the deterministic inference backend as a program of its own."""

from pathlib import Path
from typing import Annotated

import typer

from .signals import interruptible

READY = "ready: "
"""The first line on stdout begins with this; the URL follows."""
USAGE_ERROR = 2
MAX_SEED = 2**63 - 1


def backend(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 0,
    model: Annotated[str, typer.Option(help="The name of the model that it serves.")] = "midflight-deterministic",
    seed: Annotated[int, typer.Option(help="Another seed gives other words.", min=0, max=MAX_SEED)] = 0,
    tokens_per_s: Annotated[float | None, typer.Option(help="Rate of each call; unlimited if left out.")] = None,
    latency_s: Annotated[float, typer.Option(help="Wait before the first token of each call.", min=0)] = 0.0,
    max_concurrency: Annotated[int | None, typer.Option(help="Calls that generate at once.", min=1)] = None,
    control: Annotated[bool, typer.Option("--control", help="Open the control routes, for tests.")] = False,
    log: Annotated[Path | None, typer.Option(help="Append a line of JSON for each call's begin and end.")] = None,
    token_store: Annotated[Path | None, typer.Option(help="Stage the prefixes of calls in this folder.")] = None,
) -> None:
    """Serve a deterministic OpenAI-compatible model: for tests, demos and benches."""
    # Here and not above: no other command waits until a web server is imported.
    from participants.inference import Backend, Pace, Settings, serve_forever

    if tokens_per_s is not None and tokens_per_s <= 0:
        raise typer.BadParameter("must be above 0", param_hint="--tokens-per-s")
    pace = Pace(tokens_per_s=tokens_per_s, latency_s=latency_s, max_concurrency=max_concurrency)
    try:
        settings = Settings(model=model, seed=seed, pace=pace, control=control, log=log, token_store=token_store)
        served = Backend(settings)
        with interruptible():
            serve_forever(served, host, port, lambda url: typer.echo(f"{READY}{url}"))
    except OSError as error:
        typer.echo(f"cannot start: {error}", err=True)
        raise typer.Exit(USAGE_ERROR) from error


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("backend")(backend)


if __name__ == "__main__":
    typer.run(backend)
