"""Writing a reply as OpenAI's Responses API has it: items, and the events that build them up."""

from typing import Any

from .assembly import Assembler, Delta, call_id
from .jobs import Meta, logprob_entries, sse, versioned
from .sampling import Piece
from .tokens import Ids, to_numbers

Item = dict[str, Any]


class ResponseEncoder:
    """Writes a response. The items are built by the same deltas with a stream and without one."""

    def __init__(self, prompt: Ids, echoed: dict[str, Any], *, stream: bool, return_ids: bool) -> None:
        self._prompt, self._echoed, self._stream, self._return_ids = prompt, echoed, stream, return_ids
        self._assembler = Assembler()
        self._meta = Meta("", "", 0)
        self._items: list[Item] = []
        self._events: list[bytes] = []
        self._sequence = 0
        self._unsent = ""
        """Ids that no event has named: those of marks and names are named by the next one."""

    def start(self, meta: Meta) -> list[bytes]:
        """The response exists and is being made."""
        self._meta = meta
        response = self._response("in_progress", None)
        if self._return_ids:
            response["prompt_token_ids"] = to_numbers(self._prompt)
        self._say("response.created", response=response)
        self._say("response.in_progress", response=response)
        return self._taken()

    def piece(self, piece: Piece) -> list[bytes]:
        """The events of each delta; the ids and log probabilities go with the last one."""
        deltas = self._assembler.feed(piece)
        self._unsent += piece.ids
        for n, delta in enumerate(deltas):
            self._apply(delta, piece if n == len(deltas) - 1 else None)
        return self._taken()

    def end(self, finish: str, generated: int) -> list[bytes]:
        """What is open is closed; then the whole response."""
        status = self._finish(finish)
        self._say(f"response.{status}", response=self._whole(status, generated))
        return self._taken()

    def body(self, finish: str, generated: int) -> dict[str, Any]:
        """The whole."""
        return self._whole(self._finish(finish), generated)

    def _finish(self, finish: str) -> str:
        for delta in self._assembler.finish():
            self._apply(delta, None)
        status = "incomplete" if finish == "length" else "completed"
        self._close(status)
        return status

    def _whole(self, status: str, generated: int) -> dict[str, Any]:
        usage = {
            "input_tokens": len(self._prompt),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": len(self._prompt) + generated,
        }
        response = self._response(status, usage)
        if self._return_ids:
            response["prompt_token_ids"] = to_numbers(self._prompt)
            response["token_ids"] = to_numbers(self._assembler.reply.ids)
        return response

    def _response(self, status: str, usage: dict[str, Any] | None) -> dict[str, Any]:
        response = {
            "id": f"resp_{self._meta.number}",
            "object": "response",
            "created_at": self._meta.created,
            "model": self._meta.model,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": list(self._items),
            "usage": usage,
            **self._echoed,
        }
        pieces = self._assembler.reply.pieces
        return versioned(response, pieces[-1].weights if pieces else self._meta.weights)

    def _apply(self, delta: Delta, piece: Piece | None) -> None:
        if delta.kind == "call":
            self._close("completed")
            self._open_call(delta.text, piece)
        elif delta.kind == "arguments":
            self._items[-1]["arguments"] += delta.text
            self._say_in("response.function_call_arguments.delta", delta=delta.text, **self._ids(piece))
        else:
            part = self._part("output_text" if delta.kind == "text" else "refusal")
            part["text" if delta.kind == "text" else "refusal"] += delta.text
            self._say_text(part, delta.text, piece)

    def _say_text(self, part: Item, text: str, piece: Piece | None) -> None:
        at = {"content_index": len(self._items[-1]["content"]) - 1, "delta": text}
        if part["type"] == "refusal":
            self._say_in("response.refusal.delta", **at, **self._ids(piece))
            return
        entries = logprob_entries(piece) if piece else []
        part["logprobs"] += entries
        self._say_in("response.output_text.delta", **at, logprobs=entries, **self._ids(piece))

    def _ids(self, piece: Piece | None) -> dict[str, Any]:
        if not piece:
            return {}
        if not self._return_ids:
            return versioned({}, piece.weights)
        ids, self._unsent = self._unsent, ""
        return versioned({"token_ids": to_numbers(ids)}, piece.weights)

    def _open_call(self, name: str, piece: Piece | None) -> None:
        index = len(self._assembler.reply.calls) - 1
        item = {
            "type": "function_call",
            "id": f"fc_{self._meta.number}_{index}",
            "call_id": call_id(self._prompt, index),
            "name": name,
            "arguments": "",
            "status": "in_progress",
        }
        self._open(item, **self._ids(piece))

    def _open(self, item: Item, **ids: Any) -> None:
        self._items.append(item)
        self._say("response.output_item.added", output_index=len(self._items) - 1, item=item, **ids)

    def _part(self, kind: str) -> Item:
        """The open part of this kind in the open message, opened if need be."""
        if not self._items or self._items[-1]["type"] != "message":
            self._open(
                {
                    "type": "message",
                    "id": self._message_id(),
                    "role": "assistant",
                    "status": "in_progress",
                    "content": [],
                }
            )
        content = self._items[-1]["content"]
        if not content or content[-1]["type"] != kind:
            self._close_part()
            empty = {"text": "", "annotations": [], "logprobs": []} if kind == "output_text" else {"refusal": ""}
            content.append({"type": kind} | empty)
            self._say_in("response.content_part.added", content_index=len(content) - 1, part=content[-1])
        part: Item = content[-1]
        return part

    def _message_id(self) -> str:
        return f"msg_{self._meta.number}_{len(self._items)}"

    def _close_part(self) -> None:
        content = self._items[-1]["content"]
        if not content:
            return
        part, at = content[-1], {"content_index": len(content) - 1}
        if part["type"] == "refusal":
            self._say_in("response.refusal.done", **at, refusal=part["refusal"])
        else:
            self._say_in("response.output_text.done", **at, text=part["text"], logprobs=part["logprobs"])
        self._say_in("response.content_part.done", **at, part=part)

    def _close(self, status: str) -> None:
        """Close the item that is open, if one is."""
        if not self._items:
            return
        item = self._items[-1]
        if item["type"] == "message":
            self._close_part()
        else:
            self._say_in("response.function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        item["status"] = status
        self._say("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _say_in(self, event: str, **fields: Any) -> None:
        """An event about the open item."""
        self._say(event, output_index=len(self._items) - 1, item_id=self._items[-1]["id"], **fields)

    def _say(self, event: str, **fields: Any) -> None:
        if self._stream:
            self._events.append(sse({"type": event, "sequence_number": self._sequence} | fields, event))
            self._sequence += 1

    def _taken(self) -> list[bytes]:
        events, self._events = self._events, []
        return events
