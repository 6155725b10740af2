"""The limits of verifiers that compare answers: the library in this process, the judge alone."""

import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from participants.cases import Case, Conformance
from participants.data import Request

Work = Callable[[Case], Coroutine[Any, Any, None]]


@asynccontextmanager
async def bare_library(given: Conformance) -> AsyncIterator[Work]:
    """math-verify with nothing around it, one answer after the other: no process, no limit, no judge."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    library = import_module("math_verify")
    boxed = (library.LatexExtractionConfig(boxed_match_priority=0), library.ExprExtractionConfig())

    async def compare(case: Case) -> None:
        expected = rf"\boxed{{{case.row['expected_answer']}}}"
        gold = library.parse(expected, (library.LatexExtractionConfig(),), parsing_timeout=None)
        library.verify(gold, library.parse(case.said, boxed, parsing_timeout=None), timeout_seconds=None)

    yield compare


@asynccontextmanager
async def bare_judge(given: Conformance) -> AsyncIterator[Work]:
    """One call of the stand-in for each answer, with the two answers and no other word."""
    [judge] = given.peers.values()
    shown = "<expected_answer>\n{}\n</expected_answer><generated_answer>\n{}\n</generated_answer>"

    async def compare(case: Case) -> None:
        asked = [{"role": "user", "content": shown.format(case.row["expected_answer"], case.said)}]
        reply = await judge.call(Request(route="/v1/chat/completions", body={"messages": asked}))
        assert "[[A" in reply.body["choices"][0]["message"]["content"]

    yield compare
