"""The official OpenAI client works unchanged: chat, completions and responses, streamed and not, with tools."""

import json
from typing import Any

import pytest
from openai import APIStatusError, OpenAI

from tests.support.backend import RunningBackend

pytestmark = pytest.mark.process

COUNTER: list[dict[str, Any]] = [
    {"name": "increment_counter", "parameters": {"type": "object"}},
    {"name": "get_counter_value"},
]
CHAT_TOOLS: Any = [{"type": "function", "function": tool} for tool in COUNTER]
RESPONSE_TOOLS: Any = [{"type": "function", "parameters": {}, **tool} for tool in COUNTER]
TASK = "add 1 then add 2 then get the count"
DONE = "The counter is at 3."
MIXED = (
    'go <script>[{"filler": 5, "text": "é", "calls": [{"name": "a", "arguments": {"x": "ü"}}, '
    '{"name": "b", "arguments": "{bad"}]}]</script>'
)


class Counter:
    """What the tools of a counter do."""

    def __init__(self) -> None:
        self.count = 0

    def call(self, name: str, arguments: str) -> str:
        """The result of one call as JSON."""
        if name == "increment_counter":
            self.count += json.loads(arguments)["count"]
            return '{"success": true}'
        return json.dumps({"count": self.count})


def test_chat_solves_the_counter_task(backend: RunningBackend, client: OpenAI) -> None:
    """A tool loop over Chat makes the calls of the task and ends with the value; each model call is recorded once."""
    counter = Counter()
    messages: list[Any] = [{"role": "user", "content": TASK}]
    while (choice := _chat(client, backend.model, messages)).finish_reason == "tool_calls":
        messages.append(choice.message)
        for call in choice.message.tool_calls:
            result = counter.call(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert (counter.count, choice.finish_reason, choice.message.content) == (3, "stop", DONE)
    assert [call.state for call in backend.control.calls()] == ["finished"] * 4


def _chat(client: OpenAI, model: str, messages: list[Any]) -> Any:
    return client.chat.completions.create(model=model, messages=messages, tools=CHAT_TOOLS).choices[0]


def test_responses_solve_the_counter_task_streamed(backend: RunningBackend, client: OpenAI) -> None:
    """A tool loop over streamed Responses, its output items sent back as they came, does the same."""
    counter = Counter()
    items: list[Any] = [{"role": "user", "content": TASK}]
    while True:
        with client.responses.stream(model=backend.model, input=items, tools=RESPONSE_TOOLS) as stream:
            response = stream.get_final_response()
        items += [item.model_dump(exclude={"parsed_arguments"}) for item in response.output]
        calls: list[Any] = [item for item in response.output if item.type == "function_call"]
        for call in calls:
            result = counter.call(call.name, call.arguments)
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
        if not calls:
            break
    assert (counter.count, response.output_text, response.status) == (3, DONE, "completed")
    assert backend.control.counts()["finished"] == 4


def test_chat_streams_what_it_answers_whole(backend: RunningBackend, client: OpenAI) -> None:
    """The deltas of a stream add up to the reply without one: text, parallel calls, ids of calls, reason, usage."""
    asked: Any = {"model": backend.model, "messages": [{"role": "user", "content": MIXED}]}
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.content == whole.choices[0].message.content
    calls, others = whole.choices[0].message.tool_calls or [], streamed.choices[0].message.tool_calls or []
    assert [_call(call) for call in calls] == [_call(call) for call in others]
    assert [_call(call)[1:] for call in calls] == [("a", '{"x":"ü"}'), ("b", "{bad")]
    assert streamed.choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"
    assert streamed.usage == whole.usage


def _call(call: Any) -> tuple[str, str, str]:
    return call.id, call.function.name, call.function.arguments


def test_responses_stream_what_they_answer_whole(backend: RunningBackend, client: OpenAI) -> None:
    """The events of a stream build the response that comes without one."""
    whole = client.responses.create(model=backend.model, input=MIXED, instructions="be brief")
    with client.responses.stream(model=backend.model, input=MIXED, instructions="be brief") as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    assert [_item(item) for item in streamed.output] == [_item(item) for item in whole.output]
    assert [item.type for item in whole.output] == ["message", "function_call", "function_call"]
    assert streamed.usage == whole.usage
    assert [event.sequence_number for event in events] == list(range(len(events)))


def _item(item: Any) -> tuple[str, ...]:
    if item.type == "message":
        return (item.type, *(part.text for part in item.content))
    return (item.type, item.call_id, item.name, item.arguments)


def test_completions_stream_what_they_answer_whole(backend: RunningBackend, client: OpenAI) -> None:
    """Text, token ids and log probabilities are the same with and without a stream, and the usage is exact."""
    asked: Any = {
        "model": backend.model,
        "prompt": "once",
        "max_tokens": 40,
        "logprobs": 2,
        "extra_body": {"return_token_ids": True, "ignore_eos": True},
    }
    whole: Any = client.completions.create(**asked)
    chunks: list[Any] = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.text for choice in choices) == whole.choices[0].text
    assert [number for choice in choices[:-1] for number in choice.token_ids] == whole.choices[0].token_ids
    scores = [score for choice in choices[:-1] for score in choice.logprobs.token_logprobs]
    assert scores == whole.choices[0].logprobs.token_logprobs
    assert choices[0].prompt_token_ids == whole.choices[0].prompt_token_ids
    assert choices[-1].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens == 40


