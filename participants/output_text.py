"""What a model has said, taken out of a Responses object that may be malformed."""

from collections.abc import Iterator, Mapping
from typing import Any


def output_text(response: Mapping[str, Any]) -> str:
    """All output text, in order."""
    return "".join(text for message in _messages(response) for text in _texts(message))


def last_output_text(response: Mapping[str, Any]) -> str:
    """The text of the last message alone; empty where there is none."""
    messages = list(_messages(response))
    return "".join(_texts(messages[-1])) if messages else ""


def function_calls(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The items that call a tool, in order."""
    return [item for item in _items(response) if item.get("type") == "function_call"]


def _items(response: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    output = response.get("output")
    return (item for item in (output if isinstance(output, list) else ()) if isinstance(item, Mapping))


def _messages(response: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (item for item in _items(response) if item.get("type") == "message")


def _texts(message: Mapping[str, Any]) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
        return
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and part.get("type") == "output_text" and isinstance(part.get("text"), str):
            yield part["text"]
