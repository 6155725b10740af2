"""The one app of a worker process: control and data plane, channels, where the workers are, and how it is doing.

/checkpoint/v1/...                     the control plane, where there is a token; else 404, and that there is none
/ledger/v1/...                         the capture ledger of a model server, where there is a token; else the same
/midflight/v1/workers                  the private URL of each worker, in order
/midflight/v1/channel                  many data calls over one connection
/mcp                                   the tools of a resources server over MCP
/metrics                               what all workers have counted, where that is asked for; else 404, and how to
/midflight/v1/metrics                  what this one has counted
/  /health  /healthz  /livez           200 while the process answers
/readyz                                200 while every worker serves, else 503
GET of anything but /v1/models         404
anything else                          data calls
"""

from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from ..channels import channel_route, workers_route
from ..control_http import CONTROL_PREFIX, control_app
from ..data_http import HEALTH_ROUTES, Served, data_app
from ..errors import Code, ParticipantError
from ..ledger import Ledger
from ..ledger.http import LEDGER_PREFIX, ledger_app
from ..mcp_http import MCP_PATH
from ..model import MODELS
from ..peer import ERROR_HEADER
from ..plane import ControlPlane
from ..telemetry.prometheus import METRICS_PATH, Metrics
from .board import Board, Stage
from .spec import ServerSpec

READY_PATH = "/readyz"
LIFE_PATHS = "/rollouts/{rollout}/{life}"
"""Prefix of calls that name their life in the path."""


def worker_app(
    handler: Served,
    *,
    about: Mapping[str, Any],
    urls: tuple[str, ...],
    board: Board,
    number: int,
    control: tuple[ControlPlane, str] | None,
    ledger: Ledger | None = None,
    mcp: ASGIApp | None = None,
    metrics: Metrics | None = None,
) -> Starlette:
    """The app. `about` goes into the health document; `control` is the control plane with its token."""
    routes: list[BaseRoute] = []
    if control is not None:
        plane, token = control
        routes.append(Mount(CONTROL_PREFIX, control_app(plane, token)))
        if ledger is not None:
            routes.append(Mount(LEDGER_PREFIX, ledger_app(ledger, token)))
    else:
        missing = _missing("this server has no control plane: it was started without --token-env")
        routes += [Route(f"{prefix}/{{path:path}}", missing) for prefix in (CONTROL_PREFIX, LEDGER_PREFIX)]
    routes += [workers_route(handler.role, urls), channel_route(handler)]
    routes.extend(_health(about, board, number))
    no_metrics = Route(METRICS_PATH, _missing("this server has no metrics: it was started without --prometheus"))
    routes += [no_metrics] if metrics is None else metrics.routes()
    data = data_app(handler)
    if handler.role.startswith("model."):
        routes += [Route(path, data, methods=["GET"]) for path in (MODELS, f"{LIFE_PATHS}{MODELS}")]
    if mcp is not None:
        routes += [Route(path, mcp) for path in (MCP_PATH, f"{LIFE_PATHS}{MCP_PATH}")]
    routes.append(Route("/{path:path}", _missing(f"{handler.role} serves nothing there for GET"), methods=["GET"]))
    return Starlette(routes=[*routes, Mount("/", data)])


def _missing(problem: str) -> ASGIApp:
    """Whatever is asked is not there."""
    error = ParticipantError(Code.INVALID_REQUEST, problem)
    return JSONResponse(error.to_body(), 404, {ERROR_HEADER: error.code.value})


def _health(about: Mapping[str, Any], board: Board, number: int) -> list[Route]:
    def route(path: str, status: Callable[[], int]) -> Route:
        async def answer(_: Request) -> Response:
            return JSONResponse(health_of(about, board, number), status())

        return Route(path, answer, methods=["GET"])

    def whether_ready() -> int:
        return 200 if board.ready == board.workers else 503

    return [route(path, whether_ready if path == READY_PATH else lambda: 200) for path in HEALTH_ROUTES]


def health_of(about: Mapping[str, Any], board: Board, number: int) -> dict[str, Any]:
    """The health document."""
    stage = board.stage(number)
    counts = {"workers": board.workers, "ready": board.ready, "replaced": board.replaced}
    return {"status": "closing" if stage is Stage.CLOSING else "ok", **about, **counts}


def about_of(spec: ServerSpec, process: str, pid: int, incarnation: str) -> dict[str, Any]:
    """Who a worker is, in its health document."""
    return {"kind": spec.kind, "name": spec.name, "process": process, "pid": pid, "incarnation": incarnation}
