"""Whether a generation that was cut continues exactly: any OpenAI-compatible server, alone and behind the model proxy.

    python -m bench.exactness --base-url http://127.0.0.1:8000/v1 --json

Greedy completions are cut at every token and continued from prompt ids and prefix ids, one at a time and several at
once: token ids must be those of the uncut run, log probabilities within 1e-4. Then the same through the proxy, in
this process: a call in flight is cut and exported, a fresh model server restores it, and the call that is made again
must have the reply of an uncut one, field by field but for ids and times. Ends with status 1 where a prefix was not
kept, or where a server that was seen to be bit-equal was not.
"""

import json
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import anyio

from participants.backends import Capabilities, LazyCapabilities
from participants.backends.kinds import CHAT, COMPLETIONS, RESPONSES
from participants.cuts import Prefix
from participants.servers.counter import CounterServer
from participants.tools import tools_of

from . import command_line
from .command_line import count, count_or_none
from .exact_calls import Ask, HaltingEndpoint, Proxies
from .exact_cuts import Figures, cut_everywhere, cuts_of, generated

WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "seven",
    "green",
    "boats",
    "sail",
)
TASK = "add 1 then add 2 then get the count"
"""The deterministic backend answers it with calls of the counter's tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is tried."""

    prompts: int
    calls: int
    """Prompts of each kind of call through the proxy."""
    tokens: int
    """Generated for each prompt at most."""
    cuts: int
    """Places to cut a generation at; 0: everywhere."""
    call_cuts: int
    """Places to cut a call through the proxy at."""
    at_once: int


