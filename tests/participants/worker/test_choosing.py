"""Choosing is a pure function: the likeliest, or a draw that belongs to a seed and a position."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from participants.inference.sampling import Choosing
from participants.inference.tokens import END, FIRST_WORD, VOCABULARY_SIZE, encode

pytest.importorskip("torch", reason="the extra worker is not installed")

import torch

from participants.worker.choosing import ANY, Chooser, Wish, narrowed, penalised, scores_of

pytestmark = pytest.mark.real

LOGITS = torch.randn(VOCABULARY_SIZE, generator=torch.Generator().manual_seed(1)) * 3
PROMPT = encode("once upon a time")
GREEDY = Choosing(temperature=0)


def chosen(how: Choosing, *, ids: str = PROMPT, wish: Wish = ANY, logits: torch.Tensor = LOGITS, begun: int = 0) -> str:
    """One token."""
    return Chooser(how, None, begun).choose(logits, ids, len(PROMPT), wish)[0]


def word(rank: int) -> str:
    """The word at a rank, from 0."""
    return chr(FIRST_WORD + int(LOGITS[FIRST_WORD:].argsort(descending=True)[rank]))


def test_greedy_takes_the_likeliest_that_may_be_said() -> None:
    """A byte or another mark is never chosen, the end only where it may be, and a fixed token whatever its logit."""
    logits = LOGITS.clone()
    logits[[5, 258]] = 100.0
    assert chosen(GREEDY, logits=logits) == word(0)
    logits[ord(END)] = 99.0
    assert chosen(GREEDY, logits=logits) == END
    assert chosen(GREEDY, logits=logits, wish=Wish(may_end=False)) == word(0)
    assert chosen(GREEDY, logits=logits, wish=Wish("\x07")) == "\x07"


@settings(deadline=None, max_examples=30)
@given(st.integers(), st.integers(0, 2**40))
def test_a_draw_belongs_to_its_seed_and_position(seed: int, other: int) -> None:
    """The same seed and number of ids draw the same, wherever the prompt ends; other seeds draw others."""
    how = Choosing(seed=seed)
    longer = PROMPT + word(3) * 40
    draws = [Chooser(how, None, 0).choose(LOGITS, longer[:n], len(PROMPT), ANY)[0] for n in range(4, 44)]
    again = [Chooser(how, None, 0).choose(LOGITS, longer[:n], n, ANY)[0] for n in range(4, 44)]
    assert draws == again
    if other != seed:
        others = [Chooser(Choosing(seed=other), None, 0).choose(LOGITS, longer[:n], 4, ANY)[0] for n in range(4, 44)]
        assert others != draws


def test_draws_follow_the_distribution() -> None:
    """Over 4,000 positions the likeliest words come as often as their probability says."""
    chooser = Chooser(Choosing(temperature=0.7, seed=1), None, 0)
    ids = PROMPT + word(3) * 4000
    found = Counter(chooser.choose(LOGITS, ids[:n], len(PROMPT), Wish(may_end=False))[0] for n in range(4, 4004))
    shares = torch.softmax(LOGITS[FIRST_WORD:].double() / 0.7, -1)
    for rank in range(5):
        expected = float(shares[ord(word(rank)) - FIRST_WORD])
        spread = (expected * (1 - expected) / 4000) ** 0.5
        assert abs(found[word(rank)] / 4000 - expected) < 5 * spread


def test_without_a_seed_draws_differ() -> None:
    """Two generations without a seed draw differently."""
    ids = PROMPT + word(3) * 40
    one, two = (
        [chooser.choose(LOGITS, ids[:n], 4, ANY)[0] for n in range(4, 44)]
        for chooser in (Chooser(Choosing(), None, 0), Chooser(Choosing(), None, 0))
    )
    assert one != two


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        (Choosing(), 4),
        (Choosing(top_k=2), 2),
        (Choosing(top_k=10), 4),
        (Choosing(top_p=0.5), 1),
        (Choosing(top_p=0.51), 2),
        (Choosing(top_p=0.82), 3),
        (Choosing(min_p=0.25), 3),
        (Choosing(top_k=3, top_p=0.6), 2),
    ],
)
def test_unlikely_tokens_are_left_out(how: Choosing, kept: int) -> None:
    """top_k keeps the k likeliest, top_p the fewest that reach it, min_p those near the likeliest."""
    shares = torch.tensor([0.125, 0.5, 0.0625, 0.3125], dtype=torch.float64)
    found = narrowed(shares, how)
    order = [1, 3, 0, 2]
    assert (found > 0).tolist() == [n in order[:kept] for n in range(4)]


def test_penalties_count_what_they_should() -> None:
    """Frequency and presence lower what the output has, repetition what prompt or output has, towards less likely."""
    a, b = encode(" time")[0], word(0)
    base = penalised(LOGITS, PROMPT + b * 3, b * 3, Choosing())
    found = penalised(LOGITS, PROMPT + b * 3, b * 3, Choosing(frequency_penalty=0.5, presence_penalty=0.25))
    assert torch.equal(base, LOGITS)
    assert float(LOGITS[ord(b)] - found[ord(b)]) == pytest.approx(1.75, abs=1e-5)
    assert found[ord(a)] == LOGITS[ord(a)]
    again = penalised(LOGITS, PROMPT + b, b, Choosing(repetition_penalty=2.0))
    for token in (a, b):
        was = float(LOGITS[ord(token)])
        assert float(again[ord(token)]) == pytest.approx(was / 2 if was > 0 else was * 2)
    assert int((again != LOGITS).sum()) == len(set(PROMPT + b))


def test_a_continuation_says_what_was_output() -> None:
    """Told how many ids of its prompt were output, a continuation penalises like the uncut generation."""
    how = Choosing(temperature=0, presence_penalty=2.0)
    close = LOGITS.clone()
    close[ord(word(1))] = close[ord(word(0))] - 0.1
    ids = PROMPT + word(0)
    assert Chooser(how, None, 0).choose(close, ids, len(PROMPT), ANY)[0] == word(1)
    assert Chooser(how, None, 0).choose(close, ids, len(ids), ANY)[0] == word(0)
    assert Chooser(how, None, 1).choose(close, ids, len(ids), ANY)[0] == word(1)


def test_log_probabilities_are_of_the_logits() -> None:
    """The chosen token first with its share of the whole vocabulary, then the best others that may be said."""
    sure = torch.log_softmax(LOGITS, -1)
    for token in (word(0), word(7), "a"):
        scores = scores_of(LOGITS, token, 3)
        others = [each for each in (word(0), word(1), word(2)) if each != token][:2]
        assert [each for each, _ in scores] == [token, *others]
        assert all(score == float(sure[ord(each)]) for each, score in scores)
