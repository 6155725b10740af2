"""A judge that is no model, and the cases that the verifiers with a judge are tried with.

The stand-in reads the two answers out of the prompts that ship and compares their words. It gives the same call the
same answer for ever, and is there for tests and benches: it judges nothing.
"""

import random
import re
from collections.abc import Iterator
from typing import Any

from ..cases import Case, Conformance
from ..data import Reply, Request

CASES = 60
_ANSWERS = re.compile(r"<(expected|generated)_answer>\n(.*?)\n</\1_answer>", re.DOTALL)
_WORD = re.compile(r"[a-z0-9]+")


class StandInJudge:
    """A peer of kind model: equal are answers of the same words, whatever stands between them."""

    def __init__(self, role: str = "model.main") -> None:
        """`role` is what verifiers call it by."""
        self.role = role

    async def call(self, request: Request) -> Reply:
        """A Chat Completions reply with one label."""
        shown = str(request.body["messages"][-1]["content"])
        one, other = (_WORD.findall(text.lower()) for _, text in _ANSWERS.findall(shown)[:2])
        said = f"The words are {one} and {other}.\n{'[[A=B]]' if one == other else '[[A!=B]]'}"
        message = {"role": "assistant", "content": said}
        usage = {"prompt_tokens": len(shown.split()), "completion_tokens": len(said.split())}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return Reply(200, {"id": "standin", "created": 0, "model": "standin", "choices": [choice], "usage": usage})


def equivalence_cases() -> Conformance:
    """Sums in words and signs: right, right in other signs, cut out by an expression, wrong, and with no answer."""
    judge = StandInJudge()
    options = {"check_twice_swap": True, "check_full_generation_on_fail": True}
    return Conformance(cases=list(_equivalence(random.Random(0))), options=options, peers={judge.role: judge})


def _equivalence(chance: random.Random) -> Iterator[Case]:
    for number in range(CASES):
        one, other = chance.randint(2, 99), chance.randint(2, 99)
        row: dict[str, Any] = {"question": f"{one} apples and {other}?", "expected_answer": f"{one + other} apples"}
        match number % 5:
            case 0:
                said = f"{one + other} apples"
            case 1:
                said = f"**{one + other}** Apples."
            case 2:
                said = f"I think.\nAnswer: {one + other} apples\nAnswer: {one + other + chance.randint(0, 1)} apples!"
                row["template_metadata"] = {"output_regex": r"^Answer: ([^\n]*)"}
            case 3:
                said = f"{one + other + 1} apples"
            case _:
                said = ""
        yield Case(row=row, said=said)


def math_cases() -> Conformance:
    """Fractions and sums: equal for the library, equal for the judge alone, wrong, and with nothing in a box."""
    judge = StandInJudge()
    return Conformance(cases=list(_math(random.Random(0))), peers={judge.role: judge})


def _math(chance: random.Random) -> Iterator[Case]:
    for number in range(CASES):
        top, factor = chance.randint(1, 9), chance.randint(2, 9)
        row = {"question": f"Simplify {top * factor}/{10 * factor}.", "expected_answer": rf"\frac{{{top}}}{{10}}"}
        match number % 5:
            case 0:
                said = rf"It is \boxed{{0.{top}}}."
            case 1:
                said = rf"It is \boxed{{\frac{{{top * factor}}}{{{10 * factor}}}}}."
            case 2:
                row["expected_answer"] = f"after {top} or more steps"
                said = rf"\boxed{{After {top}, or more, steps}}"
            case 3:
                said = rf"\boxed{{\frac{{{top}}}{{{10 + factor}}}}}"
            case _:
                said = rf"It is {top}/10, and \boxed{{ }} is empty."
        yield Case(row=row, said=said)
