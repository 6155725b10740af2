"""What the assistant does next: a script, a rule for the tools it has, a forced call, or nothing in particular.

A rule belongs to a tool name. It sees the task (the last user message) and what happened since, and gives the next
turn:

    increment_counter   "add 1 then add 2 then get the count": one call a turn, the value at the end if it can be got
    get_weather         one call with the city that the task names, then a sentence with the result
    calculate           one call with the longest arithmetic expression of the task, then the result in the form asked
                        for: \\boxed{}, <answer></answer>, #### or plain

All of it is a function of the conversation alone.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from .script import scripted_step
from .template import Conversation, FunctionCall, ToolBox

_ADD = re.compile(r"\b(?:add|increment(?: it| the counter)?(?: by)?)\s+(-?\d+)", re.IGNORECASE)
_GET = re.compile(r"\b(?:get|read|count is|value)\b", re.IGNORECASE)
_CITY_AFTER = re.compile(r"\b(?:in|for|at)\s+((?:[A-Z][\w'-]*)(?:\s+[A-Z][\w'-]*)*)")
_CITY = re.compile(r"(?<!^)(?<![.!?] )\b([A-Z][\w'-]+(?:\s+[A-Z][\w'-]*)*)")
_EXPRESSION = re.compile(r"[-(]*\s*\d[\d\s.,()+*/%^-]*")
_OPERATOR = re.compile(r"[\d)]\s*[-+*/%^]")


@dataclass(frozen=True, slots=True)
class Turn:
    """What the assistant is to say."""

    filler: int = 0
    text: str = ""
    refusal: str | None = None
    calls: tuple[FunctionCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """What a rule sees."""

    text: str
    """The last user message."""
    asked: str
    """Everything that users and system have said: where the form of the answer may stand."""
    tools: frozenset[str]
    turns: int
    """Turns of the assistant since."""
    results: tuple[str, ...]
    """Results of tools since."""


Rule = Callable[[Task], Turn | None]


def decide(conversation: Conversation) -> Turn | None:
    """The next turn; None if it may be any text."""
    if step := scripted_step(conversation):
        return Turn(step.filler, step.text, step.refusal, step.function_calls())
    box = conversation.toolbox
    if box is None:
        return None
    task = _task(conversation, box)
    for tool, rule in RULES.items():
        if tool in task.tools and (turn := rule(task)):
            return turn
    return _forced(box) if box.choice != "auto" and not task.turns else None


def _task(conversation: Conversation, box: ToolBox) -> Task:
    messages = conversation.messages
    last = max((n for n, message in enumerate(messages) if message.role == "user"), default=0)
    since = messages[last:]
    return Task(
        text=messages[last].text if messages else "",
        asked="\n".join(message.text for message in messages if message.role in {"user", "system"}),
        tools=box.names(),
        turns=sum(message.role == "assistant" for message in since),
        results=tuple(message.text for message in since if message.role == "tool"),
    )


def _call(name: str, **arguments: object) -> Turn:
    return Turn(calls=(FunctionCall(name, orjson.dumps(arguments).decode()),))


def _field(result: str, name: str) -> str:
    """A field of a tool's JSON result, or the result as it is."""
    try:
        found = orjson.loads(result)
    except ValueError:
        return result
    return str(found[name]) if isinstance(found, dict) and name in found else result


def _counter(task: Task) -> Turn | None:
    amounts = [int(amount) for amount in _ADD.findall(task.text)]
    if task.turns < len(amounts):
        return _call("increment_counter", count=amounts[task.turns])
    reads = "get_counter_value" in task.tools and _GET.search(task.text)
    if reads and task.turns == len(amounts):
        return _call("get_counter_value")
    if not amounts and not reads:
        return None
    said = f"The counter is at {_field(task.results[-1], 'count')}." if reads and task.results else "Done."
    return Turn(text=said)


def _weather(task: Task) -> Turn | None:
    match = _CITY_AFTER.search(task.text) or _CITY.search(task.text)
    if not match:
        return None
    if not task.turns:
        return _call("get_weather", city=match[1])
    return Turn(text=f"The weather in {match[1]}: {_field((*task.results, '')[0], 'weather_description')}")


def find_expression(text: str) -> str:
    """The longest arithmetic expression in a text, or nothing."""
    found = (match[0].strip().rstrip(".,+*/%^- ").strip() for match in _EXPRESSION.finditer(text))
    return max((_balanced(each) for each in found if _OPERATOR.search(each)), key=len, default="")


def _balanced(expression: str) -> str:
    """Without a closing parenthesis that belongs to the sentence around it."""
    while expression.endswith(")") and expression.count(")") > expression.count("("):
        expression = expression[:-1].rstrip()
    return expression


def _calculator(task: Task) -> Turn | None:
    expression = find_expression(task.text)
    if not expression:
        return None
    if not task.turns:
        return _call("calculate", expression=expression)
    result = _field(("", *task.results)[-1], "result")
    return Turn(text=_in_form(result, task.asked))


def _in_form(result: str, asked: str) -> str:
    for sign, form in ((r"\boxed", "\\boxed{%s}"), ("<answer>", "<answer>%s</answer>"), ("####", "#### %s")):
        if sign in asked:
            return form % result
    return result


def _forced(box: ToolBox) -> Turn | None:
    """The call that `tool_choice` demands, with the simplest arguments that its schema allows."""
    for tool in box.tools:
        if box.choice in {"required", tool["name"]}:
            return _call(str(tool["name"]), **_simplest(tool.get("parameters")))
    return None


def _simplest(schema: object) -> dict[str, object]:
    if not isinstance(schema, dict):
        return {}
    simple = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    properties = schema.get("properties") or {}
    wanted = [name for name in schema.get("required") or [] if name in properties]
    return {name: simple.get(properties[name].get("type"), "text") for name in wanted}


RULES: dict[str, Rule] = {"increment_counter": _counter, "get_weather": _weather, "calculate": _calculator}
"""The first tool in this order that a conversation offers, and whose rule has something to say, decides."""
