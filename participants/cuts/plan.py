"""How the rest of a cut generation is asked for, or why it is generated anew.

Decided here, carried out by the caller: a `Continue` with a body is sent as it is; one with a `check` first asks
`/tokenize`, and goes on only if exactly the expected ids come back (else anew, `Reason.RETOKENISED`); one without a
body needs no generation, for the prefix was the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from ..backends.capabilities import Capabilities, Feature
from ..generations import CHAT, RESPONSES
from .features import features_of, may_call, ranks_of, stops_of
from .policy import Policy, Verdict, always_continue
from .prefix import Prefix
from .reading import COMPLETIONS, SHAPES
from .toolformats import FORMATS, ToolFormat

OURS = "midflight"
"""Backends that are told which ids of the prompt are output already (`participants.inference`)."""
DEFAULT_COMPLETION_TOKENS = 16
"""What `/v1/completions` generates at most where nothing else is said."""
RESAMPLABLE = frozenset({Feature.GREEDY, Feature.SAMPLED, Feature.SEED, Feature.PENALTIES})
"""Where the backend does not declare one, a caller may accept another rest than the uncut one. The others decide what
the reply looks like, and nothing makes up for them."""

_LOST_AT_THE_END = frozenset({Feature.OTHER, Feature.REASONING, Feature.LOGPROBS})
"""What a prefix may lack of a generation that has ended. The others decide what comes next, and nothing does."""


class Reason(StrEnum):
    """Why a generation is made anew. Stable."""

    NOTHING_GENERATED = "nothing_generated"
    """There is no prefix to lose."""
    NO_TOKEN_IDS = "no_token_ids"
    """The backend does not name its ids, so the prefix is not exact."""
    STAGED_LOST = "staged_lost"
    """The worker does not give the ids that it has staged. Found when it is asked for them."""
    NO_TOKENS_IN = "no_tokens_in"
    """It takes neither ids nor a text that can be checked."""
    UNDECLARED_FEATURE = "undeclared_feature"
    """The request uses what the backend does not declare to survive a cut."""
    NO_TEXT = "no_text"
    """Nobody can say the text of its ids (`/detokenize`), and a stream's own text may lag behind its ids."""
    TOOL_FORMAT = "tool_format"
    """Tools may be called, and nobody knows how calls stand in the backend's text."""
    REASONING = "reasoning"
    """It has reasoning beside the content."""
    POLICY = "policy"
    """The run's policy says so, as for weights that are too old."""
    RETOKENISED = "retokenised"
    """As text the prefix has other ids. Found when it is checked."""
    MARKS = "marks"
    """The name of a mark stands in it as plain text and as a mark, and nobody can tell which is which. Found when it is
    joined."""
    REFUSED = "refused"
    """The backend refused the continuation. Found when it is asked."""


