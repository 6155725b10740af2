"""What is a verdict, and what rewards follow: computed by hand in each test."""

from typing import Any

import pytest

from participants.verifiers.genrm_scoring import (
    NO_TEXT,
    Answer,
    Comparison,
    Terms,
    Verdict,
    answer_of,
    history_of,
    items_of,
    metadata_of,
    pairs_of,
    parse_verdict,
    score,
    style_density,
)

pytestmark = pytest.mark.unit


def answers(*texts: str, **more: Any) -> list[Answer]:
    """To one question."""
    return [Answer(history="Why?", text=text, **more) for text in texts]


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ('{"score_1": 4, "score_2": 3, "ranking": 2}', (4, 3, 2)),
        ('Well.\n```json\n{"score_1": 1, "score_2": 5,\n "ranking": 6}\n```', (1, 5, 6)),
        ('{"score_1": 1, "score_2": 1, "ranking": 1} No: {"score_1": 5, "score_2": 2, "ranking": 1}', (5, 2, 1)),
        ('{"score_1": 2, "score_2": 3, "ranking": 4} and {"score_1": 9, "score_2": 3, "ranking": 4}', (2, 3, 4)),
        ('{"rubric": [{"score_1": 1}], "overall": {"score_1": 3, "score_2": 4, "ranking": 5}}', (3, 4, 5)),
        ('{"score_1": "4", "score_2": 2.5, "ranking": "3"}', (4, 2.5, 3)),
        ('{"score_1": 4, "score_2": 2}', (4, 2, 3.5)),
        ('{ broken {"score_1": 4, "score_2": 3, "ranking": 2} } {', (4, 3, 2)),
        ('{"text": "} {", "score_1": 4, "score_2": 3, "ranking": 2}', (4, 3, 2)),
    ],
)
def test_the_last_object_with_scores_is_the_verdict(said: str, verdict: tuple[float, float, float]) -> None:
    """Fenced or not, nested in `overall`, among other words and braces."""
    assert parse_verdict(said) == Verdict(*verdict)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "score_1: 4, score_2: 3",
        "{}",
        '{"score_1": 4}',
        '{"score_1": 4, "score_2": 4}',
        '{"score_1": 0, "score_2": 3, "ranking": 2}',
        '{"score_1": 4, "score_2": 6, "ranking": 2}',
        '{"score_1": 4, "score_2": 3, "ranking": 7}',
        '{"score_1": 4, "score_2": 3, "ranking": "first"}',
        '{"score_1": true, "score_2": 3, "ranking": 2}',
        '{"score_1": NaN, "score_2": 3, "ranking": 2}',
        '[{"score_1": 4]',
        "{" * 20_000,
        '{"a":' * 5000,
    ],
    ids=lambda said: f"{said:.40}",
)
def test_anything_else_is_no_verdict(said: str) -> None:
    """Scores out of range, a tie without a ranking, words; and nothing takes long or recurses for ever."""
    with pytest.raises(ValueError, match="no verdict"):
        parse_verdict(said)


@pytest.mark.parametrize(
    ("verdict", "counted"),
    [
        ((4, 3, 6), (4, 3)),
        ((3, 3, 1), (5.5, 0.5)),
        ((3, 3, 6), (0.5, 5.5)),
        ((2, 2, 3), (2.5, 1.5)),
        ((2, 2, 3.5), (2, 2)),
    ],
)
def test_a_tie_is_decided_by_the_ranking(verdict: tuple[float, ...], counted: tuple[float, float]) -> None:
    """score +- (3.5 - ranking), as VERIFIERS has it; without a tie the ranking counts for nothing."""
    assert Verdict(*verdict).counted == counted


def test_pairs_go_around_the_circle_or_are_all() -> None:
    """For four answers."""
    assert pairs_of("circular", 4) == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert pairs_of("all_pairs", 4) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert pairs_of("circular", 0) == []


