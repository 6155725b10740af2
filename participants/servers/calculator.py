"""A calculator tool, with tasks generated and scored by the reasoning-gym package, offline.

`make_tasks` gives rows of any of that package's data sets, the same for the same name, size and seed. A row carries the
entry that it was made from, and verify hands the model's answer to that data set's own `score_answer`.

The answer is, of the response's text: what stands between the last `<answer>` and `</answer>`; else in the last
`\\boxed{}`; else after the last `####` on its line; else the last line that is not empty.

The package comes with the extra `tasks` and takes seconds to import, so that happens at first use, in a worker thread.
"""

import importlib
import random
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import anyio.to_thread
import orjson

from ..cases import Case, Conformance, ToolCall
from ..errors import Code, ParticipantError
from ..output_text import output_text
from ..resources import ResourcesServer
from ..sessions import ResourcesSession
from ..tools import ToolError, tool, tools_of
from .expressions import BadExpression, evaluate, write

FIELD = "reasoning_gym"
"""Of a row: `{"dataset", "config", "entry"}`."""
INSTRUCTIONS = (
    "Solve the task. Use the calculate tool for every calculation. "
    "Then give the final answer, and nothing else, as <answer>the answer</answer>."
)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_HASHES = re.compile(r"####[ \t]*(\S[^\n]*)")


class CalculatorServer(ResourcesServer):
    """Calculates, and scores answers."""

    checkpoint_mode = "stateless"
    checkpoint_verify = "replay"

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
        if not isinstance(given, dict) or not {"dataset", "entry"} <= given.keys():
            raise ParticipantError(Code.INVALID_REQUEST, f"the row has no {FIELD} with a dataset and an entry")
        answer = extract_answer(output_text(row["response"]))
        reward = await anyio.to_thread.run_sync(_score, given, answer)
        return {"reward": reward, "extracted_answer": answer}

    @classmethod
    def conformance(cls) -> Conformance:
        """Sums in the form of the data set `chain_sum`; every third answer is wrong."""
        return Conformance(cases=list(_cases(random.Random(0))))


def _cases(chance: random.Random) -> Iterator[Case]:
    """Written here, so that to make them imports nothing; to score them does."""
    for number in range(60):
        terms = [chance.randint(1, 99) for _ in range(chance.randint(2, 5))]
        sums = [f"{sum(terms[:n])} + {terms[n]}" for n in range(1, len(terms))]
        entry = {"question": " + ".join(map(str, terms)), "answer": str(sum(terms)), "metadata": {}}
        calls = [ToolCall(name="calculate", arguments={"expression": each}) for each in sums]
        row = {FIELD: {"dataset": "chain_sum", "config": {"size": 1, "seed": 0}, "entry": entry}}
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


def make_tasks(name: str, size: int, seed: int, **config: Any) -> list[dict[str, Any]]:
    """`size` rows of one data set, such as `chain_sum`; blocks for seconds at first use.

    `config` are the data set's own settings. Raises `invalid_request` for a name or setting that does not exist.
    """
    given = {"size": size, "seed": seed, **config}
    dataset = _dataset(name, orjson.dumps(given, option=orjson.OPT_SORT_KEYS))
    try:
        entries = [orjson.loads(orjson.dumps(dataset[n])) for n in range(size)]
    except TypeError as error:
        raise ParticipantError(Code.INVALID_REQUEST, f"entries of the data set {name} are not JSON: {error}") from error
    tools = [tools_of(CalculatorServer)["calculate"].schema]
    return [_row(name, given, entry, tools) for entry in entries]


def _row(name: str, config: dict[str, Any], entry: dict[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any]:
    messages = [{"role": "developer", "content": INSTRUCTIONS}, {"role": "user", "content": entry["question"]}]
    return {
        "responses_create_params": {"input": messages, "tools": tools},
        FIELD: {"dataset": name, "config": config, "entry": entry},
    }


def _score(given: dict[str, Any], answer: str | None) -> float:
    dataset = _dataset(str(given["dataset"]), orjson.dumps(given.get("config") or {}, option=orjson.OPT_SORT_KEYS))
    return float(dataset.score_answer(answer=answer, entry=given["entry"]))


@lru_cache(maxsize=64)
def _dataset(name: str, config: bytes) -> Any:
    package = _package()
    try:
        return package.create_dataset(name, **orjson.loads(config))
    except (ValueError, TypeError, AssertionError) as error:
        raise ParticipantError(Code.INVALID_REQUEST, f"there is no such data set: {error!r:.300}") from error


def _package() -> Any:
    try:
        return importlib.import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        told = "pip install 'midflight[tasks]', or in a checkout pip install -e '.[tasks]'"
        raise ParticipantError(
            Code.INVALID_REQUEST, f"reasoning-gym is missing. Install the extra tasks: {told}"
        ) from error
