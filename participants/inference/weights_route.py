"""The route by which a trainer gives the worker other weights, named and shaped as SGLang has it.

    POST /update_weights_from_disk   {"model_path": folder, "weight_version": name}

It answers when the next token will be made with them. It is open only where the worker was started with a folder that
weights may come from, and takes none from elsewhere: the path is what a caller can choose.
"""

from pathlib import Path
from typing import Annotated

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .engines import Engine
from .jobs import validate
from .refusals import RequestRefused

ROUTE = "/update_weights_from_disk"
MAX_VERSION_LENGTH = 200


class WeightsUpdate(BaseModel):
    """The body; unknown fields are refused, for none of them would be followed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_path: Annotated[str, Field(min_length=1)]
    """A folder with config.json and model.safetensors; a relative one lies below the root."""
    weight_version: Annotated[str, Field(min_length=1, max_length=MAX_VERSION_LENGTH)]
    """What replies and ledger rows call them."""


def weights_route(engine: Engine, root: Path) -> Route:
    """The route over one engine, for folders below `root`."""

    async def update(request: Request) -> Response:
        try:
            asked = validate(WeightsUpdate, await request.body())
            folder = await anyio.to_thread.run_sync(_below, root, asked.model_path)
            await engine.reload(asked.weight_version, folder)
        except RequestRefused as refused:
            return JSONResponse(refused.body(), refused.status)
        return JSONResponse({"success": True, "message": "", "weight_version": asked.weight_version})

    return Route(ROUTE, update, methods=["POST"])


def _below(root: Path, path: str) -> Path:
    """The folder that is meant. RequestRefused where it lies elsewhere, also by a link."""
    try:
        base = root.resolve()
        folder = (base / path).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise RequestRefused(f"model_path cannot be followed: {error}", param="model_path") from error
    if not folder.is_relative_to(base):
        raise RequestRefused(f"model_path is not below {root}, where weights may come from", param="model_path")
    return folder