def test_a_reward_is_the_mean_over_all_comparisons_and_judges() -> None:
    """Two judges on each pair of two; of the four verdicts one is a tie, (4, 4) with ranking 2."""
    said = [(0, 1, 0, (5, 3, 1)), (0, 1, 1, (4, 4, 2)), (1, 0, 0, (5, 1, 1)), (1, 0, 1, (3, 2, 3))]
    comparisons = [Comparison(i, j, judge, Verdict(*verdict)) for i, j, judge, verdict in said]
    scored = score(answers("a", "b"), comparisons)
    assert scored.rewards == [(5 + 5.5 + 1 + 2) / 4, (3 + 2.5 + 5 + 3) / 4]
    assert scored.metrics["mean_individual_score"] == (5 + 3 + 4 + 4 + 5 + 1 + 3 + 2) / 8
    assert scored.metrics["tiebreak_usage_rate"] == 0.25


EQUAL = [Comparison(i, j, 0, Verdict(3, 3, 3.5)) for i, j in pairs_of("circular", 3)]
"""Everybody gets 3."""


def test_bonuses_go_to_the_shortest_of_the_best() -> None:
    """Of three equals all are the best; an answer without reasoning has no shortest one."""
    given = [
        Answer(history="", text="four", reasoning="long thought"),
        Answer(history="", text="three", reasoning=""),
        Answer(history="", text="longest", reasoning="thought"),
    ]
    assert score(given, EQUAL, Terms(answer_bonus=0.5)).rewards == [3.5, 3, 3]
    assert score(given, EQUAL, Terms(reasoning_bonus=0.25)).rewards == [3, 3, 3.25]
    better = [Comparison(0, 1, 0, Verdict(1, 5, 6)), Comparison(1, 2, 0, Verdict(5, 2, 1)), EQUAL[2]]
    assert score(given, better, Terms(answer_bonus=0.5)).rewards == [2, 5, 2.5]


def test_terms_of_the_group_have_the_sum_0() -> None:
    """Lengths 2, 6, 4: weights 1, 0, 0.5, less their mean 0.5. Styles 1/3, 0 and 0: weights 0, 1, 1, less 2/3."""
    given = answers("ab", "abcdef", "abcd")
    assert score(given, EQUAL, Terms(group_answer_length_penalty_coeff=0.4)).rewards == pytest.approx([3.2, 2.8, 3.0])
    assert score(answers("same", "size", "text"), EQUAL, Terms(group_answer_length_penalty_coeff=1)).rewards == [3] * 3
    styled = score(answers("# a", "a b", "a c"), EQUAL, Terms(group_style_penalty_coeff=0.3)).rewards
    assert styled == pytest.approx([3 - 0.2, 3 + 0.1, 3 + 0.1])
    thought = [Answer(history="", text="a", reasoning="t" * n) for n in (0, 4, 2)]
    weighed = score(thought, EQUAL, Terms(group_reasoning_length_penalty_coeff=1)).rewards
    assert weighed == pytest.approx([3.5, 2.5, 3.0])


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("plain words", 0),
        ("# head\n## head", 2),
        ("- one\n* two\n3. three", 3),
        ("**bold** and __bold__", 2),
        ("fine \U0001f600\U0001f680", 2),
        ("```\n# no heading\n- no item\n```\nwords", 0),
        ("", 0),
    ],
)
def test_style_is_counted_outside_of_code(text: str, marks: int) -> None:
    """By character of what is no code."""
    prose = text.partition("```\nwords")[2] if "```" in text else text
    assert style_density(text) == pytest.approx(marks / (len(prose.strip()) or 1))


def test_what_the_judge_is_shown() -> None:
    """The history as it is, both answers, and the principle where there is one; an answer without text says so."""
    message = {"type": "message", "content": [{"type": "output_text", "text": "Rome."}]}
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    asked = [{"role": "user", "content": "Where?"}]
    one = answer_of(asked, {"output": [thought, message]}, "Be brief.")
    other = answer_of("Where?", {"output": "nothing"})
    assert (one.text, one.reasoning, other.text, other.reasoning) == ("Rome.", "Hm.", "", "")
    assert history_of(one) == history_of(other) == asked
    assert metadata_of(one, other) == {"response_1": "Rome.", "response_2": NO_TEXT, "principle": "Be brief."}
    assert metadata_of(other, one) == {"response_1": NO_TEXT, "response_2": "Rome."}
    assert [item["role"] for item in items_of(one, other)] == ["principle", "response_1", "response_2"]
    assert [item["role"] for item in items_of(other, one)] == ["response_1", "response_2"]
