"""A prefix and the rest that was generated after it, as the one reply that an uncut call would have had.

The text is that of the ids, where somebody could say it, since a stream's own text may lag behind. Calls are read in
the joined text, so one that was cut inside comes out whole. A call's id is one that the client may have seen already,
or a function of the prompt: it stays the same however often the generation is cut.
"""

import hashlib
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..backends.breaks import Break, failed
from ..generations import CHAT, RESPONSES
from .features import ranks_of, stops_of
from .plan import reader_of
from .prefix import Prefix, Segment
from .reading import COMPLETIONS, Reading, usage_of
from .response_joining import response_of
from .response_reading import finish_of
from .scores import REPLACEMENT, as_columns, shaped, with_bytes
from .stopping import Stop, StopWatch, find_stop, includes_stop
from .toolformats import FORMATS, MARK_IDS, Parsed, ToolFormat, named, plain, told

MAX_RANKS = 1_000
"""More alternatives than anybody asks for."""
_SPECIAL = re.compile(r"<[^<>\s]{1,64}>|\[/?[A-Z_]{2,32}\]")
"""What the names of special tokens look like."""
_END = re.compile(rf"(?:{_SPECIAL.pattern})\Z")
MAX_END = 256
"""Characters of a text's end in which it can be told whether the name of a special token is part of it."""
_OURS = frozenset({"call_ids", "items"})
"""What a prefix's head has beside the reply's own fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The whole of one generation."""

    reply: dict[str, Any]
    """The body, in the caller's dialect."""
    whole: Prefix
    """Its ids, log probabilities and segments."""
    finish: str
    """As the reply has it, in one word."""


def join(
    route: str,
    body: Mapping[str, Any],
    prefix: Prefix,
    rest: Reading,
    *,
    raw_text: str | None = None,
    whole_text: str | None = None,
    tool_format: str = "",
    kind: str = "",
) -> dict[str, Any]:
    """The body of the joined reply. Parameters as for `joined`."""
    return joined(
        route, body, prefix, rest, raw_text=raw_text, whole_text=whole_text, tool_format=tool_format, kind=kind
    ).reply


def joined(
    route: str,
    body: Mapping[str, Any],
    prefix: Prefix,
    rest: Reading,
    *,
    raw_text: str | None = None,
    whole_text: str | None = None,
    tool_format: str = "",
    kind: str = "",
) -> Joined:
    """Join what `plan` asked for.

    `raw_text` is the text of the plan's `raw_ids`, as `/detokenize` gives it. `whole_text`, that of `raw_ids` and the
    rest's ids, is needed only where `is_inside_character(raw_text)`. `kind` is that of the backend.
    Raises `model_failed` where the rest has no end, and CannotTell where marks cannot be told from their names.
    """
    parts = _Parts(route, body, prefix, raw_text, FORMATS.get(tool_format), reader_of(route, body, tool_format))
    head, rest = parts.head(), parts.told(rest)
    known = None if raw_text is None or whole_text is None else parts.shown(whole_text, rest.prefix.ids or ())
    rest, knows = (rest, False) if known is None else parts.without_echo(rest, known)
    text = head.rstrip(REPLACEMENT) + rest.prefix.text if knows else _joined_text(head, rest.prefix.text, known)
    if text == head and parts.withholds() and not parts.is_whole():
        text = head.rstrip(REPLACEMENT)
    stop = find_stop(
        text, stops_of(body), passed=parts.passed(), marks=parts.marks(), included=includes_stop(body, kind)
    )
    if stop is not None:
        begun = len(text) - len(rest.prefix.text)
        rest, text = cut_rest(rest, stop.seen - begun, stop, mended=begun > len(head)), text[: stop.at]
    elif not rest.ended:
        raise failed(Break.BROKE_OFF, "the rest of a generation has no end")
    whole = combined(prefix, _shaped(route, body, prefix, rest))
    said = plain(named(text)) if parts.reads is None or parts.is_whole() else parts.reads.parse(text)
    text = named(text)
    whole = replace(whole, logprobs=with_bytes(whole.logprobs, text))
    reply = _reply(route, body, rest, whole, said, text, rest.finish or "stop")
    return Joined(reply=reply, whole=whole, finish=finish_of(route, reply))


