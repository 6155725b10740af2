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
    model: Annotated[str | None, typer.Option(help="The name of the model that it serves.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed gives other words.", min=0, max=MAX_SEED)] = 0,
    real: Annotated[bool, typer.Option("--real", help="A small Llama on the CPU; needs the extra worker.")] = False,
    weights: Annotated[Path | None, typer.Option(help="A folder with the weights of --real.")] = None,
    weight_version: Annotated[str, typer.Option(help="The version of the weights that replies name.")] = "",
    weights_root: Annotated[Path | None, typer.Option(help="Let a trainer load weights from folders below it.")] = None,
    kept_tokens: Annotated[int | None, typer.Option(help="Computed prompt tokens that --real keeps.", min=0)] = None,
    tokens_per_s: Annotated[float | None, typer.Option(help="Rate of each call; unlimited if left out.")] = None,
    latency_s: Annotated[float, typer.Option(help="Wait before the first token of each call.", min=0)] = 0.0,
    max_concurrency: Annotated[int | None, typer.Option(help="Calls that generate at once.", min=1)] = None,
    control: Annotated[bool, typer.Option("--control", help="Open the control routes, for tests.")] = False,
    log: Annotated[Path | None, typer.Option(help="Append a line of JSON for each call's begin and end.")] = None,
    token_store: Annotated[Path | None, typer.Option(help="Stage the prefixes of calls in this folder.")] = None,
) -> None:
    """Serve a deterministic OpenAI-compatible model, or a small real one: for tests, demos and benches."""
    # Here and not above: no other command waits until a web server is imported.
    from participants.inference import DEFAULT_MODEL, REAL_MODEL, Backend, Pace, Settings, serve_forever
    from participants.worker import WorkerRefused, start_engine

    if not real:
        for option, given in (("--weights", weights), ("--weights-root", weights_root), ("--kept-tokens", kept_tokens)):
            if given is not None:
                raise typer.BadParameter("needs --real", param_hint=option)
    if tokens_per_s is not None and tokens_per_s <= 0:
        raise typer.BadParameter("must be above 0", param_hint="--tokens-per-s")
    pace = Pace(tokens_per_s=tokens_per_s, latency_s=latency_s, max_concurrency=max_concurrency)
    try:
        settings = Settings(
            model=model or (REAL_MODEL if real else DEFAULT_MODEL),
            seed=seed,
            weights=weight_version,
            pace=pace,
            control=control,
            log=log,
            weights_root=weights_root,
            token_store=token_store,
        )
        engine = start_engine(seed, weights, weight_version, kept_tokens=kept_tokens) if real else None
        served = Backend(settings, engine)
        with interruptible():
            serve_forever(served, host, port, lambda url: typer.echo(f"{READY}{url}"))
    except (OSError, WorkerRefused) as error:
        typer.echo(f"cannot start: {error}", err=True)
        raise typer.Exit(USAGE_ERROR) from error


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("backend")(backend)


if __name__ == "__main__":
    typer.run(backend)
