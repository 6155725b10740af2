"""A calculator tool, with tasks generated and scored by the reasoning-gym package, offline.

`make_tasks` gives rows of any of that package's data sets, the same for the same name, size and seed, with the tool or
without. A row carries the entry that it was made from, and verify hands the model's answer to that data set's own
`score_answer`. An entry that is scored otherwise once it was JSON, which has no tuples, is made again from its index.

A scorer may raise for an answer that it cannot read, or take too long for it. Where it does neither for the entry's own
answer, the model's is no answer: 0.0, and why stands in `answer_error`. Where it does, nothing was scored, and verify
fails. Scorers other than the library's comparison of texts run in child processes, in which nothing runs an answer as
code (`verifiers.gym_scoring`).

The answer is, of the response's text: what stands between the last `<answer>` and `</answer>`; else in the last
`\\boxed{}`; else after the last `####` on its line; else the last line that is not empty.

The package comes with the extra `tasks` and takes seconds to import, so that happens at first use, in a worker thread.
"""

import os
import random
import re
from collections.abc import Iterator
from typing import Any

import anyio.to_thread
import orjson

from ..cases import Case, Conformance, ToolCall
from ..errors import Code, ParticipantError
from ..output_text import output_text
from ..resources import ResourcesServer
from ..sessions import ResourcesSession
from ..tools import ToolError, tool, tools_of
from ..verifiers.bounded import BoundedWork, UsedUp
from ..verifiers.gym_scoring import as_json, compares_text, dataset_of, score_by_gym
from .expressions import BadExpression, evaluate, write

FIELD = "reasoning_gym"
"""Of a row: `{"dataset", "config", "entry"}`, and `index` where the entry is not scored alike once it was JSON."""
INSTRUCTIONS = "Solve the task. {}Then give the final answer, and nothing else, as <answer>the answer</answer>."
SCORE_CPU_S = 30.0
"""Processor time of one score, the making of its data set included."""
SCORES_AT_ONCE = 8
USE_TOOL = "Use the calculate tool for every calculation. "
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_HASHES = re.compile(r"####[ \t]*(\S[^\n]*)")


class CalculatorServer(ResourcesServer):
    """Calculates, and scores answers."""

    checkpoint_mode = "stateless"
    checkpoint_verify = "replay"

    def __init__(self, name: str = "main", *, score_cpu_s: float = SCORE_CPU_S, **options: Any) -> None:
        """`score_cpu_s` is processor time of one score. Raises ValueError."""
        super().__init__(name, **options)
        if not score_cpu_s > 0:
            raise ValueError("score_cpu_s must be more than 0")
        self._cpu_s = score_cpu_s
        self.bounded = BoundedWork(min(SCORES_AT_ONCE, os.cpu_count() or 1))

    async def aclose(self) -> None:
        """Free sessions and child processes."""
        await super().aclose()
        await self.bounded.aclose()

    @tool
    async def calculate(self, session: ResourcesSession, expression: str) -> dict[str, Any]:
        """Evaluate an arithmetic expression exactly, such as (2 + 3) * 4 / 7."""
        try:
            return {"result": write(evaluate(expression))}
        except BadExpression as error:
            raise ToolError(str(error)) from error

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """What the row's data set says of the answer, from 0.0 to 1.0."""
        given = row.get(FIELD)
        if not isinstance(given, dict) or "dataset" not in given or not isinstance(given.get("entry"), dict):
            raise ParticipantError(Code.INVALID_REQUEST, f"the row has no {FIELD} with a dataset and an entry")
        answer = extract_answer(output_text(row["response"]))
        return {**await self._scored(given, answer), "extracted_answer": answer}

    async def _scored(self, given: dict[str, Any], answer: str | None) -> dict[str, Any]:
        try:
            return await self._score(given, answer)
        except UsedUp:
            told = f"takes over {self._cpu_s:g} s or too much memory"
        try:
            await self._score(given, given["entry"].get("answer"))
        except UsedUp as error:
            raise ParticipantError(Code.INVALID_REQUEST, f"to score this row's own answer {told}") from error
        return {"reward": 0.0, "answer_error": f"to score it {told}"}

    async def _score(self, given: dict[str, Any], answer: str | None) -> dict[str, Any]:
        if await anyio.to_thread.run_sync(compares_text, given):  # No child need be started for it.
            found = await anyio.to_thread.run_sync(score_by_gym, given, answer)
        else:
            found = await self.bounded.do("score_by_gym", self._cpu_s, given=given, answer=answer)
        if "refused" in found:
            raise ParticipantError(Code.INVALID_REQUEST, found["refused"])
        return found

    @classmethod
    def conformance(cls) -> Conformance:
        """Sums in the form of the data set `basic_arithmetic`; every third answer is wrong."""
        return Conformance(cases=list(_cases(random.Random(0))))


