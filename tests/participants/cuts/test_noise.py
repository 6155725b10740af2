"""A model that says noise: half characters, bytes that are no text, marks anywhere. Cut, it is the same noise."""

from typing import Any

import pytest

from participants.cuts import Anew, Reason, read
from participants.inference.sampling import Generation
from participants.inference.tokens import CALL, END, REFUSAL, SYSTEM, USER

from .test_every_cut import same
from .uncut import CHAT, COMPLETIONS, RESPONSES, InProcess

pytestmark = pytest.mark.unit

BYTES = [*range(0x20, 0x60), *range(0xC2, 0xD0), *range(0x80, 0xC0), 0xE5, 0xAD, 0x97, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 10]
MARKS = [CALL, REFUSAL, SYSTEM, USER]


class Noise(Generation):
    """Any token may follow any other."""

    def _draw(self) -> str:
        first, second = ord(self._chain.word()), int(-self._chain.logprob() * 1000)
        kind = (first + second) % 40
        if kind == 39 and not self.must_go_on:
            return END
        if kind < 12:
            return self._chain.word()
        return MARKS[first % 4] if kind < 15 else chr(BYTES[(first * 7 + second) % len(BYTES)])


CASES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 60}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 60, "stop": ["a", "8"]}),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 60}),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 40, "logprobs": 2}),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 60, "stop": ["ba", "2", "\ufffd\ufffd"]}),
    (RESPONSES, {"input": "x", "max_output_tokens": 60}),
]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("route", "body"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_noise_is_the_same_wherever_it_is_cut(route: str, body: dict[str, Any], seed: int) -> None:
    """Cut after each event: but for the bytes of tokens that are no text, the joined reply is the uncut one."""
    backend = InProcess(Noise, seed)
    body = {**body, "return_token_ids": True}
    events = backend.streamed(route, body)
    wanted = backend.whole(route, body)
    for k in range(len(events) + 1):
        outcome = backend.continued(route, body, read(route, events[:k]).prefix)
        if isinstance(outcome, Anew):
            assert outcome.reason is Reason.NOTHING_GENERATED
            continue
        same(without_bytes(outcome.reply), without_bytes(wanted))


def without_bytes(value: Any) -> Any:
    """Without the bytes of tokens that are no whole character."""
    if isinstance(value, dict):
        part = "\ufffd" in str(value.get("token", ""))
        return {key: without_bytes(item) for key, item in value.items() if not (part and key == "bytes")}
    return [without_bytes(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(8))
def test_bytes_that_are_told_are_the_true_ones(seed: int) -> None:
    """Where the joined text says the bytes of a token, they are those that the uncut reply has."""
    route, body = CASES[1]
    backend = InProcess(Noise, seed)
    body = {**body, "return_token_ids": True}
    events = backend.streamed(route, body)
    wanted = backend.whole(route, body)["choices"][0]["logprobs"]["content"]
    for k in range(len(events)):
        outcome = backend.continued(route, body, read(route, events[:k]).prefix)
        if not isinstance(outcome, Anew):
            for got, true in zip(outcome.reply["choices"][0]["logprobs"]["content"], wanted, strict=True):
                assert got["bytes"] in (None, true["bytes"])
