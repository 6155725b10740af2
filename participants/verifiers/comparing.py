"""What verifiers share that have a judge compare two answers: prompt, labels, verdict, and the fields of a row.

Labels that stand in what is judged are broken up before they are shown, so that a judge which quotes an answer has said
nothing by it. What else an answer may talk a judge into, no code can keep it from: the prompt says that answers are
material and no instruction, and that is all.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..errors import Code, ParticipantError
from .judging import JudgingServer

EQUAL, NOT_EQUAL = "[[A=B]]", "[[A!=B]]"
NO_LABEL = "the judge's reply has neither label"
CUT_OFF = "the judge's reply was cut off before its last label"


class Prompt:
    """What a judge is shown of two answers, and the labels that it answers with."""

    def __init__(self, text: str, equal: str, not_equal: str, *, first: bool) -> None:
        """`first`: of several labels in a reply the first counts, else the last.

        Raises ValueError for a text that does not show both answers, and for labels that cannot be told apart.
        """
        if missing := [name for name in ("{expected_answer}", "{generated_answer}") if name not in text]:
            raise ValueError(f"the prompt has no {' and no '.join(missing)}")
        if len(equal) < 2 or len(not_equal) < 2 or equal in not_equal or not_equal in equal:
            raise ValueError(f"the labels {equal!r} and {not_equal!r} cannot be told apart")
        self._text = text
        self._labels = (equal, not_equal)
        self._first = first

    def about(self, question: str, expected: str, generated: str) -> str:
        """The prompt for two answers; labels that stand in them are broken up."""
        shown = {"question": question, "expected_answer": expected, "generated_answer": generated}
        return fill(self._text, **{name: broken_up(text, self._labels) for name, text in shown.items()})

    def verdict(self, text: str, *, cut_off: bool = False) -> str | None:
        """The label that counts; none where that is the last one, and more might have come."""
        return said_in(text, self._labels, first=self._first) if self._first or not cut_off else None

    def is_equal(self, label: str | None) -> bool:
        """Whether it is the label of equal answers."""
        return label == self._labels[0]


class ComparingServer(JudgingServer):
    """Base of the verifiers that ask whether two answers are equal."""

    def __init__(
        self,
        name: str = "main",
        *,
        prompt: Prompt,
        system_message: str = "",
        no_verdict: Literal["failed", "not_equal"] = "failed",
        **options: Any,
    ) -> None:
        """`no_verdict` says what a reply without a label is. Raises ValueError for anything else."""
        super().__init__(name, **options)
        if no_verdict not in ("failed", "not_equal"):
            raise ValueError(f"no_verdict is failed or not_equal, and not {no_verdict!r}")
        self._prompt = prompt
        self._system = [{"role": "system", "content": system_message}] if system_message else []
        self._no_verdict = no_verdict

    async def equal(self, evaluations: list[dict[str, Any]], question: str, one: str, other: str) -> bool:
        """One pass, added to the evaluations. Raises `judge_failed` where it has no verdict and must have one."""
        content = self._prompt.about(question, one, other)
        judged = await self.ask_judge([*self._system, {"role": "user", "content": content}])
        cut_off = judged.response.get("status") == "incomplete"
        label = self._prompt.verdict(judged.text, cut_off=cut_off)
        evaluation = {**judged.as_evaluation, "verdict_label": label}
        if label is None:
            why = CUT_OFF if cut_off else NO_LABEL
            if self._no_verdict == "failed":
                raise ParticipantError(Code.JUDGE_FAILED, f"{why}: {judged.text[-300:]!r}")
            evaluation["judgement_parsing_issues"] = [why]
        evaluations.append(evaluation)
        return self._prompt.is_equal(label)


def fill(prompt: str, **values: str) -> str:
    """The prompt with each `{name}` of `values` replaced, once: what is put in is not looked at again."""
    names = "|".join(map(re.escape, values))
    return re.sub(rf"\{{({names})\}}", lambda match: values[match[1]], prompt)


def broken_up(text: str, labels: Sequence[str]) -> str:
    """The text in which no label stands: a space comes behind the first sign of each."""
    for label in labels:
        # Wherever one begins, also within another: "===" has the label "==" twice.
        text = re.sub(f"(?={re.escape(label)}).", lambda match: f"{match[0]} ", text, flags=re.DOTALL)
    return text


def said_in(text: str, labels: Sequence[str], *, first: bool) -> str | None:
    """The label that is said first, or last, in a judge's text; None where none is."""
    places = [(text.find(label) if first else text.rfind(label), label) for label in labels]
    said = [(place, label) for place, label in places if place >= 0]
    if not said:
        return None
    return (min(said) if first else max(said))[1]


def expected_of(row: Mapping[str, Any]) -> str:
    """The expected answer, of the row or of its metadata. Raises `invalid_request` where there is none."""
    expected = row.get("expected_answer")
    if expected is None:
        expected = part_of(row, "metadata").get("expected_answer")
    if isinstance(expected, bool) or not isinstance(expected, str | int | float) or not str(expected).strip():
        raise ParticipantError(Code.INVALID_REQUEST, f"the row has no expected_answer, but {expected!r:.100}")
    return str(expected)


def question_of(row: Mapping[str, Any]) -> str:
    """The row's question, or else what its last user message asks; empty where neither is text."""
    if isinstance(question := row.get("question"), str):
        return question
    given = part_of(row, "responses_create_params").get("input")
    if isinstance(given, str):
        return given
    asked = [item.get("content") for item in _objects(given) if item.get("role") == "user"]
    if asked and isinstance(asked[-1], str):
        return asked[-1]
    return "".join(str(part.get("text", "")) for part in _objects(asked[-1] if asked else None))


def part_of(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field that is an object; empty where the row has none. Raises `invalid_request` for anything else."""
    found = row.get(name)
    if found is not None and not isinstance(found, Mapping):
        raise ParticipantError(Code.INVALID_REQUEST, f"the row's {name} is no object: {found!r:.200}")
    return found or {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
