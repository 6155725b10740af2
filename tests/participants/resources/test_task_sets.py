"""Task sets of reasoning-gym: rows and scores of any of its data sets, checked against the library's own answers.

Expected rewards are the library's: it calls its own answer right by giving it 1.0.
"""

import ast
import json
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from participants import ParticipantError
from participants.servers.calculator import FIELD, CalculatorServer, make_tasks
from participants.verifiers.gym_scoring import FORMULAS, LITERALS

from .harness import LIFE, Caller
from .test_servers import said

pytestmark = [pytest.mark.process, pytest.mark.anyio]
pytest.importorskip("reasoning_gym", reason="comes with the extra `tasks`")


async def made(name: str, size: int = 1, seed: int = 0, **about: Any) -> list[dict[str, Any]]:
    """Rows; some of the library's data sets read files for theirs."""
    return await anyio.to_thread.run_sync(lambda: make_tasks(name, size, seed, **about))


async def reward_of(row: dict[str, Any], answer: Any, server: CalculatorServer | None = None) -> dict[str, Any]:
    """What verify says of an answer to a row that has been a line of a file."""
    row = json.loads(json.dumps(row))
    mine = server or CalculatorServer()
    call = Caller(mine, replace(LIFE, rollout_id=secrets.token_hex(4)))
    try:
        await call("/seed_session", row)
        found: dict[str, Any] = (await call("/verify", {**row, "response": said(f"<answer>{answer}</answer>")})).body
    finally:
        if server is None:
            await mine.aclose()
    return found


@pytest.fixture
async def server() -> AsyncIterator[CalculatorServer]:
    """One that keeps its child process from answer to answer, and gives each 3 s."""
    made = CalculatorServer(score_cpu_s=3.0)
    yield made
    await made.aclose()


@pytest.mark.parametrize(
    "name", ["chain_sum", "leg_counting", "caesar_cipher", "number_sorting", "calendar_arithmetic"]
)
async def test_answers_are_scored_without_the_tool_too(name: str) -> None:
    """Rows that offer no tool say nothing of one, and are scored by the same server."""
    for row in await made(name, 2, 3, calculator=False):
        assert "tools" not in row["responses_create_params"]
        assert "calculate" not in row["responses_create_params"]["input"][0]["content"]
        assert (await reward_of(row, row[FIELD]["entry"]["answer"]))["reward"] == 1.0
        assert (await reward_of(row, "no idea"))["reward"] < 1.0


@pytest.mark.parametrize(
    "name", ["basic_arithmetic", "chain_sum", "simple_equations", "products", "decimal_arithmetic"]
)
async def test_generated_tasks_are_scored_by_their_data_set(name: str, server: CalculatorServer) -> None:
    """The same seed gives the same rows; the right answer gets 1.0 and a wrong one less."""
    rows = await made(name, 3, 7)
    assert rows == await made(name, 3, 7) != await made(name, 3, 8)
    row = rows[1]
    assert row["responses_create_params"]["tools"][0]["name"] == "calculate"
    assert (await reward_of(row, row[FIELD]["entry"]["answer"], server))["reward"] == 1.0
    assert (await reward_of(row, "nothing", server))["reward"] < 1.0


@pytest.mark.parametrize("name", [*LITERALS, *FORMULAS])
async def test_an_answer_is_never_run_as_code(name: str, tmp_path: Path, server: CalculatorServer) -> None:
    """Scorers of the library evaluate answers as Python: a right one keeps its reward, another one does nothing."""
    [row] = await made(name.rpartition(".")[2])
    entry, mark = row[FIELD]["entry"], tmp_path / "mark"
    right = entry["answer"] or entry["metadata"]["valid_answers"][0]
    assert (await reward_of(row, right, server))["reward"] == 1.0
    for code in (
        f"__import__('os').system('touch {mark}')",
        f"open('{mark}', 'w')",
        f"[open('{mark}', 'w') for _ in range(1)]",
        f"(lambda: open({str(mark)!r}, 'w'))()",
        f"sin.__class__.__base__ + open('{mark}', 'w')",
        f"S(\"open('{mark}', 'w')\")",
    ):
        assert (await reward_of(row, code, server))["reward"] < 0.1
    assert not mark.exists()


def test_every_scorer_that_evaluates_an_answer_is_known() -> None:
    """Another version of the library may bring one more: its module has to be named, or its answers are run."""
    [folder] = import_module("reasoning_gym").__path__
    found = set()
    for path in Path(folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "score_answer":
                evaluated = re.findall(r"\b(?:eval|exec|parse_expr|sympify)\((\w*)", ast.unparse(node))
                if "answer" in evaluated:
                    found.add(".".join(path.relative_to(folder).with_suffix("").parts))
    assert found == {*LITERALS, *FORMULAS}


async def test_an_answer_that_takes_for_ever_gets_nothing(server: CalculatorServer) -> None:
    """It holds nobody else up; the next one is scored."""
    [row] = await made("countdown")
    found = await reward_of(row, "9**9**9**9", server)
    assert (found["reward"], found["answer_error"]) == (0.0, "to score it takes over 3 s or too much memory")
    assert (await reward_of(row, row[FIELD]["entry"]["answer"], server))["reward"] == 1.0


@pytest.mark.parametrize("name", ["rearc"])
async def test_an_entry_that_json_changes_is_scored_as_it_was_made(name: str) -> None:
    """Its grids are tuples: after JSON the right answer would get 0.05."""
    [row] = await made(name)
    assert row[FIELD]["index"] == 0
    right = row[FIELD]["entry"]["answer"]
    assert (await reward_of(row, right))["reward"] == 1.0
    row[FIELD]["entry"]["metadata"]["output"] = [[0]]
    with pytest.raises(ParticipantError, match="makes another entry 0 than the row has"):
        await reward_of(row, right)


async def test_an_entry_with_keys_that_are_numbers_makes_a_row() -> None:
    """A colouring by hand, of the edges that the row names; and one that gives all vertices one colour."""
    [row] = await made("graph_color")
    puzzle = row[FIELD]["entry"]["metadata"]["puzzle"]
    colours: dict[int, int] = {}
    for vertex in puzzle["vertices"]:
        near = {colours.get(b if a == vertex else a) for a, b in puzzle["edges"] if vertex in (a, b)}
        colours[vertex] = min(colour for colour in puzzle["color_options"] if colour not in near)
    assert (await reward_of(row, json.dumps(colours)))["reward"] == 1.0
    assert (await reward_of(row, json.dumps(dict.fromkeys(colours, 1))))["reward"] < 1.0


async def test_an_answer_that_the_scorer_cannot_read_gets_nothing_and_says_why() -> None:
    """The library raises for words where it expects factors; where the entry is no better, nothing is scored."""
    [row] = await made("prime_factorization")
    found = await reward_of(row, "two threes")
    assert found["reward"] == 0.0
    assert found["answer_error"].startswith("ValueError: ")
    row[FIELD]["entry"]["answer"] = "no factors either"
    with pytest.raises(ParticipantError, match="raised ValueError"):
        await reward_of(row, "two threes")
