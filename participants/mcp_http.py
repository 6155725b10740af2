"""Tools of a resources server over MCP, served and fenced like every other call of them.

`POST /mcp`, or `/rollouts/<rollout_id>/<epoch>.<attempt>.<n>/mcp`, speaks Streamable HTTP, without sessions of MCP's
own. `tools/list` gives the tools as a model is shown them; `tools/call` makes the data call `POST /<tool>` under the
life and session that the HTTP request names, so that the same fences, locks, kept replies and revisions hold:

    what the tool gives              the result's text, as JSON unless it is text itself, and its structure where it is
                                     an object
    what it says no with             a result with `isError`, which a model is to see
    what midflight refuses           an error of JSON-RPC, its data with code, hint and details as over HTTP
    `_meta["midflight/call"]`        the call's id: a repeat gets the kept reply. Without one it runs each time it comes
    a closed gate                    the call waits, as every other

The package comes with the extra `mcp`; it is imported at the first request, in a worker thread.
"""

import importlib.util
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import orjson
from anyio.abc import TaskGroup
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from .data import CALL_HEADER, LIFE_HEADER, Reply, Request
from .data_http import MAX_BODY_BYTES, Served, answered, identified, passed_on
from .errors import Code, ParticipantError
from .peer import ERROR_HEADER

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult

MCP_PATH = "/mcp"
CALL_META = "midflight/call"
"""Key of `_meta` that has the id of a call."""
REFUSED = -32000
"""The code of JSON-RPC for what midflight refuses; the data say which of its own codes it is."""
Schemas = Callable[[], Sequence[Mapping[str, Any]]]


def mcp_installed() -> bool:
    """Whether the package is there; imports nothing."""
    return importlib.util.find_spec("mcp") is not None


class McpTools:
    """An ASGI app; its tasks belong to the group that it is given."""

    def __init__(self, handler: Served, schemas: Schemas, group: TaskGroup) -> None:
        """`handler` makes the calls, `schemas` are the tools as items of a Responses request."""
        self._handler = handler
        self._schemas = schemas
        self._group = group
        self._starting = anyio.Lock()
        self._manager: StreamableHTTPSessionManager | None = None

    def __repr__(self) -> str:
        return f"<McpTools of {self._handler.role}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["method"] != "POST":  # A stream of notifications, say: there are none, and it would never end.
            told = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Method Not Allowed: only POST"}}
            await JSONResponse(told, 405, {"allow": "POST"})(scope, receive, send)
            return
        try:
            manager = await self._started()
        except ParticipantError as error:
            await JSONResponse(error.to_body(), 404, {ERROR_HEADER: error.code.value})(scope, receive, send)
            return
        await manager.handle_request(scope, receive, send)

    async def _started(self) -> "StreamableHTTPSessionManager":
        async with self._starting:
            if self._manager is None:
                make = await anyio.to_thread.run_sync(_import, self._handler.role)
                self._manager = await self._group.start(_run, make(self))
            return self._manager

    async def list_tools(self) -> "ListToolsResult":
        """Every tool."""
        from mcp.types import ListToolsResult, Tool

        tools = [
            Tool(name=each["name"], description=each["description"], input_schema=dict(each["parameters"]))
            for each in self._schemas()
        ]
        return ListToolsResult(tools=tools)

    async def call_tool(
        self, context: "ServerRequestContext[Any, HttpRequest]", params: "CallToolRequestParams"
    ) -> "CallToolResult":
        """One call. Raises MCPError for what midflight refuses."""
        from mcp import MCPError

        assert context.request is not None
        serve = partial(self._call, context.request, params.name, params.arguments or {}, dict(context.meta or {}))
        reply = await self._to_its_end(f"/{params.name}", serve)
        if ERROR_HEADER in reply.headers:
            error = reply.body["error"]
            raise MCPError(REFUSED, f"{error['code']}: {error['message']}. {error['hint']}", error)
        return _result(reply)

    async def _to_its_end(self, route: str, serve: Callable[[], Awaitable[Reply]]) -> Reply:
        """Whoever gives up meanwhile, the call is carried out, as over HTTP."""
        replies: list[Reply] = []
        done = anyio.Event()

        async def work() -> None:
            try:
                replies.append(await answered(self._handler, route, serve))
            finally:
                done.set()

        self._group.start_soon(work)
        await done.wait()
        return replies[0]

    async def _call(
        self, incoming: HttpRequest, name: str, arguments: dict[str, Any], meta: Mapping[str, Any]
    ) -> Reply:
        if not any(each["name"] == name for each in self._schemas()):
            raise ParticipantError(Code.INVALID_REQUEST, f"{self._handler.role} has no tool {name!r:.100}")
        headers, call = incoming.headers, meta.get(CALL_META)
        if call is not None and not isinstance(call, str):
            raise ParticipantError(Code.INVALID_REQUEST, f"_meta[{CALL_META!r}] is no text: {call!r:.80}")
        path = incoming.scope["path"].removesuffix(MCP_PATH) + f"/{name}"
        life, route, call_id = identified(
            self._handler, path, headers.get(LIFE_HEADER), headers.get(CALL_HEADER) if call is None else call
        )
        request = Request(route=route, body=arguments, life=life, call=call_id, headers=passed_on(headers))
        return await self._handler.handle(request)


def _import(role: str) -> Callable[[McpTools], "StreamableHTTPSessionManager"]:
    if not mcp_installed():
        told = "pip install 'midflight[mcp]', or in a checkout pip install -e '.[mcp]'"
        raise ParticipantError(Code.INVALID_REQUEST, f"{role} serves no MCP: install the extra mcp with {told}")
    from mcp.server.lowlevel.server import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    def make(tools: McpTools) -> StreamableHTTPSessionManager:
        async def list_tools(_: object, __: object) -> "ListToolsResult":
            return await tools.list_tools()

        server = Server(role, on_list_tools=list_tools, on_call_tool=tools.call_tool)
        return StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=MAX_BODY_BYTES
        )

    return make


async def _run(manager: "StreamableHTTPSessionManager", *, task_status: anyio.abc.TaskStatus[Any]) -> None:
    async with manager.run():
        task_status.started(manager)
        await anyio.sleep_forever()


def _result(reply: Reply) -> "CallToolResult":
    from mcp.types import CallToolResult, TextContent

    body = reply.body
    if not reply.ok and isinstance(body, dict) and set(body) == {"error"}:
        body = body["error"]
    text = body if isinstance(body, str) else orjson.dumps(body).decode()
    structured = body if isinstance(body, dict) and reply.ok else None
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=structured, is_error=not reply.ok
    )
