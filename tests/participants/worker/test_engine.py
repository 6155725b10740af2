"""Many generations share one model, and each is what it would be alone, cut or uncut."""

from dataclasses import dataclass
from typing import Any

import anyio
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.inference import RequestRefused, chat, completions
from participants.inference.jobs import Job
from participants.inference.sampling import Scores
from participants.inference.tokens import END, FIRST_WORD, Ids, decode, encode, to_numbers

pytest.importorskip("torch", reason="the extra worker is not installed")

from participants.worker.engine import LlamaEngine, share
from participants.worker.prefixes import Prefixes, common_length
from participants.worker.weights import Shape, make

pytestmark = [pytest.mark.real, pytest.mark.anyio]

TOKENS = 12
SCRIPT = '<script>[{"filler": 6, "text": "é", "call": {"name": "f", "arguments": {"k": 1}}}]</script>'
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "seed": 11, "top_p": 0.95, "top_k": 50},
    "penalised": {"temperature": 0, "presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
    "put off": {"temperature": 1.2, "seed": 2, "min_tokens": 8},
}


@dataclass(frozen=True)
class Result:
    """A whole generation."""

    ids: str
    scores: tuple[Scores, ...]
    finish: str | None
    weights: tuple[str, ...]


def engine(*, kept_tokens: int = 0, layers: int = 4, context: int = 4096) -> LlamaEngine:
    """A model of its own."""
    return LlamaEngine(make(0, Shape(layers=layers, context=context)), kept_tokens=kept_tokens)


def completion(prompt: str, **asked: Any) -> Job:
    """A request to continue these ids."""
    body = {"prompt": to_numbers(prompt), "max_tokens": TOKENS, "logprobs": 3, **asked}
    return completions.parse(orjson.dumps(body), "m")


def turn(text: str, **asked: Any) -> Job:
    """A request for a turn of the assistant."""
    return chat.parse(orjson.dumps({"messages": [{"role": "user", "content": text}], **asked}), "m")


async def generated(model: LlamaEngine, job: Job) -> Result:
    """Everything that a job brings."""
    generation, pieces = model.begin(job), []
    while not generation.finish:
        pieces += await generation.run(32)
    scores = tuple(score for piece in pieces for score in piece.scores)
    weights = tuple(piece.weights for piece in pieces)
    return Result("".join(piece.ids for piece in pieces), scores, generation.finish, weights)


async def rest(model: LlamaEngine, prompt: Ids, whole: Result, cut: int, **asked: Any) -> bool:
    """Whether the continuation after a cut is bit for bit what the uncut generation has there."""
    left = {"max_tokens": TOKENS - cut, "min_tokens": max(asked.get("min_tokens", 0) - cut, 0)}
    found = await generated(model, completion(prompt + whole.ids[:cut], **asked | left, continued_tokens=cut))
    return (found.ids, found.scores, found.finish) == (whole.ids[cut:], whole.scores[cut:], whole.finish)


@pytest.mark.parametrize("way", WAYS)
async def test_every_cut_continues_exactly_alone_and_with_eight_at_once(way: str) -> None:
    """Prompts cut at every token: ids and log probabilities of the rest equal the uncut ones, in any company."""
    model, asked = engine(), WAYS[way]
    for number in range(3):
        prompt = encode(f"story {number} of the house by the water " * (number + 1))
        whole = await generated(model, completion(prompt, **asked))
        cuts = range(1, len(whole.ids))
        assert [cut for cut in cuts if not await rest(model, prompt, whole, cut, **asked)] == []
        wrong: list[int] = []

        async def check(cut: int, prompt: Ids = prompt, whole: Result = whole, wrong: list[int] = wrong) -> None:
            if not await rest(model, prompt, whole, cut, **asked):
                wrong.append(cut)

        async with anyio.create_task_group() as tasks:
            for cut in cuts:
                tasks.start_soon(check, cut)
        assert wrong == []


@pytest.mark.parametrize("logprobs", [False, True])
async def test_a_scripted_turn_is_the_models_words_and_then_the_script(logprobs: bool) -> None:
    """Filler comes from the model and the call from the script; cut anywhere the turn goes on to the same end."""
    model = engine()
    job = turn(SCRIPT, temperature=0, logprobs=logprobs, top_logprobs=2 if logprobs else None)
    whole = await generated(model, job)
    assert all(ord(token) >= FIRST_WORD for token in whole.ids[:6])
    assert decode(whole.ids[6:]) == '\né<|call|>f\n{"k":1}<|end|>'
    assert len(whole.scores) == (len(whole.ids) if logprobs else 0)
    for cut in range(1, len(whole.ids)):
        cut_job = completion(
            job.prompt + whole.ids[:cut], max_tokens=99, temperature=0, logprobs=2 if logprobs else None
        )
        found = await generated(model, cut_job)
        assert (found.ids, found.scores, found.finish) == (whole.ids[cut:], whole.scores[cut:], "stop")
    other = await generated(LlamaEngine(make(9), kept_tokens=0), job)
    assert other.ids[:6] != whole.ids[:6]
    assert other.ids[6:] == whole.ids[6:]


async def test_what_was_computed_before_changes_nothing() -> None:
    """With the beginnings of ended calls kept, the same requests bring the same bits, in less work."""
    fresh, keeping = engine(), engine(kept_tokens=4096)
    prompt = encode("the people of the house by the water said " * 5)
    for length in (20, 30, 25, 30):
        job = completion(prompt[:length], temperature=0)
        assert await generated(fresh, job) == await generated(keeping, job)
    assert keeping.ask(completion(prompt, temperature=0)).cache.length == 30
    assert fresh.ask(completion(prompt, temperature=0)).cache.length == 0


