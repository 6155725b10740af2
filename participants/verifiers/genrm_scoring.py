"""What a generative reward model is asked about two answers, what it says, and the rewards that follow. Pure.

A verdict is the last JSON object of what it says that has scores: `score_1` and `score_2` from 1 to 5, and `ranking`
from 1 (the first answer is much better) to 6 (the second is), which decides between equal scores. The object may stand
in the field `overall` of another one. Anything else is no verdict, and nobody guesses one.

The reward of an answer is the mean of its scores over its comparisons. On equal scores s the first answer counts
s + (3.5 - ranking) and the second s - (3.5 - ranking). Terms for length and style may be added to it; those for a
whole group have the sum 0.
"""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

from ..output_text import output_text

MIDDLE = 3.5
"""Of the rankings: neither is better."""
NO_TEXT = "None"
"""Stands for an answer without text."""
READ_CHARS = 16_384
"""Of the end of what the judge says; a verdict stands there."""
SKIP_CHARS = 1024
_CODE = re.compile(r"```.*?```", re.DOTALL)
_STYLES = (
    re.compile(r"^#{1,6}\s", re.MULTILINE),
    re.compile(r"^\s*(?:\d+\.|[-*+])\s", re.MULTILINE),
    re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__"),
    re.compile("[\u2600-\u27bf\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff]"),
)
"""Headings, items of lists, bold words, pictures."""