@dataclass(slots=True)
class Result:
    """What came out."""

    model: str
    capabilities: Capabilities
    notes: tuple[str, ...]
    figures: dict[str, Figures] = field(default_factory=dict)
    """By the way to cut and continue."""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Prefixes kept, and where the server is bit-equal everything equal."""
        every = self.figures.values()
        exact = not self.capabilities.bit_equal or all(each.equal == each.total for each in every)
        return bool(self.figures) and exact and all(each.kept == each.continued for each in every)

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        known = {key: sorted(v) if isinstance(v, frozenset) else v for key, v in asdict(self.capabilities).items()}
        ways = {way: asdict(figures) for way, figures in self.figures.items()}
        return {"model": self.model, "capabilities": known, "notes": self.notes, "ways": ways, "passed": self.passed}


def prompts(count: int, *, seed: int) -> list[str]:
    """So many different texts."""
    draw = random.Random(seed)
    return [f"Question {n}: {' '.join(draw.choices(WORDS, k=4 + n % 12))}" for n in range(count)]


def asks(text: str, tokens: int, known: Capabilities) -> dict[str, Ask]:
    """The calls that are made about a text, by name; those for routes that the server has."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0}
    task = [{"role": "user", "content": f"{text}. {TASK}"}]
    flat = [found.schema for found in tools_of(CounterServer).values()]
    tools = [{"type": "function", "function": {k: v for k, v in each.items() if k != "type"}} for each in flat]
    response = {"input": text, "max_output_tokens": tokens, "temperature": 0, "store": False}
    completion = {"prompt": text, "max_tokens": tokens, "temperature": 0}
    scored = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    found = {
        "chat": Ask(CHAT, chat),
        "chat, logprobs": Ask(CHAT, {**chat, "logprobs": True, "top_logprobs": 2}),
        "chat, min_tokens": Ask(CHAT, {**chat, "min_tokens": tokens // 2}),
        "chat, tools": Ask(CHAT, {**chat, "messages": task, "tools": tools, "max_tokens": 4 * tokens}),
        "completions, logprobs": Ask(COMPLETIONS, {**completion, "logprobs": 2}),
        "completions, min_tokens": Ask(COMPLETIONS, {**completion, "min_tokens": tokens // 2}),
        "responses": Ask(RESPONSES, response),
        "responses, tools": Ask(RESPONSES, {**response, "input": task, "tools": flat, "max_output_tokens": 4 * tokens}),
    }
    if RESPONSES in known.ids_routes:  # Without ids all of it is made anew, and vLLM's streams lack some of these.
        found["responses, logprobs"] = Ask(RESPONSES, {**response, **scored})
    return {name: _naming_ids(ask, known) for name, ask in found.items() if ask.route in known.routes}


def _naming_ids(ask: Ask, known: Capabilities) -> Ask:
    return Ask(ask.route, {**ask.body, "return_token_ids": True}) if ask.route in known.ids_routes else ask


def stopping(ask: Ask, reply: Mapping[str, Any]) -> Ask | None:
    """The same call with a stop string that begins in one token of its reply and may end in another."""
    choice = reply["choices"][0]
    text = choice["text"] if ask.route == COMPLETIONS else choice["message"]["content"] or ""
    at = next((n for n in range(len(text) * 2 // 3, len(text) - 5) if "\ufffd" not in text[n : n + 5]), None)
    return None if at is None else Ask(ask.route, {**ask.body, "stop": ["no such text", text[at : at + 5]]})


async def _measure(endpoint: HaltingEndpoint, lazy: LazyCapabilities, sizes: Sizes) -> Result:
    began = time.perf_counter()
    known, probed = await lazy.ensure(), lazy.probed
    result = Result(probed.model, known, probed.notes)
    if known.token_ids_in and COMPLETIONS in known.ids_routes:
        texts = prompts(sizes.prompts, seed=1)
        uncut: list[Prefix] = [await generated(endpoint, result.model, text, sizes.tokens) for text in texts]
        for at_once in (1, sizes.at_once):
            result.figures[f"ids, {at_once} at once"] = await cut_everywhere(
                endpoint, result.model, uncut, sizes.tokens, most=sizes.cuts, at_once=at_once
            )
    proxies = Proxies(endpoint, result.model, known)
    for text in prompts(sizes.calls, seed=2):
        await _calls(proxies, text, result, sizes)
    result.seconds = time.perf_counter() - began
    return result


async def _calls(proxies: Proxies, text: str, result: Result, sizes: Sizes) -> None:
    """Every kind of call about one text, one at a time and several at once, streamed and not."""
    expected: dict[str, tuple[Ask, dict[str, Any]]] = {}
    for name, ask in asks(text, sizes.tokens, result.capabilities).items():
        reply = await proxies.uncut(ask)
        expected[name] = ask, reply
        stopped = stopping(ask, reply) if name in ("chat", "completions, logprobs") else None
        if stopped is not None:
            expected[f"{name}, stop"] = stopped, await proxies.uncut(stopped)
    for at_once in (1, sizes.at_once):
        limiter = anyio.CapacityLimiter(at_once)
        async with anyio.create_task_group() as group:
            for name, (ask, reply) in expected.items():
                for streamed in (False, True):
                    group.start_soon(_cut_calls, proxies, (name, ask, reply), streamed, limiter, result, sizes)


async def _cut_calls(
    proxies: Proxies,
    named: tuple[str, Ask, dict[str, Any]],
    streamed: bool,
    limiter: anyio.CapacityLimiter,
    result: Result,
    sizes: Sizes,
) -> None:
    name, ask, reply = named
    at_once = int(limiter.total_tokens)
    way = f"{name}{', streamed' if streamed else ''}, {at_once} at once"
    figures = result.figures.setdefault(way, Figures())
    body = {**ask.body, "stream": True, "stream_options": {"include_usage": True}} if streamed else ask.body
    if streamed and ask.route == RESPONSES:
        body = {**ask.body, "stream": True}
    for k in cuts_of(_tokens_of(reply), sizes.call_cuts):
        async with limiter:
            await proxies.cut(Ask(ask.route, body), k, reply, figures, "the call")


def _tokens_of(reply: Mapping[str, Any]) -> int:
    usage = reply.get("usage") or {}
    return int(usage.get("completion_tokens", usage.get("output_tokens", 0)))


def lines(result: Result) -> Iterator[str]:
    """For people."""
    known = result.capabilities
    yield f"{known.kind} serves {result.model!r}"
    for name, value in asdict(known).items():
        yield f"  {name}: {', '.join(sorted(map(str, value))) if isinstance(value, frozenset) else value}"
    yield from (f"  note: {note}" for note in result.notes)
    yield f"{'cut and continued':<46}{'equal':>7}{'kept':>7}{'asked for the rest':>20}{'of':>6}{'logprobs off by':>17}"
    for way, each in result.figures.items():
        row = f"{each.equal:>7}{each.kept:>7}{each.continued:>20}{each.total:>6}{each.logprob_difference:>17.1e}"
        yield f"{way:<46}{row}"
    yield from (f"  {way}: {line}" for way, each in result.figures.items() for line in each.differences)
    yield f"{'passed' if result.passed else 'FAILED'} in {result.seconds:.0f} s"


async def run(base_url: str, sizes: Sizes, *, model: str = "", tool_format: str = "") -> Result:
    """Try one server. Raises where it does not generate at all."""
    async with HaltingEndpoint(base_url, api_key=os.environ.get("OPENAI_API_KEY")) as endpoint:
        return await _measure(endpoint, LazyCapabilities(endpoint, model, tool_format=tool_format), sizes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. Raises SystemExit(1) where something is not exact that should be."""
    parser = command_line.Command("bench.exactness", __doc__)
    parser.add_argument("--base-url", required=True, help="of the server, ends in /v1; a key comes from OPENAI_API_KEY")
    parser.add_argument("--model", default="", help="default: the first one that is served")
    parser.add_argument(
        "--tool-format", default="", help="how the server's model writes calls, such as hermes; default: not known"
    )
    parser.add_argument("--prompts", type=count, default=12, help="completions that are cut")
    parser.add_argument("--calls", type=count, default=3, help="prompts of each kind of call through the proxy")
    parser.add_argument("--tokens", type=count, default=32, help="that are generated for each at most")
    parser.add_argument(
        "--cuts", type=count_or_none, default=0, help="places to cut a completion at; 0: at every token"
    )
    parser.add_argument("--call-cuts", type=count_or_none, default=5, help="places to cut a call at; 0: at every token")
    parser.add_argument("--at-once", type=count, default=8, help="requests at the same time")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    sizes = Sizes(**{name: getattr(parsed, name) for name in Sizes.__dataclass_fields__})
    result = anyio.run(partial(run, parsed.base_url, sizes, model=parsed.model, tool_format=parsed.tool_format))
    for line in lines(result):
        print(line)
    if parsed.json:
        print(json.dumps(result.summary()))
    if not result.passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