def watch(
    body: Mapping[str, Any], prefix: Prefix, *, route: str, raw_text: str | None, tool_format: str = ""
) -> StopWatch:
    """What reads along with the rest, where the plan names stop strings. Raises CannotTell, now or as it reads."""
    parts = _Parts(route, body, prefix, raw_text, FORMATS.get(tool_format), reader_of(route, body, tool_format))
    if parts.marks() is None:
        return StopWatch(stops_of(body), parts.head(), parts.passed())
    return StopWatch(stops_of(body), parts.head(), parts.passed(), parts.marks(), told)


def check_marks(
    body: Mapping[str, Any], prefix: Prefix, *, route: str, raw_text: str | None, tool_format: str = ""
) -> None:
    """Raises CannotTell, before anything is asked for, where the prefix could not be joined for it."""
    _Parts(route, body, prefix, raw_text, FORMATS.get(tool_format), reader_of(route, body, tool_format)).head()


def is_inside_character(raw_text: str | None) -> bool:
    """Whether the prefix may end inside a character, so that only the text of the whole shows it."""
    return raw_text is not None and raw_text.endswith(REPLACEMENT)


def combined(prefix: Prefix, rest: Reading | Prefix) -> Prefix:
    """A prefix and what came after it as one prefix: for a generation that is cut again, and for the ledger."""
    after = rest.prefix if isinstance(rest, Reading) else rest
    there = len(prefix.ids or ())
    segments = list(prefix.segments)
    for segment in after.segments:
        if segments and segments[-1].weights == segment.weights:
            segments[-1] = replace(segments[-1], count=segments[-1].count + segment.count)
        else:
            segments.append(Segment(segment.start + there, segment.count, segment.weights))
    return replace(
        prefix,
        ids=(*(prefix.ids or ()), *(after.ids or ())),
        text=prefix.text + after.text,
        logprobs=(*prefix.logprobs, *shaped(after.logprobs, prefix.logprobs, MAX_RANKS)),
        segments=tuple(segments),
        calls=prefix.calls or after.calls,
        reasoning=prefix.reasoning or after.reasoning,
        finish=after.finish or prefix.finish,
        extras=after.extras or prefix.extras,
        beside=prefix.beside or after.beside,
        gaps=prefix.gaps or after.gaps or bool(prefix.ids),
    )


def cut_rest(rest: Reading, chars: int, stop: Stop, *, mended: bool = False) -> Reading:
    """The rest up to the first token with which so many characters of it were there, ended by a stop string.

    `mended`: the first character before these is of the rest, too, but its stream did not show it.
    """
    ids = rest.prefix.ids or ()
    if chars > 0:
        count = _tokens_of(rest, chars)
    else:
        count = max((there for there, seen in rest.steps if not seen), default=0) if mended else 0
    kept = replace(
        rest.prefix,
        ids=ids[:count],
        logprobs=rest.prefix.logprobs[:count],
        segments=_first(rest.prefix.segments, count),
    )
    extras = dict(rest.extras)
    if "stop_reason" in extras:
        extras["stop_reason"] = stop.by
    return replace(rest, prefix=kept, ended=True, finish="stop", extras=extras)


def _tokens_of(rest: Reading, chars: int) -> int:
    """How many ids it took for so many characters. Of several ids in one chunk only log probabilities tell them apart;
    without these all of them count.
    """
    ids = rest.prefix.ids or ()
    before = (0, 0)
    for step in rest.steps:
        if step[1] >= chars:
            break
        before = step
    else:
        return len(ids)
    tokens = [str(entry.get("token", "")) for entry in rest.prefix.logprobs[before[0] : step[0]]]
    if len(rest.prefix.logprobs) != len(ids) or sum(map(len, tokens)) != step[1] - before[1]:
        return step[0]
    seen = before[1]
    for number, token in enumerate(tokens, before[0] + 1):
        seen += len(token)
        if seen >= chars:
            return number
    return step[0]