Strategy = Literal["circular", "all_pairs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is compared of one rollout."""

    history: Any
    """What the model was asked: text, or the items of `input`."""
    text: str
    reasoning: str = ""
    """For its length alone."""
    principle: str | None = None

    @property
    def shown(self) -> str:
        """The text, as the judge sees it."""
        return self.text if self.text.strip() else NO_TEXT


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says of two answers."""

    score_1: float
    score_2: float
    ranking: float

    @property
    def tied(self) -> bool:
        """Whether the ranking decides."""
        return self.score_1 == self.score_2

    @property
    def counted(self) -> tuple[float, float]:
        """What the first and the second answer get of it."""
        shift = MIDDLE - self.ranking if self.tied else 0.0
        return self.score_1 + shift, self.score_2 - shift


@dataclass(frozen=True, slots=True)
class Comparison:
    """One verdict of one judge on the answers `first` and `second`."""

    first: int
    second: int
    judge: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is added to the mean scores; 0 for nothing."""

    reasoning_bonus: float = 0.0
    """For the shortest reasoning of all, if its answer is among the best."""
    answer_bonus: float = 0.0
    """The same for the shortest answer."""
    top_percentile: float = 0.2
    """The part of the answers that are the best."""
    group_reasoning_length_penalty_coeff: float = 0.0
    group_answer_length_penalty_coeff: float = 0.0
    group_style_penalty_coeff: float = 0.0


@dataclass(frozen=True, slots=True)
class Scored:
    """What the comparisons of a group come to."""

    rewards: list[float]
    metrics: dict[str, float] = field(default_factory=dict)


def answer_of(history: Any, response: Mapping[str, Any], principle: str | None = None) -> Answer:
    """Take it out of a Responses object."""
    output = response.get("output")
    items = [item for item in (output if isinstance(output, list) else ()) if isinstance(item, Mapping)]
    thoughts = (item.get("summary") for item in items if item.get("type") == "reasoning")
    parts = (part for thought in thoughts for part in (thought if isinstance(thought, list) else ()))
    reasoning = "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
    return Answer(history=history, text=output_text(response), reasoning=reasoning, principle=principle)


def pairs_of(strategy: Strategy, count: int) -> list[tuple[int, int]]:
    """Which answers are compared: each with the next one around the circle, or each with each."""
    if strategy == "all_pairs":
        return list(combinations(range(count), 2))
    return [(index, (index + 1) % count) for index in range(count)]


def parse_verdict(said: str) -> Verdict:
    """The verdict in what the judge says. Raises ValueError where there is none."""
    found = None
    decoder, text, at = json.JSONDecoder(), said[-READ_CHARS:], 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            at += 1
            continue
        except RecursionError:  # Each further level in would cost as much; nobody puts a verdict there.
            at += SKIP_CHARS
            continue
        found, at = _verdict(value) or found, end
    if found is None:
        raise ValueError(f"there is no verdict in {said[-200:]!r}")
    return found


def _verdict(value: Any) -> Verdict | None:
    overall = value.get("overall")
    given = overall if isinstance(overall, dict) else value
    scores = [_number(given.get(name), 1, 5) for name in ("score_1", "score_2")]
    ranking = _number(given.get("ranking"), 1, 6)
    if ranking is None and "ranking" not in given and scores[0] != scores[1]:
        ranking = MIDDLE  # It would decide nothing.
    if scores[0] is None or scores[1] is None or ranking is None:
        return None
    return Verdict(scores[0], scores[1], ranking)


def _number(value: Any, least: float, most: float) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        return None
    return float(value)


def score(answers: Sequence[Answer], comparisons: Sequence[Comparison], terms: Terms | None = None) -> Scored:
    """The rewards, in the order of the answers; each one must have been compared."""
    terms = terms or Terms()
    got: list[list[float]] = [[] for _ in answers]
    for each in comparisons:
        first, second = each.verdict.counted
        got[each.first].append(first)
        got[each.second].append(second)
    means = [statistics.fmean(scores) for scores in got]
    added = zip(means, _bonuses(answers, means, terms), _group_terms(answers, terms), strict=True)
    return Scored([sum(parts) for parts in added], _metrics(comparisons))


def _metrics(comparisons: Sequence[Comparison]) -> dict[str, float]:
    scores = [s for each in comparisons for s in (each.verdict.score_1, each.verdict.score_2)]
    if not scores:
        return {}
    return {
        "mean_individual_score": statistics.fmean(scores),
        "std_individual_score": statistics.pstdev(scores),
        "tiebreak_usage_rate": sum(each.verdict.tied for each in comparisons) / len(comparisons),
    }


def _bonuses(answers: Sequence[Answer], means: Sequence[float], terms: Terms) -> list[float]:
    bonuses = [0.0] * len(answers)
    last_of_best = max(0, int(len(means) * terms.top_percentile) - 1)
    least = sorted(means, reverse=True)[last_of_best] if means else 0.0
    for bonus, lengths in (
        (terms.reasoning_bonus, [len(answer.reasoning.strip()) for answer in answers]),
        (terms.answer_bonus, [len(answer.text.strip()) for answer in answers]),
    ):
        there = [index for index, length in enumerate(lengths) if length]
        if bonus and there:
            shortest = min(there, key=lengths.__getitem__)
            bonuses[shortest] += bonus if means[shortest] >= least else 0.0
    return bonuses


def _group_terms(answers: Sequence[Answer], terms: Terms) -> list[float]:
    weighed = (
        (terms.group_reasoning_length_penalty_coeff, [len(answer.reasoning.strip()) for answer in answers]),
        (terms.group_answer_length_penalty_coeff, [len(answer.text.strip()) for answer in answers]),
        (terms.group_style_penalty_coeff, [style_density(answer.text) for answer in answers]),
    )
    parts = [[coefficient * w for w in _less_is_better(values)] for coefficient, values in weighed if coefficient]
    return [sum(part[index] for part in parts) for index in range(len(answers))]


def _less_is_better(values: Sequence[float]) -> list[float]:
    """From 1 for the least to 0 for the most, less the mean of that: the sum is 0."""
    least, most = min(values), max(values)
    if least == most:
        return [0.0] * len(values)
    weights = [(most - value) / (most - least) for value in values]
    mean = statistics.fmean(weights)
    return [weight - mean for weight in weights]


def style_density(text: str) -> float:
    """Marks of style a character: headings, items of lists, bold words and pictures, outside of code."""
    prose = _CODE.sub("", text)
    length = len(prose.strip())
    return sum(len(style.findall(prose)) for style in _STYLES) / length if length else 0.0


def history_of(answer: Answer) -> list[dict[str, Any]]:
    """What the model was asked, as items."""
    if isinstance(answer.history, str):
        return [{"role": "user", "content": answer.history}]
    return [dict(item) for item in answer.history]


def metadata_of(one: Answer, other: Answer) -> dict[str, str]:
    """Both answers as the metadata of a Responses request, beside the history as its input."""
    principle = {} if one.principle is None else {"principle": one.principle}
    return {"response_1": one.shown, "response_2": other.shown, **principle}


def items_of(one: Answer, other: Answer) -> list[dict[str, Any]]:
    """The same as messages, for Chat: to a model whose template knows these roles."""
    shown = {"principle": one.principle, "response_1": one.shown, "response_2": other.shown}
    return [{"role": role, "content": text} for role, text in shown.items() if text is not None]
