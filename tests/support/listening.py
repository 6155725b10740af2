"""One control plane on a real socket in this process: what streams cannot be read without one."""

import contextlib
from collections.abc import AsyncIterator

import anyio
from starlette.applications import Starlette
from starlette.routing import Mount

from participants import CONTROL_PREFIX, ControlPlane, control_app
from participants.serving.sockets import bind, server_of, url_of


@contextlib.asynccontextmanager
async def listening(plane: ControlPlane, token: str) -> AsyncIterator[str]:
    """Serve it while the block runs; gives the URL."""
    listener = bind("127.0.0.1", 0)
    server = server_of(Starlette(routes=[Mount(CONTROL_PREFIX, control_app(plane, token))]), shutdown_s=1)
    with contextlib.closing(listener):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                yield url_of(listener)
            finally:
                server.should_exit = True
