"""The servers that ship, over rows in the shape of Gym."""

from typing import Any

import pytest

from participants.data import Request
from participants.errors import Code, ParticipantError
from participants.servers import CalculatorServer, CounterServer, WeatherServer, make_tasks
from participants.servers.calculator import extract_answer
from participants.servers.expressions import BadExpression, evaluate, write
from participants.tools import ToolError, tool, tools_of

from .harness import LIFE, NEXT, Caller, checkpoint, restore

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


def said(text: str) -> dict[str, Any]:
    """A Responses object with one message."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "r", "output": [{"type": "message", "role": "assistant", "content": content}]}


COUNTER_ROW: dict[str, Any] = {
    "responses_create_params": {
        "input": [{"role": "user", "content": "add 1 then add 2 then get the count"}],
        "tools": [
            {"type": "function", "name": "increment_counter", "parameters": {"type": "object"}, "strict": True},
            {"type": "function", "name": "get_counter_value", "parameters": {"type": "object"}, "strict": True},
        ],
    },
    "expected_count": 6,
    "initial_count": 3,
}


async def test_a_counter_row_runs_unmodified() -> None:
    """Seeded with the flat row, counted by tools, verified with the row and a response."""
    call = Caller(CounterServer())
    assert (await call("/seed_session", COUNTER_ROW)).body == {}
    assert (await call("/increment_counter", {"count": 1})).body == {"success": True}
    low = await call("/verify", {**COUNTER_ROW, "response": said("4")})
    await call("/increment_counter", {"count": 2})
    assert (await call("/get_counter_value")).body == {"count": 6}
    high = await call("/verify", {**COUNTER_ROW, "response": said("6")})
    assert [low.body["reward"], high.body["reward"]] == [0.0, 1.0]
    assert high.body["expected_count"] == 6


async def test_a_counter_takes_the_typed_body_too() -> None:
    """The same task under the typed episode protocol."""
    call = Caller(CounterServer())
    body = {
        "resources_session_id": "s",
        "episode_id": {"rollout_id": "r0", "attempt": 0},
        "task_id": {"taskset": "counter", "task_id": "0"},
        "task_data": {"initial_count": 3, "expected_count": 6},
    }
    assert (await call("/seed_session", body)).body == {"resources_session_id": "s"}
    assert (await call("/get_counter_value")).body == {"count": 3}


async def test_the_right_reward_needs_the_restored_session() -> None:
    """With the restore the counter goes on; without it the call is refused, and no reward is made up."""
    old = CounterServer()
    call = Caller(old)
    await call("/seed_session", COUNTER_ROW)
    await call("/increment_counter", {"count": 1})
    records = await checkpoint(old, {LIFE})
    for restored in (True, False):
        new = CounterServer()
        if restored:
            await restore(new, records)
        continued = Caller(new, NEXT, boundary=call.boundary)
        if restored:
            await continued("/increment_counter", {"count": 2})
            assert (await continued("/verify", {**COUNTER_ROW, "response": said("")})).body["reward"] == 1.0
        else:
            with pytest.raises(ParticipantError) as caught:
                await continued("/increment_counter", {"count": 2})
            assert caught.value.code is Code.STALE_LIFE


async def test_a_row_without_its_count_is_refused() -> None:
    """A seed without `initial_count` says so."""
    with pytest.raises(ParticipantError, match="initial_count is None") as caught:
        await Caller(CounterServer())("/seed_session", {"expected_count": 6})
    assert caught.value.code is Code.INVALID_REQUEST


async def test_a_weather_row_runs_unmodified_and_without_any_session() -> None:
    """A plain client that never seeded may call a stateless server's tool and verify."""
    server = WeatherServer()
    call = {"type": "function_call", "name": "get_weather", "arguments": '{"city": "Oslo"}', "call_id": "c"}
    row = {"responses_create_params": {"input": [{"role": "user", "content": "Weather in Oslo?"}]}}
    reply = await server.handle(Request(route="/get_weather", body={"city": "Oslo"}))
    assert (reply.body["city"], "cold" in reply.body["weather_description"]) == ("Oslo", True)
    for output, reward in (([call], 1.0), ([], 0.0)):
        verified = await server.handle(Request(route="/verify", body={**row, "response": {"output": output}}))
        assert verified.body["reward"] == reward


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("( 56 + -33 ) - 84", "-61"),
        ("0.1 + 0.2", "0.3"),
        ("6.062/9.923+4.250", "4.860903960495817797037186335"),
        ("2^10", "1024"),
        ("2**-2", "0.25"),
        ("81,333 * 2", "162666"),
        ("7 // 2 + 7 % 4", "6"),
        ("sqrt(2.25) + max(1, 2, 3)", "4.5"),
        ("gcd(641, 595) + lcm(4, 6)", "13"),
        ("round(2.675, 2)", "2.68"),
        ("8 ÷ 2 × 3 − 1", "11"),
        ("1e3", "1000"),
        ("+".join(["1"] * 250), "250"),
    ],
)
def test_arithmetic_is_exact(text: str, expected: str) -> None:
    """Fractions inside, decimal outside."""
    assert write(evaluate(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x + 1",
        "__import__('os')",
        "(1).real",
        "'a' * 3",
        "True + 1",
        "1 if 1 else 2",
        "[1]",
        "9**9**9**9",
        "10**(10**10)",
        "2**0.3",
        "1/0",
        "0**-1",
        "sqrt(0-1)",
        "gcd(1.5, 2)",
        "abs(1, 2)",
        "max()",
        "max(*[1])",
        "round(1, 1000)",
        "1e999",
        "1+" * 600 + "1",
        "(" * 300 + "1" + ")" * 300,
        "-" * 400 + "1",
    ],
)
def test_what_is_no_small_arithmetic_is_refused(text: str) -> None:
    """Names, attributes, text, huge numbers and deep nesting never run."""
    with pytest.raises(BadExpression):
        evaluate(text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> no, <answer> 2 </answer>", "2"),
        (r"So \boxed{1}, that is \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("work\n#### 42\nbye", "42"),
        ("first\n\n  last  \n", "last"),
        (r"\boxed{unfinished", r"\boxed{unfinished"),
        ("", None),
    ],
)
def test_the_answer_is_found_by_the_documented_rule(text: str, answer: str | None) -> None:
    """Tags first, then a box, then four hashes, then the last line."""
    assert extract_answer(text) == answer


