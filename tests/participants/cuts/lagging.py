"""A backend that streams as vLLM does: one token a chunk, its text behind its ids, and the reason with the last token.

What it generates is a fixed list of pieces of bytes; the id of a piece is 1000 and its number. Text is held back while
it may be the beginning of a stop string or is no whole character; the end has an id and no text; a continuation sees
neither the stop strings nor the half characters that began in its prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from participants.backends import Capabilities, Feature
from participants.cuts import Anew, Joined, Prefix, Reading, finished, is_inside_character, joined, plan, read, watch

from .uncut import CHAT, COMPLETIONS

PROMPT = (11, 12, 13)
FIRST, END = 1000, 2
CAPABILITIES = Capabilities(
    kind="vllm",
    routes=frozenset({CHAT, COMPLETIONS}),
    token_ids_out=True,
    ids_routes=frozenset({CHAT, COMPLETIONS}),
    token_ids_in=True,
    logprobs=True,
    tokenize=True,
    detokenize=True,
    tool_calls=True,
    tool_format="hermes",
    declared=frozenset({Feature.GREEDY, Feature.SAMPLED, Feature.STOP, Feature.LOGPROBS, Feature.TOOLS}),
)


@dataclass(frozen=True, slots=True)
class Lagging:
    """One model that always says the same."""

    pieces: Sequence[bytes]
    version: str = "1"

    def text_of(self, ids: Sequence[int]) -> str:
        """As `/detokenize`."""
        parts = (b"<eos>" if token == END else self.pieces[token - FIRST] for token in ids)
        return b"".join(parts).decode("utf-8", "replace")

    def stream(self, route: str, body: Mapping[str, Any]) -> list[bytes]:
        """The events of a reply, one a chunk."""
        before = [token for token in body.get("prompt", ()) if token >= FIRST] if route == COMPLETIONS else []
        most = body.get("max_tokens")
        stops = [body["stop"]] if isinstance(body.get("stop"), str) else list(body.get("stop") or ())
        events, ids, sent = [], list[int](), 0
        finish, why = None, None
        while finish is None:
            number = len(before) + len(ids)
            token = FIRST + number if number < len(self.pieces) else END
            ids.append(token)
            text = self._shown(before, [each for each in ids if each != END])
            stop = min((stop for stop in stops if stop in text), key=text.find, default=None)
            if stop is not None:
                finish, why, text = "stop", stop, text[: text.find(stop)]
            elif token == END:
                finish = "stop"
            elif most is not None and len(ids) >= most:
                finish = "length"
            held = 0 if finish else max(max(map(len, stops), default=1) - 1, 0)
            until = max(len(text) - held, sent)
            first = len(ids) == 1
            events.append(self._event(route, token, text[sent:until], finish, why, body, first=first))
            sent = until
        return [*events, b"data: [DONE]\n\n"]

    def _shown(self, before: list[int], ids: list[int]) -> str:
        """Text of the ids after the prompt; what is no whole character is not shown yet, or never."""
        known = b"".join(self.pieces[token - FIRST] for token in before[-5:])
        grown = known + b"".join(self.pieces[token - FIRST] for token in ids)
        whole = grown.decode("utf-8", "replace")
        return whole[len(known.decode("utf-8", "replace")) :].rstrip("\ufffd")

    def _event(
        self,
        route: str,
        token: int,
        text: str,
        finish: str | None,
        why: str | None,
        body: Mapping[str, Any],
        *,
        first: bool,
    ) -> bytes:
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "stop_reason": why, "token_ids": [token]}
        chat = route == CHAT
        choice |= {"delta": {"content": text}} if chat else {"text": text}
        if body.get("logprobs"):
            choice["logprobs"] = self._scores(token, chat=chat)
        chunk: dict[str, Any] = {"id": "c-1", "created": 1, "model": "m", "choices": [choice]}
        chunk["weight_version"] = self.version
        if first:
            (chunk if chat else choice)["prompt_token_ids"] = list(PROMPT)
        return b"data: " + orjson.dumps(chunk) + b"\n\n"

    def _scores(self, token: int, *, chat: bool) -> dict[str, Any]:
        text, score = self.text_of([token]), -token / 1000
        at = sum(
            len(self.text_of([each])) for each in range(FIRST, token if token != END else FIRST + len(self.pieces))
        )
        if not chat:
            return {"tokens": [text], "token_logprobs": [score], "top_logprobs": [{text: score}], "text_offset": [at]}
        known = list(self.pieces[token - FIRST]) if token != END else list(b"<eos>")
        return {"content": [{"token": text, "logprob": score, "bytes": known, "top_logprobs": []}]}

    def rest(self, route: str, body: Mapping[str, Any], prefix: Prefix, most: int | None = None) -> Reading | Anew:
        """The rest after a prefix; of its events at most so many."""
        planned = plan(route, body, prefix, CAPABILITIES)
        if isinstance(planned, Anew):
            return planned
        watching = watch(body, prefix, route=route, raw_text=self.text_of(planned.raw_ids), tool_format="hermes")
        if planned.body is None or watching.stop is not None:
            return finished(planned.finish or "stop")
        taken: list[bytes] = []
        for chunk in self.stream(planned.route, watching.asked(planned.body))[:most]:
            taken.append(chunk)
            if watching.feed(chunk):
                break
        return read(planned.route, taken)

    def continued(
        self, route: str, body: Mapping[str, Any], prefix: Prefix, after: "Lagging | None" = None
    ) -> Joined | Anew:
        """Continued at `after`, which has other weights, or at this one."""
        rest = (after or self).rest(route, body, prefix)
        if isinstance(rest, Anew):
            return rest
        ids = prefix.ids or ()
        raw = self.text_of(ids)
        whole = self.text_of((*ids, *(rest.prefix.ids or ()))) if is_inside_character(raw) else None
        return joined(route, body, prefix, rest, raw_text=raw, whole_text=whole, tool_format="hermes")
