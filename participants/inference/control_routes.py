"""The control routes, for tests and demos: orders, records, and waiting for calls to get somewhere."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import anyio
from pydantic import Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .control import FailOrder, HoldOrder, Pace, Strict

if TYPE_CHECKING:
    from .server import Backend

RESET_TIMEOUT_S = 10.0
MAX_WAIT_S = 600.0
MAX_VERSION_LENGTH = 200
B = TypeVar("B", bound=Strict)


class ReleaseOrder(Strict):
    """What to let go: a hold, one call, or with neither all holds."""

    hold: int | None = None
    call: int | None = None


class WeightsOrder(Strict):
    """Other weights from the next token on."""

    version: Annotated[str, Field(min_length=1, max_length=MAX_VERSION_LENGTH)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class WaitOrder(Strict):
    """What to wait for; everything given must hold at once."""

    total: int = 0
    """Calls that arrived, at least."""
    held: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    ended: int = 0
    """Finished, aborted or failed, at least."""
    live_at_most: int | None = None
    """Running or held."""
    call: int | None = None
    generated: int = 0
    """Tokens that this call has generated, at least."""
    timeout_s: Annotated[float, Field(gt=0, le=MAX_WAIT_S)] = 30.0

    def met(self, counts: dict[str, int], generated: int) -> bool:
        """Whether it is so."""
        live = counts["running"] + counts["held"]
        return (
            all(counts[name] >= getattr(self, name) for name in ("total", "held", "finished", "aborted", "failed"))
            and counts["total"] - live >= self.ended
            and (self.live_at_most is None or live <= self.live_at_most)
            and generated >= self.generated
        )


class ControlRoutes:
    """The routes over one backend."""

    def __init__(self, backend: "Backend") -> None:
        self._backend = backend
        self._calls, self._board = backend.calls, backend.board

    async def hold(self, order: HoldOrder) -> Response:
        """POST /control/holds."""
        return JSONResponse({"hold": self._board.hold(order)})

    async def release(self, order: ReleaseOrder) -> Response:
        """POST /control/release."""
        if order.call is not None:
            return JSONResponse({"released": self._board.release_call(order.call)})
        try:
            return JSONResponse({"released": self._board.release(order.hold)})
        except KeyError:
            return JSONResponse({"error": f"hold {order.hold} does not stand"}, 404)

    async def fail(self, order: FailOrder) -> Response:
        """POST /control/failures."""
        self._board.fail(order)
        return JSONResponse({})

    async def pace(self, pace: Pace) -> Response:
        """POST /control/pace: fields that are left out stay."""
        self._board.set_pace(self._board.pace.model_copy(update=pace.model_dump(exclude_unset=True)))
        return JSONResponse(self._board.pace.model_dump())

    async def weights(self, order: WeightsOrder) -> Response:
        """POST /control/weights: answers when the next token will be made with them."""
        await self._backend.engine.reweigh(order.version, order.seed)
        return JSONResponse({"version": self._backend.engine.weights})

    async def wait(self, order: WaitOrder) -> Response:
        """POST /control/wait: answers when it is so, or 408."""
        with anyio.move_on_after(order.timeout_s):
            await self._calls.wait(lambda: order.met(self._calls.counts(), self._generated(order.call)))
            return JSONResponse(self._calls.counts())
        return JSONResponse(self._calls.counts(), 408)

    def _generated(self, number: int | None) -> int:
        record = None if number is None else next(self._calls.since(number - 1), None)
        return record.generated if record else 0

    async def reset(self, _order: Strict) -> Response:
        """POST /control/reset: aborts what is in progress, ends every order, forgets every call."""
        self._board.reset()
        with anyio.fail_after(RESET_TIMEOUT_S):
            await self._calls.wait(lambda: not self._board.live)
        self._calls.clear()
        return JSONResponse({})

    async def records(self, request: Request) -> Response:
        """GET /control/calls?since=n."""
        try:
            since = max(int(request.query_params.get("since", "0")), 0)
        except ValueError:
            return JSONResponse({"error": "since is not a number"}, 400)
        found = [record.document() for record in self._calls.since(since)]
        return JSONResponse({"calls": found, "next": since + len(found)})

    async def counts(self, _request: Request) -> Response:
        """GET /control/counts."""
        return JSONResponse(self._calls.counts())


def control_routes(backend: "Backend") -> list[Route]:
    """All of them."""
    routes = ControlRoutes(backend)
    return [
        Route("/control/calls", routes.records),
        Route("/control/counts", routes.counts),
        _post("holds", HoldOrder, routes.hold),
        _post("release", ReleaseOrder, routes.release),
        _post("failures", FailOrder, routes.fail),
        _post("pace", Pace, routes.pace),
        _post("weights", WeightsOrder, routes.weights),
        _post("wait", WaitOrder, routes.wait),
        _post("reset", Strict, routes.reset),
    ]


def _post(name: str, kind: type[B], handler: Callable[[B], Awaitable[Response]]) -> Route:
    async def endpoint(request: Request) -> Response:
        try:
            order = kind.model_validate_json(await request.body() or b"{}")
        except ValidationError as error:
            return JSONResponse({"error": str(error)}, 400)
        return await handler(order)

    return Route(f"/control/{name}", endpoint, methods=["POST"])