def _cases(chance: random.Random) -> Iterator[Case]:
    """Written here, so that to make them imports nothing; to score them does."""
    for number in range(60):
        terms = [chance.randint(1, 99) for _ in range(chance.randint(2, 5))]
        sums = [f"{sum(terms[:n])} + {terms[n]}" for n in range(1, len(terms))]
        entry = {"question": " + ".join(map(str, terms)), "answer": str(sum(terms)), "metadata": {}}
        calls = [ToolCall(name="calculate", arguments={"expression": each}) for each in sums]
        row = {FIELD: {"dataset": "basic_arithmetic", "config": {"size": 1, "seed": 0}, "entry": entry}}
        yield Case(row=row, calls=calls, said=f"<answer>{sum(terms) + (number % 3 == 2)}</answer>")


def extract_answer(text: str) -> str | None:
    """The answer by the rule above; None if there is no text."""
    if marked := _ANSWER.findall(text):
        return str(marked[-1]).strip()
    if (boxed := _last_boxed(text)) is not None:
        return boxed.strip()
    if hashes := _HASHES.findall(text):
        return str(hashes[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else None


def _last_boxed(text: str) -> str | None:
    """Braces may nest, as in \\boxed{\\frac{1}{2}}."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    begin = start + len(r"\boxed{")
    depth = 1
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position]
    return None


def make_tasks(name: str, size: int, seed: int, *, calculator: bool = True, **config: Any) -> list[dict[str, Any]]:
    """`size` rows of one data set, such as `chain_sum`; blocks for seconds at first use.

    `calculator` offers the tool; `config` are the data set's own settings. Raises `invalid_request` for a name or
    setting that does not exist, and for entries that JSON cannot say.
    """
    given = {"size": size, "seed": seed, **config}
    dataset = _dataset(name, orjson.dumps(given, option=orjson.OPT_SORT_KEYS))
    try:
        made = [dataset[n] for n in range(size)]
    except Exception as error:  # The library's, of settings that it has not checked.
        told = f"the data set {name} makes no {size} entries with these settings: {error!r:.300}"
        raise ParticipantError(Code.INVALID_REQUEST, told) from error
    try:
        entries = [as_json(entry) for entry in made]
    except TypeError as error:
        raise ParticipantError(Code.INVALID_REQUEST, f"entries of the data set {name} are not JSON: {error}") from error
    facts = [
        {"dataset": name, "config": given, "entry": entry, **({} if _alike(dataset, made[n], entry) else {"index": n})}
        for n, entry in enumerate(entries)
    ]
    return [_row(each, calculator=calculator) for each in facts]


def _row(facts: dict[str, Any], *, calculator: bool) -> dict[str, Any]:
    told = INSTRUCTIONS.format(USE_TOOL if calculator else "")
    messages = [{"role": "developer", "content": told}, {"role": "user", "content": facts["entry"]["question"]}]
    tools = {"tools": [tools_of(CalculatorServer)["calculate"].schema]} if calculator else {}
    return {"responses_create_params": {"input": messages, **tools}, FIELD: facts}


def _alike(dataset: Any, made: Any, entry: Any) -> bool:
    """Whether an entry is scored alike after it was JSON, as its own answer shows where it has one."""
    answer = made.get("answer")
    if made == entry or answer is None:
        return bool(made == entry)
    try:
        return bool(dataset.score_answer(answer=answer, entry=entry) == dataset.score_answer(answer=answer, entry=made))
    except Exception:  # The scorer's, of whatever JSON has made of the entry.
        return False


def _dataset(name: str, config: bytes) -> Any:
    try:
        return dataset_of(name, config)
    except ValueError as error:
        raise ParticipantError(Code.INVALID_REQUEST, str(error)) from error
    except ModuleNotFoundError as error:
        told = "pip install 'midflight[tasks]', or in a checkout pip install -e '.[tasks]'"
        raise ParticipantError(
            Code.INVALID_REQUEST, f"reasoning-gym is missing. Install the extra tasks: {told}"
        ) from error