async def test_a_cancelled_call_leaves_the_others_as_they_are() -> None:
    """Calls that end in the middle of a tile cost the others nothing, and the model goes on."""
    model = engine()
    prompts = [encode(f"prompt {n} of the many people here") for n in range(6)]
    alone = [await generated(model, completion(prompt, temperature=0)) for prompt in prompts]
    found: dict[int, Result] = {}

    async def one(n: int) -> None:
        found[n] = await generated(model, completion(prompts[n], temperature=0))

    async def cancelled(n: int) -> None:
        generation = model.begin(completion(prompts[n], temperature=0, ignore_eos=True, max_tokens=4000))
        with anyio.CancelScope() as scope:
            while True:
                if generation.generated >= n:
                    scope.cancel()
                await generation.run(32)
        assert generation.generated == n

    async with anyio.create_task_group() as tasks:
        for n in range(6):
            tasks.start_soon(one, n)
            tasks.start_soon(cancelled, n)
    assert [found[n] for n in range(6)] == alone


async def test_more_calls_than_rows_all_get_on() -> None:
    """Forty calls at once, some with prompts of many tiles, all end as they do alone."""
    model = engine(layers=1)
    prompts = [encode("a house " * (1 + 60 * (n % 5 == 0))) + encode(f"{n}") for n in range(40)]
    jobs = [completion(prompt, temperature=0, max_tokens=4) for prompt in prompts]
    alone = [await generated(model, job) for job in jobs]
    found: dict[int, Result] = {}

    async def one(n: int) -> None:
        found[n] = await generated(model, jobs[n])

    async with anyio.create_task_group() as tasks:
        for n in range(40):
            tasks.start_soon(one, n)
    assert [found[n] for n in range(40)] == alone


async def test_new_weights_are_taken_in_the_middle_and_named() -> None:
    """From the next token on another version is named, other words come, and nothing old is kept for later."""
    model = engine(kept_tokens=4096)
    job = completion(encode("once upon a time there was a very small house here " * 2), temperature=0, ignore_eos=True)
    whole = await generated(model, job)
    assert set(whole.weights) == {"0"}
    generation, pieces = model.begin(job), []
    while not generation.finish:
        pieces += await generation.run(1)
        if generation.generated == 5:
            await model.reweigh("1", 77)
    assert [piece.weights for piece in pieces] == ["0"] * 5 + ["1"] * 7
    mixed = "".join(piece.ids for piece in pieces)
    assert mixed[:5] == whole.ids[:5]
    assert mixed != whole.ids
    anew = await generated(model, job)
    assert anew == await generated(LlamaEngine(make(77), "1", kept_tokens=0), job)


@pytest.mark.parametrize("prompt", ["", "a" * 300, "a" * 256])
def test_a_prompt_that_does_not_fit_is_refused(prompt: str) -> None:
    """An empty prompt and one that leaves no room are refused before anything is computed."""
    with pytest.raises(RequestRefused) as refused:
        engine(layers=1, context=256).begin(completion(prompt))
    assert refused.value.status == 400
    assert (refused.value.code == "context_length_exceeded") == bool(prompt)


async def test_the_context_ends_a_generation() -> None:
    """Prompt and output together are as long as the context, whatever was asked for."""
    job = completion(encode("a" * 250), max_tokens=100, ignore_eos=True, temperature=0)
    found = await generated(engine(layers=1, context=256), job)
    assert (len(found.ids), found.finish) == (6, "length")


async def test_an_end_can_be_put_off() -> None:
    """Without min_tokens a text may end by itself; before it, and with ignore_eos, none ends."""
    model = engine()
    lengths = []
    for n in range(6):
        prompt = encode(f"text {n}")
        found = await generated(model, completion(prompt, temperature=0, max_tokens=40, logprobs=None))
        lengths.append(len(found.ids))
        assert (found.finish == "stop") == found.ids.endswith(END)
        late = await generated(model, completion(prompt, temperature=0, max_tokens=30, min_tokens=25, logprobs=None))
        assert len(late.ids) >= 25
        assert END not in late.ids[:25]
    assert min(lengths) < 25


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.integers(1, 20))
def test_rows_are_shared_fairly(pending: list[int], tile: int) -> None:
    """Each in turn gets one row; what is left goes to who needs more; no row is wasted while anyone needs it."""
    rows = share(pending, tile)
    assert all(0 <= got <= wanted for got, wanted in zip(rows, pending, strict=True))
    assert [bool(got) for got in rows] == [n < tile for n in range(len(pending))]
    assert sum(rows) == min(tile, sum(pending) if len(pending) <= tile else tile)


@given(st.text("ab", max_size=12), st.text("ab", max_size=12), st.integers(0, 5))
def test_common_beginnings_are_measured(one: str, other: str, least: int) -> None:
    """The length is exact where it is more than the least, and 0 elsewhere."""
    expected = next((n for n in range(len(one) + 1) if not other.startswith(one[: n + 1]) or n == len(one)), 0)
    assert common_length(one, other, least=least) == (expected if expected > least else 0)


async def test_what_is_kept_has_a_limit() -> None:
    """Old beginnings leave when the limit is reached; one that is longer than the limit is not kept at all."""
    model = engine(layers=1)
    prefixes = Prefixes(100)
    asked = []
    for n in range(4):
        job = completion(encode(f"{n}" * 40), temperature=0, max_tokens=1)
        generation = model.begin(job)
        await generation.run(1)
        asked.append(generation)
        prefixes.add(job.prompt, generation.cache)
    assert [prefixes.find(encode(f"{n}" * 50)).length for n in range(4)] == [0, 0, 40, 40]
    prefixes.add(Ids("x" * 101), asked[0].cache)
    assert prefixes.find(Ids("x" * 101)).length == 0
    prefixes.clear()
    assert prefixes.find(encode("3" * 50)).length == 0
