"""Microseconds a token for reading a stream, cutting it and joining it again: `python -m bench.cut_reading`."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from participants.cuts import joined, read
from participants.cuts.reading import ChoiceReader
from participants.cuts.sse import DONE, Parser
from participants.cuts.stored import dump_prefix, load_prefix
from participants.inference.jobs import make_meta
from participants.inference.sampling import Generation
from participants.inference.server import DEFAULT_MODEL, DIALECTS
from participants.inference.tokens import decode, from_numbers

from . import command_line
from .command_line import whole

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_ROUNDS = 15


def measure_reading(tokens: int = 1000) -> dict[str, float]:
    """Microseconds of processor time a token, the best of several rounds over one stream of so many tokens."""
    asked = {"ignore_eos": True, "return_token_ids": True}
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": tokens, **asked}
    events = _events(CHAT, chat)
    scored = _events(CHAT, {**chat, "logprobs": True, "top_logprobs": 5})
    completion = _events(COMPLETIONS, {"prompt": "x", "max_tokens": tokens, **asked})
    response = _events(RESPONSES, {"input": "x", "max_output_tokens": tokens, **asked})
    reader = _heard(events)
    prefix = reader.reading(None).prefix
    stored = orjson.dumps(dump_prefix(prefix))
    half = read(CHAT, events[: tokens // 2]).prefix
    rest = read(COMPLETIONS, completion)
    raw_text = decode(from_numbers(half.ids or ()))
    works: Mapping[str, Callable[[], Any]] = {
        "chat": lambda: read(CHAT, events),
        "chat_as_it_comes": lambda: _heard(events),
        "chat_with_logprobs": lambda: read(CHAT, scored),
        "completions": lambda: read(COMPLETIONS, completion),
        "responses": lambda: read(RESPONSES, response),
        "cut": lambda: reader.reading(None),
        "store": lambda: orjson.dumps(dump_prefix(prefix)),
        "load": lambda: load_prefix(orjson.loads(stored)),
        "join": lambda: joined(CHAT, chat, half, rest, raw_text=raw_text, tool_format="marks"),
    }
    return {name: round(_best(work) / tokens * 1e6, 3) for name, work in works.items()}


def _events(route: str, body: Mapping[str, Any]) -> list[bytes]:
    """One stream of the deterministic backend, an event a chunk."""
    job = DIALECTS[route](orjson.dumps({**body, "stream": True}), DEFAULT_MODEL)
    generation = Generation(0, job.prompt, job.limits, logprobs=job.logprobs)
    events = list(job.encoder.start(make_meta("0-1", job.model)))
    while not generation.finish:
        if piece := generation.step():
            events += job.encoder.piece(piece)
    return [*events, *job.encoder.end(generation.finish, generation.generated)]


def _heard(events: list[bytes]) -> ChoiceReader:
    """Event by event, as a flight hears them."""
    parser, reader = Parser(), ChoiceReader(chat=True)
    for event in events:
        reader.feed([orjson.loads(payload) for payload in parser.feed(event) if payload != DONE])
    return reader


def _best(work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.cut_reading", __doc__)
    parser.add_argument("tokens", nargs="?", type=whole(2), default=1000, help="of the stream (default: %(default)s)")
    print(json.dumps(measure_reading(parser.parse_args(arguments).tokens), indent=2))


if __name__ == "__main__":
    main()
