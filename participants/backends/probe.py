"""Sees what a backend does, with nine small calls of 37 tokens at most, in a bounded time.

Rules. Nothing raises: what is not answered is not seen, with a note. What a strict server refuses is asked again
without the fields that it may not know, at most twice a route. Behaviour counts, names do not: the kind alone comes
from `owned_by`, and only says what is declared. Features of requests, tool calls and the end of a generation by
disconnecting are declared and not probed. Calls are not tried again, and the deadline ends the probe with what it has
seen so far.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from ..data import Reply
from ..errors import ParticipantError
from . import questions as ask
from .capabilities import NOTHING, Capabilities
from .findings import Findings, conclude, is_continued, is_same_rest, took_ids
from .kinds import CHAT, COMPLETIONS, RESPONSES, declared, kind_of
from .observing import Generated, card_of, context_of, generated, ids_of, text_of

DEADLINE_S = 60.0
MISSING = frozenset({404, 405, 501})
"""Statuses of a route that is not there."""
_REFUSED = range(400, 500)


class Asks(Protocol):
    """Who makes the calls, each once: `participants.upstream.OpenAIEndpoint`."""

    async def get(self, path: str) -> Reply:
        """Raises `model_failed` where nobody answers."""

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """A body that is no JSON, such as a stream of events, is text. Raises `model_failed` as `get` does."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe has found."""

    capabilities: Capabilities
    notes: tuple[str, ...] = ()
    """What is declared and was not seen, what was seen and is not declared, and what went wrong."""
    reached: bool = False
    """Whether anybody answered; if not, nothing is known and the probe is worth repeating."""
    model: str = ""
    """The model that was asked: the one given, or the first that is served."""
    weights: str = ""
    """The version of the weights that its replies named; empty where they name none."""


async def probe(
    endpoint: Asks, model: str = "", *, kind: str = "", tool_format: str = "", deadline_s: float = DEADLINE_S
) -> Probed:
    """See what a backend can do. Never raises; ends by `deadline_s`.

    `kind` names the declaration to start from (else `/v1/models` decides); `tool_format` as in `kinds.declared`.
    """
    run = _Probe(endpoint, model)
    with anyio.move_on_after(deadline_s) as limit:
        await run.everything(kind)
    if limit.cancelled_caught:
        run.seen.notes.append(f"not seen to the end: the probe took over {deadline_s:g} s")
    if not run.reached:
        return Probed(NOTHING, tuple(run.seen.notes), model=run.model)
    found, notes = conclude(declared(kind or run.kind, tool_format=tool_format), run.seen)
    return Probed(found, notes, reached=True, model=run.model, weights=run.seen.weights)


class _Probe:
    """One probe: keeps what later questions need."""

    def __init__(self, endpoint: Asks, model: str) -> None:
        self._endpoint = endpoint
        self.model = model
        self.kind = "openai"
        self.seen = Findings()
        self.reached = False
        self._uncut = Generated()
        self._turn = Generated()
        self._prompt: tuple[int, ...] = ()

    async def everything(self, kind: str) -> None:
        await self._models(kind)
        if not self.reached:
            return
        async with anyio.create_task_group() as group:  # At once: whoever waits for it waits for three calls in a row.
            for questions in (self._prompted, self._chat, self._responses, self._staging):
                group.start_soon(questions)

    async def _prompted(self) -> None:
        await self._completions()
        await self._tokens()
        await self._cut()

    async def _staging(self) -> None:
        self.seen.staging = (await self._get(ask.STAGING)).ok

    async def _models(self, kind: str) -> None:
        reply = await self._get(ask.MODELS)
        card = card_of(reply, self.model)
        if card is None:
            if self.reached:
                self.seen.notes.append(f"GET {ask.MODELS} ({reply.status}) does not name the model {self.model!r}")
            return
        self.model = str(card["id"])
        self.kind = kind_of(card)
        props = (await self._get(ask.PROPS)).body if (kind or self.kind) == "llama.cpp" else None
        self.seen.context_length = context_of(card, props)

    async def _completions(self) -> None:
        found = await self._generate(COMPLETIONS, ask.uncut(self.model))
        if found is not None:
            self._uncut, self._prompt = found, found.prompt
            self.seen.logprobs = found.scores > 0

    async def _tokens(self) -> None:
        """The tokenizer's ids must be those that a prompt really gets."""
        ids = ids_of(await self._post(ask.TOKENIZE, ask.tokenize(self.model)))
        if ids:
            known = self._prompt or (len(ids) == self._uncut.prompt_tokens and ids)
            self.seen.tokenize = ids == known
            if not self.seen.tokenize:
                self.seen.notes.append(f"{ask.TOKENIZE} does not give the ids that the prompt has")
        some = self._prompt or ids
        if some:
            text = text_of(await self._post(ask.DETOKENIZE, ask.detokenize(self.model, some)))
            self.seen.detokenize = text is not None and ask.PROMPT in text
        self._prompt = self._prompt or (ids if ids and self.seen.tokenize else ())

    async def _cut(self) -> None:
        """Cut the generation and continue it from ids; without its ids, send the prompt's alone."""
        if not self._prompt:
            return
        sent = (*self._prompt, *self._uncut.ids[: ask.CUT])
        left = ask.TOKENS - len(self._uncut.ids[: ask.CUT])
        rest = await self._generate(COMPLETIONS, ask.uncut(self.model, sent, left))
        if rest is not None:
            self.seen.token_ids_in = took_ids(sent, rest)
            self.seen.bit_equal = is_same_rest(self._uncut, rest, ask.CUT) if self.seen.token_ids_in else None

    async def _chat(self) -> None:
        turn = await self._generate(CHAT, ask.chat(self.model))
        if turn is None:
            return
        body = ask.continued_chat(self.model, ids=CHAT in self.seen.ids_routes)
        continued = generated(await self._post(CHAT, body))
        if continued is not None:
            self.seen.continue_final_message = is_continued(turn, continued)
            self.seen.weights = continued.weights or self.seen.weights

    async def _responses(self) -> None:
        await self._generate(RESPONSES, ask.response(self.model))

    async def _generate(self, route: str, body: dict[str, Any]) -> Generated | None:
        """A generation that shows what it can; asked more plainly where it was refused."""
        reply = await self._post(route, body)
        for plainer in ask.plainer(body):
            if reply.status not in _REFUSED or reply.status in MISSING:
                break
            reply = await self._post(route, plainer)
        found = generated(reply)
        if found is not None:
            self.seen.take(route, found)
        elif reply.status not in MISSING and reply.status:
            self.seen.notes.append(f"POST {route}: status {reply.status} and no generation: {reply.body!r:.200}")
        return found

    async def _get(self, path: str) -> Reply:
        try:
            reply = await self._endpoint.get(path)
        except ParticipantError as error:
            return self._silent(f"GET {path}", error)
        self.reached = True
        return reply

    async def _post(self, path: str, body: Mapping[str, Any]) -> Reply:
        try:
            return await self._endpoint.post(path, body)
        except ParticipantError as error:
            return self._silent(f"POST {path}", error)

    def _silent(self, what: str, error: ParticipantError) -> Reply:
        """No answer: a reply with status 0."""
        self.seen.notes.append(f"{what}: {error.message}")
        return Reply(0, None)
