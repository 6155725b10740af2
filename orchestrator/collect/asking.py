"""What a rollout asks of the model: its row's request with what the configuration adds. Pure.

A request that the agent could not send is the row's fault, and is told as that before anything is begun: it would
otherwise look like a defect of the agent, after each of several starts.
"""

from collections.abc import Mapping
from typing import Any

from participants import Code, ParticipantError
from participants.chat_items import to_chat
from participants.serving import ConfigError, ModelSettings

from .config import Config

_OBJECTS = ("metadata", "reasoning", "text")


def asked_row(row: Mapping[str, Any], model: ModelSettings) -> dict[str, Any]:
    """The row with what the configuration adds to its request; in a typed one that stands in `task_input`.

    Raises `invalid_request` where it cannot be sent.
    """
    typed = row.get("task_input") if "task_id" in row else None
    if isinstance(typed, Mapping):
        return {**row, "task_input": _asking(typed, model)}
    return _asking(row, model)


def _asking(task: Mapping[str, Any], model: ModelSettings) -> dict[str, Any]:
    own = task.get("responses_create_params") or {}
    if not isinstance(own, Mapping):
        raise _unsendable("it is not an object")
    asked = {**model.parameters, **own, "model": model.model}
    check_request(asked, model.dialect)
    return {**task, "responses_create_params": asked}


def check_parameters(config: Config) -> None:
    """Refuse parameters that no row could be sent with. Raises ConfigError."""
    try:
        check_request({"input": "", **config.model.parameters}, config.model.dialect)
    except ParticipantError as error:
        raise ConfigError(f"model.parameters: {error.message.removeprefix(_WHERE)}") from error


def check_request(asked: Mapping[str, Any], dialect: str) -> None:
    """Raise `invalid_request` for what has not the shape of a request."""
    given = asked.get("input") or []
    if not isinstance(given, str) and not _are_objects(given):
        raise _unsendable("its input is neither text nor a list of items")
    _check_tools(asked.get("tools") or [])
    for name in _OBJECTS:
        if not isinstance(asked.get(name) or {}, Mapping):
            raise _unsendable(f"its {name} is not an object")
    if dialect != "chat":
        return
    try:
        to_chat({**asked, "input": [] if isinstance(given, str) else given})
    except ParticipantError as error:
        raise _unsendable(error.message) from error
    except Exception as error:  # Whatever else has not the shape that it takes.
        raise _unsendable(f"it has no form in Chat ({type(error).__name__}: {error})") from error


def _check_tools(tools: Any) -> None:
    if not _are_objects(tools):
        raise _unsendable("its tools are not a list of objects")
    for tool in tools:
        function = tool.get("function") or {}
        if not isinstance(function, Mapping):
            raise _unsendable("the function of one of its tools is not an object")
        if not isinstance(tool.get("name") or function.get("name") or "", str):
            raise _unsendable("the name of one of its tools is no text")


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


_WHERE = "responses_create_params cannot be sent: "


def _unsendable(why: str) -> ParticipantError:
    return ParticipantError(Code.INVALID_REQUEST, f"{_WHERE}{why}"[:500])
