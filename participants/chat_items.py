"""Between the items of the Responses API and the messages of the Chat Completions API: pure, both ways."""

from collections.abc import Mapping
from typing import Any

from .errors import Code, ParticipantError
from .generations import CHAT, check_generation

_RENAMED = {"max_output_tokens": "max_tokens"}
_DROPPED = frozenset(
    {"input", "instructions", "tools", "metadata", "tool_choice", "text", "reasoning", "include", "store", "truncation",
     "previous_response_id", "max_tool_calls", "prompt"}
)  # fmt: skip
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """A Chat Completions request from a Responses request. Raises `invalid_request` for what Chat has no form of."""
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for item in body.get("input", []):
        _append_item(messages, item)
    chat = {_RENAMED.get(key, key): value for key, value in body.items() if key not in _DROPPED and value is not None}
    chat["messages"] = messages
    if body.get("tools"):
        chat["tools"] = [_tool_to_chat(tool) for tool in body["tools"]]
    if (choice := body.get("tool_choice")) is not None:
        named = isinstance(choice, dict) and "name" in choice
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}} if named else choice
    if effort := (body.get("reasoning") or {}).get("effort"):
        chat["reasoning_effort"] = effort
    if (form := (body.get("text") or {}).get("format")) and form.get("type") != "text":
        chat["response_format"] = _form_to_chat(form)
    return chat


def _append_item(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    match item.get("type", "message"):
        case "function_call":
            call = {
                "id": item.get("call_id"),
                "type": "function",
                "function": {"name": item.get("name"), "arguments": item.get("arguments")},
            }
            last = messages[-1] if messages else {}
            if last.get("role") == "assistant":
                last.setdefault("tool_calls", []).append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        case "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        case "message":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
        case "reasoning":
            pass  # Chat templates leave earlier reasoning out.
        case other:
            raise ParticipantError(Code.INVALID_REQUEST, f"an input item of type {other!r:.80} has no form in Chat")


def _content(content: Any) -> Any:
    """Content parts as one string, or as parts where there is more than text."""
    if not isinstance(content, list):
        return content
    parts = [part for part in content if isinstance(part, dict)]
    if any(part.get("type") == "input_image" for part in parts):
        return [_part_to_chat(part) for part in parts]
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)


def _part_to_chat(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    return {"type": "text", "text": part.get("text") or ""}


def _tool_to_chat(tool: Mapping[str, Any]) -> dict[str, Any]:
    if "function" in tool:
        return dict(tool)
    if tool.get("type", "function") != "function":
        raise ParticipantError(Code.INVALID_REQUEST, f"a tool of type {tool.get('type')!r:.80} has no form in Chat")
    function = {key: value for key, value in tool.items() if key != "type" and value is not None}
    return {"type": "function", "function": function}


def _form_to_chat(form: Mapping[str, Any]) -> dict[str, Any]:
    if form.get("type") != "json_schema":
        return dict(form)
    return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}


def from_chat(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A Responses reply from a Chat Completions reply; `name` makes the ids of its items. Raises `model_failed`."""
    check_generation(CHAT, body)
    choice = body["choices"][0]
    message = choice["message"]
    output: list[dict[str, Any]] = []
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        content = [{"type": "reasoning_text", "text": reasoning}]
        output.append({"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": content})
    if message.get("content") or message.get("refusal"):
        said = {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed"}
        output.append({**said, "content": [_part(message)]})
    for number, call in enumerate(message.get("tool_calls") or []):
        output.append(_call(call, f"fc_{name}_{number}"))
    reason = _INCOMPLETE.get(str(choice.get("finish_reason")))
    return {
        "created_at": body.get("created"),
        "model": body.get("model"),
        "output": output,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "usage": _usage(body.get("usage") or {}),
    }


def _call(call: Mapping[str, Any], item_id: str) -> dict[str, Any]:
    function = call.get("function") or {}
    return {
        "type": "function_call",
        "id": item_id,
        "call_id": call.get("id"),
        "name": function.get("name"),
        "arguments": function.get("arguments"),
        "status": "completed",
    }


def _part(message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("refusal"):
        return {"type": "refusal", "refusal": message["refusal"]}
    return {"type": "output_text", "text": message["content"], "annotations": []}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return {
        "input_tokens": usage.get("prompt_tokens", 0),
        "output_tokens": usage.get("completion_tokens", 0),
        "total_tokens": usage.get("total_tokens", 0),
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens_details": {"reasoning_tokens": reasoning},
    }
