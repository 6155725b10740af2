"""Tools of a resources server: async methods marked with `@tool`, their arguments checked by their annotations.

The name of the method is the tool's route. The JSON schema that a model is shown is derived from the same annotations
that check the arguments, so the two cannot differ. Unknown arguments are refused.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from .data import CallId, Request

RESERVED = frozenset({"seed_session", "close_session", "verify", "aggregate_metrics", "run", "mcp"})
"""Routes that no tool may take."""
_MARK = "_midflight_tool"

Method = Callable[..., Awaitable[Any]]
Marked = TypeVar("Marked", bound=Method)


class ToolError(Exception):
    """A tool says no: the model is shown the message, and the session stays as it was before the call."""

    def __init__(self, message: str, status: int = 400) -> None:
        """`status` is the reply's HTTP status, 400 to 499."""
        self.message = message
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool."""

    name: str
    description: str
    method: Method
    """Called as `method(server, session, **arguments)`."""
    arguments: type[BaseModel]
    """Fields `a0`, `a1`, ..., each under its argument's name as an alias: no name can clash with pydantic's own."""
    names: Mapping[str, str]
    """Field to argument."""

    def check(self, body: Any) -> dict[str, Any]:
        """The arguments by name. Raises ToolError, saying what is wrong, as the model is to see it."""
        try:
            parsed = self.arguments.model_validate(body)
        except ValidationError as error:
            raise ToolError(f"{self.name}: {_say(error)}", 422) from error
        return {name: getattr(parsed, field) for field, name in self.names.items()}

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as an item of `tools` in a Responses request."""
        parameters = self.arguments.model_json_schema(by_alias=True)
        parameters.pop("title", None)
        for each in parameters.get("properties", {}).values():
            each.pop("title", None)
        return {"type": "function", "name": self.name, "description": self.description, "parameters": parameters}


def tool(method: Marked) -> Marked:
    """Mark an async method `(self, session, ...)` as a tool of its server."""
    is_async = inspect.iscoroutinefunction(method)
    if not is_async:
        raise TypeError(f"the tool {method.__name__} is not an async method")
    if method.__name__ in RESERVED or method.__name__.startswith("_"):
        raise TypeError(f"a tool may not be called {method.__name__}")
    setattr(method, _MARK, True)
    return method


@lru_cache(maxsize=256)
def tools_of(owner: type) -> Mapping[str, Tool]:
    """The marked methods of a class and its bases, by name; read once, for a tool takes 0.6 ms."""
    members = ((name, getattr(owner, name)) for name in dir(owner))
    return {name: _read(name, member) for name, member in members if getattr(member, _MARK, False)}


def _read(name: str, method: Method) -> Tool:
    hints = get_type_hints(method, include_extras=True)
    _, _, *parameters = inspect.signature(method).parameters.values()
    fields: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"the tool {name} has *{parameter.name}: arguments must be named")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"a{number}"] = (hints.get(parameter.name, Any), Field(default, alias=parameter.name))
    arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    names = {f"a{number}": parameter.name for number, parameter in enumerate(parameters)}
    return Tool(name, inspect.getdoc(method) or "", method, arguments, names)


def _say(error: ValidationError) -> str:
    problems = (f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in error.errors())
    return "; ".join(problems)


class Outer:
    """A call that is being served, and so the ids of the calls that its hook makes.

    Inside a step of mode `wait` they carry it as their parent, and are admitted even while admission is closed. Inside
    a verify of mode `replay` they park like any other call, and belong to the boundary at which verify was called.
    """

    def __init__(self, request: Request, mode: str) -> None:
        """`mode` of the step that serves the request."""
        self._request = request
        self._inside_wait = mode == "wait"
        self._calls = 0

    def request(self, role: str, route: str, body: Any) -> Request:
        """The next call that `role` makes inside of it."""
        outer, call = self._request.call, None
        if outer is not None and self._inside_wait:
            call = CallId(role, 0, self._calls, str(outer))
        elif outer is not None:
            call = CallId(role, outer.boundary, self._calls)
        self._calls += 1
        return Request(route=route, body=body, life=self._request.life, call=call)
