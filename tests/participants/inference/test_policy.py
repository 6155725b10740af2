"""Scripts and rules decide the next turn from the conversation alone."""

import json

import pytest

from participants.inference.policy import RULES, Turn, decide, find_expression
from participants.inference.refusals import RequestRefused
from participants.inference.script import SCRIPT_OVER
from participants.inference.template import Conversation, FunctionCall, Message, ToolBox

pytestmark = pytest.mark.unit

RESULTS = {"increment_counter": '{"success": true}', "get_counter_value": '{"count": 6}'}


def box(*names: str, choice: str = "auto") -> ToolBox:
    """Tools without parameters."""
    return ToolBox(tuple({"name": name, "parameters": {}} for name in names), choice)


def episode(task: str, toolbox: ToolBox, results: dict[str, str], *, system: str = "") -> list[Turn]:
    """The turns of a whole episode, each call answered with its tool's result."""
    messages = [Message("system", system), Message("user", task)]
    turns: list[Turn] = []
    while not turns or turns[-1].calls:
        turn = decide(Conversation(tuple(messages), toolbox))
        assert turn is not None
        turns.append(turn)
        messages.append(Message("assistant", turn.text, turn.refusal, turn.calls))
        messages += [Message("tool", results[call.name]) for call in turn.calls]
    return turns


def called(turns: list[Turn]) -> list[tuple[str, object]]:
    """Name and arguments of each call."""
    return [(call.name, json.loads(call.arguments)) for turn in turns for call in turn.calls]


def script(*steps: object) -> str:
    """A script as text."""
    return f"please <script>{json.dumps(steps)}</script>"


def test_the_counter_rule_adds_and_reads() -> None:
    """The counter's dataset row is solved: one call for each amount, then the value, then a sentence."""
    turns = episode("add 1 then add 2 then get the count", box("increment_counter", "get_counter_value"), RESULTS)
    assert called(turns) == [
        ("increment_counter", {"count": 1}),
        ("increment_counter", {"count": 2}),
        ("get_counter_value", {}),
    ]
    assert turns[-1].text == "The counter is at 6."


def test_the_weather_rule_asks_for_the_city() -> None:
    """The city in the task is the argument."""
    turns = episode(
        "what's it like in San Francisco?", box("get_weather"), {"get_weather": '{"weather_description": "cold"}'}
    )
    assert called(turns) == [("get_weather", {"city": "San Francisco"})]
    assert turns[-1].text == "The weather in San Francisco: cold"


@pytest.mark.parametrize(
    ("system", "answer"),
    [
        ("", "7"),
        (r"Put it into \boxed{}.", r"\boxed{7}"),
        ("Answer as <answer>...</answer>", "<answer>7</answer>"),
        ("End with #### and the number", "#### 7"),
    ],
)
def test_the_calculator_rule_answers_in_the_form_asked_for(system: str, answer: str) -> None:
    """The tool's result is given in the form that the task or the system message asks for."""
    turns = episode("Calculate 1 + 2 * 3.", box("calculate"), {"calculate": '{"result": 7}'}, system=system)
    assert called(turns) == [("calculate", {"expression": "1 + 2 * 3"})]
    assert turns[-1].text == answer


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("State the final answer to the following arithmetic problem: 6 + 4 =", "6 + 4"),
        ("Calculate ( 3 - -5 ) * 2.", "( 3 - -5 ) * 2"),
        ("What (as in 2 of 3) is -7 / (1 - 4)?", "-7 / (1 - 4)"),
        ("an answer (of 3 + 4)", "3 + 4"),
        ("Row 12: no sum here, 3 apples", ""),
    ],
)
def test_the_longest_expression_is_found(text: str, expression: str) -> None:
    """Numbers of the sentence around an expression do not get into it."""
    assert find_expression(text) == expression


@pytest.mark.parametrize("tool", RULES)
def test_a_rule_with_nothing_to_say_leaves_it_open(tool: str) -> None:
    """A task that a rule does not understand gets any text."""
    assert decide(Conversation((Message("user", "hello"),), box(tool))) is None


def test_the_kth_turn_performs_step_k() -> None:
    """A script is followed turn by turn, with parallel calls, malformed arguments, a refusal, and then it is over."""
    task = script(
        {"filler": 9, "call": {"name": "a", "arguments": {"x": 1}}},
        {"text": "both", "calls": [{"name": "a", "arguments": "{not json"}, {"name": "b"}]},
        {"refusal": "no"},
    )
    turns = episode(task, box("a", "b"), {"a": "", "b": ""})
    assert turns == [
        Turn(filler=9, calls=(FunctionCall("a", '{"x":1}'),)),
        Turn(text="both", calls=(FunctionCall("a", "{not json"), FunctionCall("b", "{}"))),
        Turn(refusal="no"),
    ]
    over = [Message("user", task), *[Message("assistant")] * 3]
    assert decide(Conversation(tuple(over))) == Turn(text=SCRIPT_OVER)


def test_the_last_user_script_wins_and_counts_from_its_message() -> None:
    """A later user message starts its own script; a system script counts every turn."""
    first, second = script({"text": "one"}, {"text": "two"}), script({"text": "new"})
    talk = [Message("user", first), Message("assistant"), Message("user", second)]
    assert decide(Conversation(tuple(talk))) == Turn(text="new")
    by_system = [Message("system", first), Message("user", "x"), Message("assistant"), Message("user", "y")]
    assert decide(Conversation(tuple(by_system))) == Turn(text="two")


@pytest.mark.parametrize("wrong", ["[", "{}", '[{"say": 1}]', '[{"filler": -1}]'])
def test_a_wrong_script_is_refused(wrong: str) -> None:
    """A script that cannot be followed is an error of the request, never some text."""
    with pytest.raises(RequestRefused, match="script"):
        decide(Conversation((Message("user", f"<script>{wrong}</script>"),)))


def test_a_demanded_call_is_made() -> None:
    """tool_choice gets its call, with arguments that the schema allows."""
    schema = {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}, "o": {}}, "required": ["n", "s"]}
    toolbox = ToolBox(({"name": "x", "parameters": {}}, {"name": "y", "parameters": schema}), "y")
    turn = decide(Conversation((Message("user", "hi"),), toolbox))
    assert turn is not None
    assert called([turn]) == [("y", {"n": 1, "s": "text"})]
