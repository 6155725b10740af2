"""Scripts: what the backend is to say, turn by turn, written into the conversation itself.

    <script>[{"filler": 40, "call": {"name": "get_weather", "arguments": {"city": "Rome"}}}, {"text": "done"}]</script>

The script is looked for in the user messages, the last one first, and then in the system messages. The k-th turn of the
assistant after the message that holds it performs step k; after the last step it says SCRIPT_OVER.
"""

import re
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .refusals import RequestRefused
from .template import Conversation, FunctionCall

SCRIPT_OVER = "The script is over."
MAX_FILLER_TOKENS = 100_000
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


class ScriptedCall(BaseModel):
    """One call of a tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    arguments: dict[str, Any] | str = {}
    """An object, or a string that is sent as it is, well formed or not."""

    def function_call(self) -> FunctionCall:
        """As it goes into the reply."""
        sent = self.arguments if isinstance(self.arguments, str) else orjson.dumps(self.arguments).decode()
        return FunctionCall(self.name, sent)


class Step(BaseModel):
    """One turn; with no field at all it is an empty reply."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    filler: Annotated[int, Field(ge=0, le=MAX_FILLER_TOKENS)] = 0
    """Tokens of plain words before everything else."""
    text: str = ""
    refusal: str | None = None
    call: ScriptedCall | None = None
    calls: tuple[ScriptedCall, ...] = ()
    """Several calls in one turn, after `call` if both are given."""

    def function_calls(self) -> tuple[FunctionCall, ...]:
        """All its calls in order."""
        every = (self.call, *self.calls) if self.call else self.calls
        return tuple(call.function_call() for call in every)


_STEPS: TypeAdapter[tuple[Step, ...]] = TypeAdapter(tuple[Step, ...])


def parse_script(text: str) -> tuple[Step, ...] | None:
    """The script in a text; None if it has none. One that cannot be read is the client's mistake."""
    match = _SCRIPT.search(text)
    if not match:
        return None
    try:
        return _STEPS.validate_json(match[1])
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise RequestRefused(
            f"the script is wrong at {where or 'its start'}: {problem['msg']}", param="script"
        ) from error


def scripted_step(conversation: Conversation) -> Step | None:
    """The step that is due now; None without a script."""
    messages = conversation.messages
    users = [n for n, message in enumerate(messages) if message.role == "user"]
    for n in reversed(users):
        if (steps := parse_script(messages[n].text)) is not None:
            return _due(steps, sum(message.role == "assistant" for message in messages[n:]))
    for message in messages:
        if message.role == "system" and (steps := parse_script(message.text)) is not None:
            return _due(steps, sum(turn.role == "assistant" for turn in messages))
    return None


def _due(steps: tuple[Step, ...], turns: int) -> Step:
    return steps[turns] if turns < len(steps) else Step(text=SCRIPT_OVER)