@dataclass(frozen=True, slots=True)
class Anew:
    """The generation is made anew."""

    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A question to `/tokenize` that must be answered with exactly these ids."""

    body: Mapping[str, Any]
    expected: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """The rest is asked for."""

    route: str = COMPLETIONS
    body: Mapping[str, Any] | None = None
    """A streamed request. None: there is nothing left to generate, `finish` says why.

    Where the backend had said its end, and no text is asked for, that of the prefix is whole.
    """
    as_: Literal["tokens", "text"] = "tokens"
    finish: str | None = None
    resampled: bool = False
    """The rest may differ from the uncut one; the caller accepted that."""
    masked: bool = False
    """The prefix is not to be trained on."""
    check: Check | None = None
    needs_raw_text: bool = False
    """Ask `/detokenize` for the text of `raw_ids`, and give it to the join (and to a StopWatch, if there are stops)."""
    raw_ids: tuple[int, ...] = ()
    stops: tuple[str, ...] = ()
    """Not empty: one may begin in the prefix, so the rest is read with a StopWatch."""


def plan(
    route: str,
    body: Mapping[str, Any],
    prefix: Prefix,
    capabilities: Capabilities,
    *,
    resampled: bool = False,
    policy: Policy = always_continue,
    weights_now: str = "",
) -> Continue | Anew:
    """What to do with a prefix. `resampled`: the caller accepts a rest that is not the uncut one."""
    if prefix.ids is None and prefix.staged is not None:
        return Anew(Reason.STAGED_LOST)
    if not prefix.ids:
        generated = prefix.text or prefix.calls or prefix.reasoning
        return Anew(Reason.NO_TOKEN_IDS if generated and prefix.ids is None else Reason.NOTHING_GENERATED)
    if prefix.prompt is None:
        return Anew(Reason.NO_TOKEN_IDS, "those of the prompt")
    if prefix.reasoning:
        return Anew(Reason.REASONING)
    verdict = policy(prefix, weights_now)
    if verdict is Verdict.ANEW:
        return Anew(Reason.POLICY, f"weights {', '.join(each.weights or '?' for each in prefix.segments)}")
    missing = features_of(route, body) - capabilities.declared
    if prefix.finish:
        missing &= _LOST_AT_THE_END
    if breaking := missing - (RESAMPLABLE if resampled else frozenset()):
        return Anew(Reason.UNDECLARED_FEATURE, ", ".join(sorted(breaking)))
    reads = reader_of(route, body, capabilities.tool_format)
    ended = bool(prefix.finish) and not prefix.calls
    if may_call(body) and route != COMPLETIONS and reads is None and not ended:
        return Anew(Reason.TOOL_FORMAT, capabilities.tool_format or "unknown")
    if prefix.beside and not (reads is not None and reads.always):
        return Anew(Reason.UNDECLARED_FEATURE, "something beside the content")
    asked = _Asked(route, body, prefix, capabilities, reads)
    try:
        return asked.rest(resampled=bool(missing), masked=verdict is Verdict.MASK)
    except SHAPES as error:  # No backend would have taken it.
        return Anew(Reason.UNDECLARED_FEATURE, f"a request of another shape ({error!r})")


def reader_of(route: str, body: Mapping[str, Any], tool_format: str) -> ToolFormat | None:
    """How calls are found in the text of a reply to this request; None where nobody looks for any."""
    found = FORMATS.get(tool_format)
    if route == COMPLETIONS or found is None or not (found.always or may_call(body)):
        return None
    return found


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request and what there is of its answer."""

    route: str
    body: Mapping[str, Any]
    prefix: Prefix
    capabilities: Capabilities
    reads: ToolFormat | None

    def rest(self, *, resampled: bool, masked: bool) -> Continue | Anew:
        """The question for the rest, as token ids or as text."""
        ids = self.prefix.ids or ()
        if self.prefix.finish and not (self.prefix.gaps or self.prefix.calls or self.prefix.beside):
            return Continue(finish=self.prefix.finish, resampled=resampled, masked=masked)
        stops = stops_of(self.body)
        raw_ids = ids[:-1] if self._ends_by_itself() else ids
        common: Any = {"resampled": resampled, "masked": masked, "stops": stops, "raw_ids": raw_ids}
        detokenizes = self.capabilities.detokenize
        # Without the ids of the rest the whole would not be exact.
        completes = COMPLETIONS in self.capabilities.routes & self.capabilities.ids_routes
        if detokenizes and (finish := self._finish()):
            return Continue(finish=finish, needs_raw_text=True, **common)
        if detokenizes and completes and self.capabilities.token_ids_in:
            whole = [*(self.prefix.prompt or ()), *ids]
            return Continue(body=self._completion(whole), needs_raw_text=True, **common)
        if self.reads is not None:
            return Anew(Reason.NO_TEXT if not detokenizes else Reason.NO_TOKENS_IN)
        if not self.capabilities.tokenize or self._finish():
            return Anew(Reason.NO_TEXT if self.capabilities.token_ids_in else Reason.NO_TOKENS_IN)
        return self._as_text(common, completes=completes)

    def _as_text(self, common: Mapping[str, Any], *, completes: bool) -> Continue | Anew:
        """The text of prefix and prompt, if the backend takes it; it has to be checked."""
        prompt = self.body.get("prompt")
        if self.route == COMPLETIONS and completes and isinstance(prompt, str):
            text = prompt + self.prefix.text
            question = {"prompt": text} | self._kept("model", "add_special_tokens")
            asked = self._completion(text) | self._kept("add_special_tokens")
            return Continue(body=asked, as_="text", check=self._check(question), **common)
        if self.route == CHAT and self.capabilities.continue_final_message and CHAT in self.capabilities.ids_routes:
            opened = self._opened()
            dropped = ("max_tokens", "max_completion_tokens", "min_tokens")
            asked = {key: value for key, value in self.body.items() if key not in dropped}
            asked |= {**opened, **self._lengths(), **STREAMED}
            question = opened | self._kept("model", "chat_template", "chat_template_kwargs", "add_special_tokens")
            return Continue(route=CHAT, body=asked, as_="text", check=self._check(question), **common)
        return Anew(Reason.NO_TOKENS_IN)

    def _check(self, question: Mapping[str, Any]) -> Check:
        return Check(question, (*(self.prefix.prompt or ()), *(self.prefix.ids or ())))

    def _opened(self) -> dict[str, Any]:
        """The conversation with the prefix as a last message that is not over."""
        messages = list(self.body["messages"])
        last = {"role": "assistant", "content": ""}
        if self.body.get("continue_final_message"):
            last = messages.pop()
        messages.append({**last, "content": str(last.get("content") or "") + self.prefix.text})
        return {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}

    def _kept(self, *names: str) -> dict[str, Any]:
        return {name: self.body[name] for name in names if name in self.body}

    def _completion(self, prompt: Any) -> dict[str, Any]:
        """The request to `/v1/completions`: sampling parameters stay, whatever their names are."""
        asked = {key: value for key, value in self.body.items() if key not in _NOT_COMPLETIONS}
        asked |= {"prompt": prompt, **self._lengths(), **STREAMED}
        if self.capabilities.kind == OURS:
            asked["continued_tokens"] = len(self.prefix.ids or ())
        ranks = ranks_of(self.route, self.body)
        if ranks is not None:
            asked["logprobs"] = ranks if self.route == COMPLETIONS else max(ranks, 1)
        if self.reads is not None:
            asked["skip_special_tokens"] = False
        return asked

    def _lengths(self) -> dict[str, Any]:
        """What is left of the limits. Without any the backend's own for the context holds."""
        body = self.body
        there = len(self.prefix.ids or ())
        lengths: dict[str, Any] = {"max_tokens": self._left()}
        if body.get("min_tokens"):
            lengths["min_tokens"] = max(body["min_tokens"] - there, 0)
        return lengths

    def _left(self) -> int | None:
        there = len(self.prefix.ids or ())
        most = limit_of(self.route, self.body)
        left = None if most is None else most - there
        if self.capabilities.context_length is not None:
            room = self.capabilities.context_length - len(self.prefix.prompt or ()) - there
            left = room if left is None else min(left, room)
        return left

    def _finish(self) -> str | None:
        """Why nothing is left to generate; None if something is."""
        if self.prefix.finish:
            return self.prefix.finish
        if self._has_ended():
            return "stop"
        left = self._left()
        return "length" if left is not None and left <= 0 else None

    def _has_ended(self) -> bool:
        """Whether the last id is one that ends a generation."""
        ids = self.prefix.ids or ()
        return self._ends_by_itself() or bool(ids and ids[-1] in (self.body.get("stop_token_ids") or ()))

    def _ends_by_itself(self) -> bool:
        """The end's own id has no text."""
        ids = self.prefix.ids or ()
        return bool(ids and ids[-1] in self.capabilities.end_ids and not self.body.get("ignore_eos"))