def _first(segments: tuple[Segment, ...], count: int) -> tuple[Segment, ...]:
    kept = (replace(each, count=min(each.count, count - each.start)) for each in segments if each.start < count)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the text of the prefix is, and how it is read."""

    route: str
    body: Mapping[str, Any]
    prefix: Prefix
    raw_text: str | None
    format: ToolFormat | None
    reads: ToolFormat | None

    def head(self) -> str:
        """The text of the prefix, in the form that the rest's text continues."""
        if self.raw_text is None:
            ids = self.prefix.ids or ()
            return self.prefix.text if self.marks() is None or self.is_whole() else told(self.prefix.text, ids)
        shown = self._without_end(self.shown(self.raw_text))
        if self.reads is not None or self.marks() is not None:
            return shown
        # A stream's text may lag behind its ids, or have gaps where it was cut before; but what it left out on purpose
        # stays out.
        text, bare = self.prefix.text, _SPECIAL.sub("", shown)
        if self.format is not None or not shown.startswith(text):
            return bare if bare.startswith(text) and not shown.startswith(text) else shown
        # It lags by what may begin a stop string, or a character. More than that are marks.
        behind, stops = shown[len(text) :], stops_of(self.body)
        held = behind.rstrip(REPLACEMENT)
        half = behind[len(held) :]
        if len(held) >= max(map(len, stops), default=1):
            held = _SPECIAL.sub("", held)
        return text + (held if stops or not held.strip(REPLACEMENT) else "") + half

    def without_echo(self, rest: Reading, whole: str) -> tuple[Reading, bool]:
        """The rest whose text begins right after the last whole character of the prefix; False where nobody can tell.

        After a prompt that ends inside a character, vLLM shows the end of the prompt once more before that character.
        `whole` is the text of all ids as it is shown.
        """
        tail, stem = rest.prefix.text, self.shown(self.raw_text or "").rstrip(REPLACEMENT)
        if tail.lstrip(REPLACEMENT) in whole:
            return rest, False
        chars = next((seen for _, seen in rest.steps if seen), 0)
        # Where marks are not shown, what came first is compared alone.
        for shown in (tail, tail[:chars]):
            echoed = next((n for n in range(len(shown)) if whole.startswith(stem + shown[n:])), None)
            if echoed is not None and shown[:echoed].strip(REPLACEMENT):
                steps = tuple((count, max(seen - echoed, 0)) for count, seen in rest.steps)
                return replace(rest, prefix=replace(rest.prefix, text=tail[echoed:]), steps=steps), True
        return rest, False

    def shown(self, raw: str, more: Sequence[int] = ()) -> str:
        """Text of the prefix's ids, and of `more`, as the rest's stream shows it."""
        if self.format is None or self.format.marks is None:
            return raw if self.format is None else self.format.shown(raw)
        ids = self.prefix.ids or ()
        # What ended it is not among the ids whose text it is.
        if ids and ids[-1] == MARK_IDS["<|end|>"] and not self.body.get("ignore_eos"):
            ids = ids[:-1]
        return self.format.shown(told(raw, (*ids, *more), all_shown=True))

    def told(self, rest: Reading) -> Reading:
        """The rest with its marks told, event by event."""
        text, ids = rest.prefix.text, rest.prefix.ids or ()
        if self.marks() is None or "<|" not in text:
            return rest
        pieces, count, seen = [], 0, 0
        for there, chars in (*rest.steps, (len(ids), len(text))):
            pieces.append(told(text[seen:chars], ids[count:there]))
            count, seen = there, chars
        return replace(rest, prefix=replace(rest.prefix, text="".join(pieces)))

    def is_whole(self) -> bool:
        """Whether the prefix is the whole, with its own text."""
        return bool(self.prefix.finish) and self.raw_text is None

    def _without_end(self, shown: str) -> str:
        """Without the name of the id that ended it, which no stream shows, where nobody has named that id."""
        text, end = self.prefix.text[-MAX_END:], _END.search(shown)
        if not self.prefix.finish or end is None or (text and shown.endswith(text)):
            return shown
        return shown[: end.start()]

    def withholds(self) -> bool:
        """Whether the backend shows no half characters, not even at the end."""
        ours = self.format is not None and self.format.always
        return not ours and not self.prefix.text.endswith(REPLACEMENT)

    def passed(self) -> int:
        """Characters in which the backend has found no stop string: it would not have shown them."""
        return len(self.prefix.text) if named(self.head()).startswith(self.prefix.text) else 0

    def marks(self) -> Any:
        """What in the text is no text."""
        return None if self.format is None else self.format.marks


def _joined_text(head: str, tail: str, whole_text: str | None) -> str:
    """One text of both. Where the prefix ends inside a character, the text of all ids says which it is."""
    stem, known = head.rstrip(REPLACEMENT), tail.lstrip(REPLACEMENT)
    if whole_text is None or stem == head or whole_text.startswith(head + tail):
        return head + tail
    end = whole_text.rfind(known) + len(known) if known else len(stem) + 1
    if not whole_text.startswith(stem) or (known and known not in whole_text):
        return head + tail
    text = whole_text[: max(end, len(stem) + 1)]
    # A character that is still not whole is shown by some backends, and then it is in the tail.
    return text if tail.endswith(REPLACEMENT) else text.rstrip(REPLACEMENT)


