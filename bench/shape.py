"""Records of a realistic shape, the same for the same number: messages, lists of token ids, logprobs now and then.

Token ids and words are drawn with the skew of real text, since that is what decides how well records compress.
Logprobs are float32 values, as inference servers send them, and stand in every third record.
"""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from store import Life, Record

_VOCABULARY, _WORDS, _DRAWS = 151_936, 6_000, 200_000
_LOGPROBS_EVERY = 3
_TEXT_SHARE = 0.3
_FRAME_BYTES = 420
"""About what a record takes beside its text, ids and logprobs."""
_ID_BYTES, _LOGPROB_BYTES = 6.0, 20.8
_SAMPLING = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 4096, "stop": ["</answer>"]}


def _skewed(rng: random.Random, items: list[Any]) -> list[Any]:
    """Draws in which the r-th item appears in proportion to 1/(r+20), ready for uniform choice."""
    weights = [1 / (rank + 20) for rank in range(len(items))]
    return rng.choices(items, weights, k=_DRAWS)


@dataclass(frozen=True, slots=True)
class Pools:
    """What records draw from."""

    words: list[str]
    ids: list[int]

    @classmethod
    def make(cls) -> "Pools":
        """The same pools every time."""
        rng = random.Random(20_260_101)
        letters = "etaoinshrdlucmfwypvbgk"
        words = ["".join(rng.choices(letters, k=rng.randint(2, 10))) for _ in range(_WORDS)]
        return cls(_skewed(rng, words), _skewed(rng, rng.sample(range(_VOCABULARY), 40_000)))


def life_of(number: int) -> Life:
    """The life of the record of that number."""
    return Life(f"task-{number % 97:02d}.sample-{number:06d}", 1, 0, number)


def records(start: int, count: int, size: int) -> Iterator[Record]:
    """`count` records from the `start`-th on, of about `size` bytes each on average, made one at a time."""
    pools = Pools.make()
    for number in range(start, start + count):
        yield Record(life_of(number), _payload(pools, number, size))


def _payload(pools: Pools, number: int, size: int) -> dict[str, Any]:
    rng = random.Random(number)
    budget = max(64.0, size * rng.uniform(0.5, 1.5) - _FRAME_BYTES)
    text = _messages(pools, rng, budget * _TEXT_SHARE)
    scored = number % _LOGPROBS_EVERY == 0
    count = max(1, int(budget * (1 - _TEXT_SHARE) / (_ID_BYTES + _LOGPROB_BYTES / 2 * scored)))
    ids = rng.choices(pools.ids, k=count)
    prompt, sampled = ids[: count // 2], ids[count // 2 :]
    turn = {"index": 0, "token_ids": sampled, "weights": "step-001200", "finish_reason": "tool_calls"}
    if scored:
        turn["logprobs"] = _logprobs(rng, len(sampled))
    return {
        "task": f"task-{number % 97:02d}",
        "boundary": {"turn": len(text) // 2, "kind": "tool_result"},
        "messages": text,
        "prompt_ids": prompt,
        "turns": [turn],
        "sampling": _SAMPLING,
        "reward": None,
        "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(sampled)},
    }


def _messages(pools: Pools, rng: random.Random, budget: float) -> list[dict[str, str]]:
    roles = ("system", "user", "assistant", "tool")
    words = max(1, int(budget / len(roles) / 6.9))
    return [{"role": role, "content": " ".join(rng.choices(pools.words, k=words))} for role in roles]


def _logprobs(rng: random.Random, count: int) -> list[float]:
    values = [-rng.expovariate(2.0) for _ in range(count)]
    return list(struct.unpack(f"{count}f", struct.pack(f"{count}f", *values)))
