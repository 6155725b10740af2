"""Between the items of the Responses API and the messages of the Chat Completions API: pure, both ways."""

from collections.abc import Mapping
from typing import Any

_RENAMED = {"max_output_tokens": "max_tokens"}
_DROPPED = frozenset({"input", "instructions", "tools", "metadata"})


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """A Chat Completions request from a Responses request."""
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for item in body.get("input", []):
        _append_item(messages, item)
    chat = {_RENAMED.get(key, key): value for key, value in body.items() if key not in _DROPPED}
    chat["messages"] = messages
    if body.get("tools"):
        chat["tools"] = [_tool_to_chat(tool) for tool in body["tools"]]
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
            messages.append({"role": item.get("role"), "content": _text(item.get("content"))})


def _text(content: Any) -> Any:
    """Content parts as one string."""
    if not isinstance(content, list):
        return content
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content if isinstance(part, dict))


def _tool_to_chat(tool: Mapping[str, Any]) -> dict[str, Any]:
    if "function" in tool:
        return dict(tool)
    return {
        "type": "function",
        "function": {key: value for key, value in tool.items() if key not in ("type", "strict")},
    }


def from_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """A Responses reply from a Chat Completions reply."""
    choice = (body.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    output: list[dict[str, Any]] = []
    if message.get("content") or message.get("refusal"):
        output.append({"type": "message", "role": "assistant", "content": [_part(message)]})
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        output.append(
            {
                "type": "function_call",
                "call_id": call.get("id"),
                "name": function.get("name"),
                "arguments": function.get("arguments"),
            }
        )
    cut = choice.get("finish_reason") == "length"
    return {
        "output": output,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "usage": _usage(body.get("usage") or {}),
    }


def _part(message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("refusal"):
        return {"type": "refusal", "refusal": message["refusal"]}
    return {"type": "output_text", "text": message["content"]}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": usage.get("prompt_tokens", 0),
        "output_tokens": usage.get("completion_tokens", 0),
        "total_tokens": usage.get("total_tokens", 0),
    }