def _shaped(route: str, body: Mapping[str, Any], prefix: Prefix, rest: Reading) -> Prefix:
    """The rest with log probabilities as the caller asked for them."""
    ranks = ranks_of(route, body)
    scores = () if ranks is None else tuple(shaped(rest.prefix.logprobs, prefix.logprobs, ranks))
    return replace(rest.prefix, logprobs=scores)


def _reply(
    route: str, body: Mapping[str, Any], rest: Reading, whole: Prefix, said: Parsed, text: str, finish: str
) -> dict[str, Any]:
    head = {key: value for key, value in whole.head.items() if key not in _OURS}
    ids = {"token_ids": list(whole.ids or ())} if body.get("return_token_ids") else {}
    prompt = {"prompt_token_ids": list(whole.prompt or ())} if ids else {}
    if route == RESPONSES:
        wants = ranks_of(route, body) is not None
        made = response_of(whole, said, finish, call_id, scored=wants)
        return {**head, **_versioned(whole, rest), **made, **prompt, **ids}
    reply = {**head, **_versioned(whole, rest), "usage": _usage(whole, rest.usage)}
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish, **rest.extras, **ids}
    scores = list(whole.logprobs) if ranks_of(route, body) is not None else None
    if route == COMPLETIONS:
        columns = None if scores is None else as_columns(scores)
        choice |= {"text": text, "logprobs": columns, **prompt}
        return {**reply, "object": "text_completion", "choices": [choice]}
    choice |= {"message": _message(whole, said), "logprobs": None if scores is None else {"content": scores}}
    if said.calls and finish == "stop":
        choice["finish_reason"] = "tool_calls"
    return {**reply, "object": "chat.completion", "choices": [choice], **prompt}


def _message(whole: Prefix, said: Parsed) -> dict[str, Any]:
    content = said.content or (None if said.calls or said.refusal else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": said.refusal}
    if said.calls:
        message["tool_calls"] = [
            {
                "id": call_id(whole, index),
                "type": "function",
                "function": {"name": call.text, "arguments": call.arguments},
            }
            for index, call in enumerate(said.calls)
        ]
    return message


def _versioned(whole: Prefix, rest: Reading) -> dict[str, Any]:
    if rest.reply is not None:
        return {key: rest.reply[key] for key in ("weight_version",) if key in rest.reply}
    last = whole.segments[-1].weights if whole.segments else ""
    return {"weight_version": last} if last else {}


def _usage(whole: Prefix, like: Mapping[str, Any] | None) -> dict[str, Any]:
    """Counts of the whole, with what else the backend says in a usage."""
    counts = usage_of(len(whole.prompt or ()), len(whole.ids or ()))
    return {**(like or {}), **counts}


def call_id(whole: Prefix, index: int) -> str:
    """The id of a call: the one that the backend gave it before the cut, else one made of prompt and number."""
    seen = whole.head.get("call_ids") or [
        item["call_id"] for item in whole.head.get("items") or () if item["type"] == "function_call"
    ]
    if index < len(seen) and seen[index]:
        return str(seen[index])
    ids = whole.prompt or ()
    packed = array("I" if max(ids, default=0) > 0xFFFF else "H", ids).tobytes()
    digest = hashlib.blake2b(packed, digest_size=10, salt=index.to_bytes(4, "big"))
    return f"call_{digest.hexdigest()}"


def for_client(route: str, body: Mapping[str, Any], reply: Mapping[str, Any]) -> dict[str, Any]:
    """A reply without the ids that only we asked for. `reply` is not changed."""
    if body.get("return_token_ids"):
        return dict(reply)
    hidden = ("token_ids", "prompt_token_ids")
    shown = {key: value for key, value in reply.items() if key not in hidden}
    if route != RESPONSES:
        choices = reply.get("choices") or ()
        shown["choices"] = [{k: v for k, v in each.items() if k not in hidden} for each in choices]
    return shown


__all__ = ["CHAT", "Joined", "call_id", "combined", "cut_rest", "for_client", "is_inside_character", "join", "joined",
           "watch"]  # fmt: skip