async def test_the_calculator_shows_its_refusals_to_the_model() -> None:
    """A bad expression is a reply with a reason, not an error of the episode."""
    call = Caller(CalculatorServer())
    await call("/seed_session", {})
    assert (await call("/calculate", {"expression": "2 * 3"})).body == {"result": "6"}
    reply = await call("/calculate", {"expression": "1/0"})
    assert (reply.status, reply.body) == (400, {"error": "division by zero"})


async def test_a_calculator_row_without_its_entry_is_refused() -> None:
    """No reward of 0 for what cannot be scored."""
    call = Caller(CalculatorServer())
    await call("/seed_session", {})
    with pytest.raises(ParticipantError, match="reasoning_gym"):
        await call("/verify", {"response": said("1")})


def test_an_unknown_task_set_is_refused() -> None:
    """Its name is in the error."""
    pytest.importorskip("reasoning_gym", reason="comes with the extra `tasks`")
    with pytest.raises(ParticipantError, match="no_such_set"):
        make_tasks("no_such_set", 1, seed=1)


def test_a_tools_schema_comes_from_its_annotations() -> None:
    """Names, types, defaults and the docstring are what a model is shown."""
    schema = tools_of(CounterServer)["increment_counter"].schema
    assert schema["description"] == "Add a number to the counter."
    assert schema["parameters"] == {
        "additionalProperties": False,
        "properties": {"count": {"type": "integer"}},
        "required": ["count"],
        "type": "object",
    }


def test_a_tool_may_not_take_a_route_of_the_protocol() -> None:
    """A method named verify, or one that is not async, is refused where it is marked."""

    async def verify() -> None:
        """Not a tool."""

    def plain() -> None:
        """Not async."""

    for method in (verify, plain):
        with pytest.raises(TypeError):
            tool(method)  # type: ignore[type-var]
    assert ToolError("no").status == 400