@pytest.mark.parametrize("cut", [0, 1, 7, 25])
def test_a_chat_turn_continues_as_a_completion(backend: RunningBackend, client: OpenAI, cut: int) -> None:
    """The ids of a chat's prompt and of part of its reply, sent as a completion, give exactly the rest."""
    messages: Any = [{"role": "user", "content": MIXED}]
    chat: Any = client.chat.completions.create(
        model=backend.model, messages=messages, extra_body={"return_token_ids": True}
    )
    ids = chat.choices[0].token_ids
    rest: Any = client.completions.create(
        model=backend.model,
        prompt=chat.prompt_token_ids + ids[:cut],
        max_tokens=1000,
        extra_body={"return_token_ids": True},
    )
    assert rest.choices[0].token_ids == ids[cut:]
    assert rest.choices[0].finish_reason == "stop"
    assert rest.usage.completion_tokens == chat.usage.completion_tokens - cut


def test_refusals_empty_replies_and_limits_are_told_apart(backend: RunningBackend, client: OpenAI) -> None:
    """Chat and Responses say a refusal as such, an empty reply as nothing, and a cut reply as cut."""
    steps = ('{"refusal": "no"}', "{}", '{"filler": 9}')
    refuse, nothing, long = (f"<script>[{step}]</script>" for step in steps)
    chats: Any = [
        client.chat.completions.create(model=backend.model, messages=[{"role": "user", "content": text}], max_tokens=5)
        for text in (refuse, nothing, long)
    ]
    shown = [(chat.choices[0].message.content, chat.choices[0].message.refusal) for chat in chats]
    assert shown[:2] == [(None, "no"), ("", None)]
    assert [chat.choices[0].finish_reason for chat in chats] == ["stop", "stop", "length"]
    made: Any = [
        client.responses.create(model=backend.model, input=text, max_output_tokens=5)
        for text in (refuse, nothing, long)
    ]
    assert made[0].output[0].content[0].refusal == "no"
    assert made[1].output == []
    assert [each.status for each in made] == ["completed", "completed", "incomplete"]
    assert made[2].incomplete_details.reason == "max_output_tokens"


def test_a_script_in_the_metadata_is_followed(backend: RunningBackend, client: OpenAI) -> None:
    """Both dialects that have metadata take a script from there."""
    metadata = {"script": '[{"text": "from metadata"}]'}
    chat = client.chat.completions.create(
        model=backend.model, messages=[{"role": "user", "content": "hi"}], metadata=metadata
    )
    made = client.responses.create(model=backend.model, input="hi", metadata=metadata)
    assert chat.choices[0].message.content == made.output_text == "from metadata"


def test_log_probabilities_come_with_chat_and_responses(backend: RunningBackend, client: OpenAI) -> None:
    """Each token has its own and the alternatives asked for, the same in both."""
    chat = client.chat.completions.create(
        model=backend.model, messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=3, max_tokens=4
    )
    made: Any = client.responses.create(
        model=backend.model,
        input="hi",
        include=["message.output_text.logprobs"],
        top_logprobs=3,
        max_output_tokens=4,
    )
    assert chat.choices[0].logprobs is not None
    entries = chat.choices[0].logprobs.content or []
    others = made.output[0].content[0].logprobs
    assert [entry.logprob for entry in entries] == [entry.logprob for entry in others]
    assert [len(entry.top_logprobs) for entry in entries] == [3] * 4
    assert made.output_text == "".join(entry.token for entry in entries)


@pytest.mark.parametrize(
    ("status", "says", "wrong"),
    [
        (404, "does not exist", {"model": "other"}),
        (400, "n must be 1", {"n": 2}),
        (400, "content of type image_url", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        (400, "tool_choice", {"tool_choice": {"type": "function", "function": {"name": "x"}}}),
        (400, "the script is wrong", {"messages": [{"role": "user", "content": "<script>?</script>"}]}),
        (400, "messages", {"messages": []}),
    ],
)
def test_what_is_not_served_is_refused(
    backend: RunningBackend, client: OpenAI, status: int, says: str, wrong: dict[str, Any]
) -> None:
    """A request that would be answered wrongly gets OpenAI's form of an error, and is no call."""
    asked: Any = {"model": backend.model, "messages": [{"role": "user", "content": "hi"}]} | wrong
    with pytest.raises(APIStatusError, match=says) as refused:
        client.chat.completions.create(**asked)
    assert refused.value.status_code == status
    assert backend.control.calls() == []


def test_the_same_conversation_is_the_same_prompt_in_both_dialects(backend: RunningBackend, client: OpenAI) -> None:
    """Text and parallel calls of one turn, as items or as one message, render to the same ids."""
    result = "ok"
    items: list[Any] = [{"role": "user", "content": MIXED}]
    made = client.responses.create(model=backend.model, input=items)
    items += [item.model_dump() for item in made.output]
    calls: list[Any] = [item for item in made.output if item.type == "function_call"]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": result} for call in calls]
    client.responses.create(model=backend.model, input=items)
    messages: list[Any] = [{"role": "user", "content": MIXED}]
    message = client.chat.completions.create(model=backend.model, messages=messages).choices[0].message
    messages += [message, *({"role": "tool", "tool_call_id": c.call_id, "content": result} for c in calls)]
    client.chat.completions.create(model=backend.model, messages=messages)
    digests = [call.prompt_sha256 for call in backend.control.calls()]
    assert digests[:2] == digests[2:]
    assert len(set(digests)) == 2