STREAMED: Mapping[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_token_ids": True,
}
_PROMPTING = """
messages input instructions prompt tools tool_choice parallel_tool_calls max_tool_calls add_generation_prompt
continue_final_message chat_template chat_template_kwargs documents truncate_prompt_tokens truncation
add_special_tokens mm_processor_kwargs
"""
"""They shape the prompt, which is there already."""
_REPHRASED = """
max_tokens max_completion_tokens max_output_tokens min_tokens logprobs top_logprobs include stream stream_options
return_token_ids
"""
"""Said in the way of Completions instead."""
_BESIDE_SAMPLING = """
response_format text n modalities store metadata service_tier reasoning reasoning_effort include_reasoning
separate_reasoning verbosity safety_identifier prompt_cache_key prompt_cache_retention request_id
"""
_NOT_COMPLETIONS = frozenset((_PROMPTING + _REPHRASED + _BESIDE_SAMPLING).split())


def limit_of(route: str, body: Mapping[str, Any]) -> int | None:
    """How many tokens the request lets the backend generate; None where it does not say."""
    most: int | None
    if route == RESPONSES:
        most = body.get("max_output_tokens")
    elif route == CHAT:
        most = body.get("max_completion_tokens")
        most = body.get("max_tokens") if most is None else most
    else:
        most = body.get("max_tokens", DEFAULT_COMPLETION_TOKENS)
    return most


def asked_as_stream(route: str, body: Mapping[str, Any], capabilities: Capabilities) -> dict[str, Any]:
    """A request as the backend is asked it, so that a cut finds the prefix in the stream. `body` is not changed."""
    asked = {**body, "stream": True}
    if route != RESPONSES:
        asked["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    if route in capabilities.ids_routes:
        asked["return_token_ids"] = True
    return asked
