"""A joined generation as `/v1/responses` has it: items, their ids and the usage."""

from collections.abc import Callable
from typing import Any

from .prefix import Prefix
from .scores import covering
from .toolformats import Parsed, Said

Item = dict[str, Any]
CallIds = Callable[[Prefix, int], str]


def response_of(whole: Prefix, said: Parsed, finish: str, call_id: CallIds, *, scored: bool) -> dict[str, Any]:
    """The fields of a response that depend on what was generated. `scored`: with log probabilities."""
    status = "completed" if finish in ("stop", "tool_calls") else "incomplete"
    reason = "max_output_tokens" if finish == "length" else finish
    output = _Items(whole, call_id, scored=scored).of(said)
    for item in output:
        item["status"] = "completed" if item is not output[-1] else status
    return {
        "object": "response",
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        "output": output,
        "usage": _usage(len(whole.prompt or ()), len(whole.ids or ())),
    }


def _usage(prompt: int, generated: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + generated,
    }


class _Items:
    """Makes the items of one response."""

    def __init__(self, whole: Prefix, call_id: CallIds, *, scored: bool) -> None:
        self._whole, self._call_id, self._scored = whole, call_id, scored
        self._number = str(whole.head.get("id", "")).removeprefix("resp_")
        self._seen = list(whole.head.get("items") or ())
        self._items: list[Item] = []
        self._calls = 0

    def of(self, said: Parsed) -> list[Item]:
        """An item for each call, and one for what stands between them."""
        for part in said.parts:
            if part.kind == "call":
                self._call(part)
            else:
                self._add(part)
        return self._items

    def _call(self, part: Said) -> None:
        made = f"fc_{self._number}_{self._calls}"
        self._items.append(
            {
                "type": "function_call",
                "id": self._id("function_call", made),
                "call_id": self._call_id(self._whole, self._calls),
                "name": part.text,
                "arguments": part.arguments,
            }
        )
        self._calls += 1

    def _add(self, part: Said) -> None:
        if not self._items or self._items[-1]["type"] != "message":
            made = f"msg_{self._number}_{len(self._items)}"
            message = {"type": "message", "id": self._id("message", made), "role": "assistant", "content": []}
            self._items.append(message)
        content = self._items[-1]["content"]
        if part.kind == "refusal":
            content.append({"type": "refusal", "refusal": part.text})
            return
        scores = covering(self._whole.logprobs, part.text) if self._scored else []
        content.append({"type": "output_text", "text": part.text, "annotations": [], "logprobs": scores})

    def _id(self, kind: str, made: str) -> str:
        """What the stream named before the cut, else a made one."""
        at = len(self._items)
        if at < len(self._seen) and self._seen[at]["type"] == kind and self._seen[at].get("id"):
            return str(self._seen[at]["id"])
        return made
