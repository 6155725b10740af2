"""Generation is a function of the ids: cut anywhere and continued, it is the same; limits end it where they say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from participants.inference.assembly import Assembler
from participants.inference.sampling import END_ONE_IN, Generation, Limits, Piece
from participants.inference.template import Conversation, FunctionCall, Message, ToolBox, render
from participants.inference.tokens import END, Ids, encode, name_marks

pytestmark = pytest.mark.unit

SCRIPT = (
    '<script>[{"filler": 12, "text": "é😀 ok", "refusal": "no", "calls": '
    '[{"name": "a", "arguments": {"k": "ü"}}, {"name": "b", "arguments": "{bad"}]}]</script>'
)
PROMPTS = {
    "plain": encode("once upon a time"),
    "chat": render(Conversation((Message("user", "hello"),))),
    "scripted": render(Conversation((Message("user", SCRIPT),))),
    "rule": render(
        Conversation((Message("user", "add 3"),), ToolBox(({"name": "increment_counter", "parameters": {}},)))
    ),
}
prompts = st.sampled_from(list(PROMPTS.values()))


def run(prompt: str, limits: Limits | None = None, *, seed: int = 0, logprobs: int | None = None) -> tuple[str, str]:
    """The ids of a whole generation, and why it ended."""
    pieces, finish = pieces_of(prompt, limits or Limits(), seed=seed, logprobs=logprobs)
    return "".join(piece.ids for piece in pieces), finish


def pieces_of(prompt: str, limits: Limits, *, seed: int = 0, logprobs: int | None = None) -> tuple[list[Piece], str]:
    """The pieces of a whole generation, and why it ended."""
    generation, pieces = Generation(seed, Ids(prompt), limits, logprobs=logprobs), []
    while not generation.finish:
        if piece := generation.step():
            pieces.append(piece)
    assert generation.generated == sum(len(piece.ids) for piece in pieces)
    return pieces, generation.finish


@pytest.mark.parametrize("name", PROMPTS)
def test_every_cut_continues_exactly(name: str) -> None:
    """After each token, the prompt with what there is gives exactly the rest, its end and its log probabilities."""
    pieces, finish = pieces_of(PROMPTS[name], Limits(), logprobs=3)
    whole = "".join(piece.ids for piece in pieces)
    scores = [score for piece in pieces for score in piece.scores]
    assert finish == "stop"
    assert whole.endswith(END)
    for cut in range(len(whole)):
        rest, why = pieces_of(PROMPTS[name] + whole[:cut], Limits(), logprobs=3)
        assert ("".join(piece.ids for piece in rest), why) == (whole[cut:], finish)
        assert [score for piece in rest for score in piece.scores] == scores[cut:]


@settings(deadline=None)
@given(prompts, st.integers(0, 40))
def test_max_tokens_is_exact(prompt: Ids, most: int) -> None:
    """A limit gives that many tokens and `length`, or the end before it and `stop`."""
    whole, _ = run(prompt)
    ids, finish = run(prompt, Limits(max_tokens=most))
    assert ids == whole[:most]
    assert finish == ("stop" if most >= len(whole) else "length")


@settings(deadline=None)
@given(prompts, st.integers(1, 30), st.data())
def test_a_stop_string_ends_before_itself_wherever_the_stream_was_cut(
    prompt: Ids, at: int, data: st.DataObject
) -> None:
    """A stop across tokens ends the text just before it; cut after any piece, the rest stops at the same place."""
    plain, _ = pieces_of(prompt, Limits())
    text = "".join(piece.text for piece in plain)
    start = at % max(len(text) - 4, 1)
    stop = text[start : start + 4]
    limits = Limits(stop=(stop,))
    pieces, finish = pieces_of(prompt, limits)
    assert finish == "stop"
    assert "".join(piece.text for piece in pieces) == text[: text.find(stop)]
    cut = data.draw(st.integers(0, len(pieces) - 1))
    got = "".join(piece.ids for piece in pieces[:cut])
    rest, why = pieces_of(prompt + got, limits)
    assert ([piece.text for piece in rest], why) == ([piece.text for piece in pieces[cut:]], finish)


def test_no_piece_ends_inside_a_character() -> None:
    """Characters of several tokens come whole, however the text is scripted."""
    pieces, _ = pieces_of(PROMPTS["scripted"], Limits())
    assert "�" not in "".join(piece.text for piece in pieces)


def test_a_turn_as_generated_is_the_turn_as_rendered() -> None:
    """The reply put into the next prompt has the ids that were generated."""
    ids, _ = run(PROMPTS["rule"])
    assembler = Assembler()
    for piece in pieces_of(PROMPTS["rule"], Limits())[0]:
        assembler.feed(piece)
    calls = tuple(FunctionCall(name, arguments) for name, arguments in assembler.reply.calls)
    said = Conversation((Message("assistant", assembler.reply.text, assembler.reply.refusal, calls),))
    assert render(said).startswith(name_marks("\u0103") + ids)


def test_the_seed_and_every_token_of_the_prompt_matter() -> None:
    """Other seeds and other prompts give other words."""
    fixed = Limits(max_tokens=16, ignore_eos=True)
    outputs = {run(PROMPTS["plain"], fixed, seed=seed)[0] for seed in range(5)}
    outputs |= {run(encode(f"once upon a time{n}"), fixed)[0] for n in range(5)}
    assert len(outputs) == 10


def test_an_end_can_be_put_off() -> None:
    """min_tokens and ignore_eos go on past the end; a stop id ends at once."""
    for prompt in PROMPTS.values():
        assert len(run(prompt, Limits(max_tokens=300, ignore_eos=True))[0]) == 300
        assert len(run(prompt, Limits(min_tokens=300))[0]) > 300
        first = run(prompt)[0][0]
        assert run(prompt, Limits(stop_ids=first)) == (first, "stop")


def test_free_text_ends_by_itself_at_about_its_mean() -> None:
    """Free texts have the length that is documented, on average."""
    lengths = [len(run(encode(f"text {n}"))[0]) for n in range(300)]
    assert END_ONE_IN * 0.8 < sum(lengths) / len(lengths) < END_ONE_IN * 1.2


def test_a_draft_that_left_the_plan_is_continued_as_free_text() -> None:
    """A prefix that no script would say is continued, by the chain."""
    ids, finish = run(PROMPTS["scripted"] + encode("something else"), Limits(max_tokens=5, ignore_eos=True))
    assert (len(ids), finish) == (5, "length")
