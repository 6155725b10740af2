"""Calls of tools in generated text: read as the servers read them, also where a cut went through one."""

import json
import re
from typing import Any

import pytest

from participants.cuts import Anew, Prefix, Reason, Segment, finished, join, read
from participants.cuts.joining import call_id
from participants.cuts.toolformats import FORMATS, MARK_IDS, CannotTell, Said, named, told
from participants.inference import tokens

from .lagging import PROMPT, Lagging
from .uncut import CHAT, COMPLETIONS, RESPONSES, continued, streamed, whole

pytestmark = pytest.mark.unit

TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Zürich", "n": [1, 2]}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'


def marks_in(text: str) -> tuple[int, ...]:
    """Ids of marks for all their names in a text."""
    return tuple(MARK_IDS[name] for name in re.findall(r"<\|[a-z]+\|>", text))


@pytest.mark.parametrize(
    ("name", "raw", "parts"),
    [
        ("marks", "", []),
        ("marks", "a b<|end|>", [Said("text", "a b")]),
        ("marks", "a<|call|>f\n{}<|call|>g", [Said("text", "a"), Said("call", "f", "{}"), Said("call", "g")]),
        ("marks", "a<|refusal|>no<|call|>f\nx", [Said("text", "a"), Said("refusal", "no"), Said("call", "f", "x")]),
        ("marks", "<|call|>f\n1<|refusal|>no", [Said("call", "f", "1"), Said("refusal", "no")]),
        ("hermes", "", []),
        ("hermes", "a b", [Said("text", "a b")]),
        ("hermes", CALL, [Said("call", "f", '{"city": "Zürich", "n": [1, 2]}')]),
        ("hermes", f"so\n{OTHER}\n{CALL}", [Said("text", "so\n"), Said("call", "g", "{}"), Said("call", "f", "...")]),
        ("hermes", OTHER.removesuffix("</tool_call>"), [Said("call", "g", "{}")]),
        ("hermes", f"{OTHER} and more", [Said("call", "g", "{}")]),
        ("hermes", "<tool_call>{broken</tool_call>", [Said("text", "<tool_call>{broken</tool_call>")]),
        ("hermes", '<tool_call>["f"]</tool_call>', [Said("text", '<tool_call>["f"]</tool_call>')]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', [Said("text", '<tool_call>{"name": "f"}</tool_call>')]),
        ("hermes", f"{OTHER}<tool_call>{{", [Said("text", f"{OTHER}<tool_call>{{")]),
    ],
)
def test_text_is_read_as_parts(name: str, raw: str, parts: list[Said]) -> None:
    """Well formed calls are calls; a bad one leaves all of it content."""
    text = told(raw, marks_in(raw), all_shown=True) if name == "marks" else raw
    found = FORMATS[name].parse(text).parts
    assert [(part.kind, part.text) for part in found] == [(part.kind, part.text) for part in parts]
    for got, wanted in zip(found, parts, strict=True):
        assert wanted.arguments in (got.arguments, "...")


def pieces(text: str) -> list[bytes]:
    """Three characters a token."""
    return [text[at : at + 3].encode() for at in range(0, len(text), 3)]


@pytest.mark.parametrize("said", [CALL, f"I look.\n{OTHER}\n{CALL}", "no call at all", "<tool_call>\n{broken"])
@pytest.mark.parametrize("stop", [None, "rich", "zz"])
def test_a_cut_inside_a_call_ends_as_one_message(said: str, stop: str | None) -> None:
    """After every token: the joined message is that of the whole text, with the same ids of calls."""
    model = Lagging(pieces(said))
    body: dict[str, Any] = {"messages": [], "tools": TOOLS, "stop": stop, "return_token_ids": True}
    events = model.stream(CHAT, body)
    whole = read(CHAT, events)
    assert whole.reply is not None
    text = whole.reply["choices"][0]["message"]["content"]
    wanted = FORMATS["hermes"].parse(text)
    replies = []
    for k in range(1, len(events) - 1):
        prefix = read(CHAT, events[:k]).prefix
        outcome = model.continued(CHAT, body, prefix)
        assert not isinstance(outcome, Anew)
        assert outcome.whole.ids == whole.prefix.ids
        replies.append(outcome.reply["choices"][0])
    message = replies[0]["message"]
    assert all(reply["message"] == message for reply in replies)
    calls = [each["function"] for each in message.get("tool_calls") or ()]
    assert calls == [{"name": call.text, "arguments": call.arguments} for call in wanted.calls]
    assert all(json.loads(call["arguments"]) is not None for call in calls)
    assert {reply["finish_reason"] for reply in replies} == {"tool_calls" if calls else "stop"}
    assert (message["content"] or "") == wanted.content


def test_without_tools_no_calls_are_looked_for() -> None:
    """What looks like one is content then, as at the server."""
    model = Lagging(pieces(CALL))
    prefix = read(CHAT, model.stream(CHAT, {})[:4]).prefix
    outcome = model.continued(CHAT, {"messages": []}, prefix)
    assert not isinstance(outcome, Anew)
    assert outcome.reply["choices"][0]["message"] == {"role": "assistant", "content": CALL, "refusal": None}


def test_a_call_keeps_the_id_that_its_client_has_seen() -> None:
    """The id from the stream for those that had begun, made ones for the others, the same at each try."""
    raw = "<|call|>f\n{}<|call|>g\n{}"
    seen = Prefix(prompt=(1, 2), ids=marks_in(raw), calls=True, head={"id": "c", "call_ids": ["chatcmpl-tool-7"]})
    assert call_id(seen, 0) == "chatcmpl-tool-7"
    assert call_id(seen, 1) == call_id(Prefix(prompt=(1, 2)), 1)
    assert call_id(seen, 1) != call_id(seen, 2)
    assert call_id(Prefix(prompt=(1, 70_000)), 0) != call_id(Prefix(prompt=(1, 4_464)), 0)
    reply = join(CHAT, {"messages": []}, seen, finished("stop"), raw_text=raw, tool_format="marks")
    calls = reply["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["chatcmpl-tool-7", call_id(seen, 1)]
    assert "call_ids" not in reply


def test_segments_say_which_weights_made_which_tokens() -> None:
    """Two versions in one reply: the joined whole has one segment each, and the reply names the later."""
    model = Lagging(pieces("nothing but text"), version="4")
    prefix = read(CHAT, model.stream(CHAT, {})[:2]).prefix
    outcome = model.continued(CHAT, {"messages": []}, prefix, after=Lagging(model.pieces, version="5"))
    assert not isinstance(outcome, Anew)
    assert outcome.whole.prompt == PROMPT
    assert outcome.whole.segments == (Segment(0, 2, "4"), Segment(2, 5, "5"))
    assert outcome.reply["weight_version"] == "5"


def test_marks_are_those_of_the_backend() -> None:
    """Names and ids alike."""
    assert list(MARK_IDS) == list(tokens.MARKS)
    assert [chr(each) for each in MARK_IDS.values()][-2:] == [tokens.CALL, tokens.REFUSAL]


def test_names_are_told_by_ids() -> None:
    """All are marks, none is, or nobody knows; the text stays as long."""
    text = "a<|call|>b<|end|>"
    assert told(text, [97, 98]) == text
    found = told(text, [97, 262, 98, 256], all_shown=True)
    assert (len(found), named(found), "<" in found) == (len(text), text, False)
    assert told(text, [97, 98, 256]) == text  # No end is shown, so this is a name.
    with pytest.raises(CannotTell):
        told("<|call|><|call|>", [262, 60])


LITERAL: dict[str, list[Any]] = {
    "call": [{"text": "see <|call|>x\n{} ok"}],
    "end": [{"text": "write <|end|> then more"}],
    "refusal": [{"text": "a <|refusal|> b"}],
    "before a call": [{"text": "a <|refusal|> and <|user|> b", "call": {"name": "f", "arguments": {}}}],
}


@pytest.mark.enumerated(2)
@pytest.mark.parametrize("name", LITERAL)
@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("stop", [None, "<|zz", "then"])
def test_the_name_of_a_mark_as_plain_text_is_text(name: str, route: str, stop: str | None) -> None:
    """Cut anywhere, the reply is the uncut one: only ids say what is a call, a refusal or an end."""
    body = literal(route, LITERAL[name], stop)
    events, uncut = streamed(route, body), whole(route, body)
    for k in range(2, len(events)):
        prefix = read(route, events[:k]).prefix
        if not prefix.ids:
            continue
        outcome = continued(route, body, prefix)
        assert not isinstance(outcome, Anew)
        assert said_in(outcome.reply) == said_in(uncut)


def test_a_name_beside_its_mark_is_generated_anew_or_the_same() -> None:
    """Where nobody can tell which of two is the call, nothing is guessed."""
    body = literal(CHAT, [{"text": "see <|call|> ok", "call": {"name": "f", "arguments": {}}}], None)
    events, uncut = streamed(CHAT, body), whole(CHAT, body)
    reasons = set()
    for k in range(2, len(events)):
        outcome = continued(CHAT, body, read(CHAT, events[:k]).prefix)
        if isinstance(outcome, Anew):
            reasons.add(outcome.reason)
        else:
            assert said_in(outcome.reply) == said_in(uncut)
    assert reasons <= {Reason.MARKS, Reason.NOTHING_GENERATED}
    assert Reason.MARKS in reasons


def literal(route: str, script: list[Any], stop: str | None) -> dict[str, Any]:
    """A body whose reply says exactly this."""
    text = f"<script>{json.dumps(script)}</script>"
    shown = {"return_token_ids": True, "stop": stop}
    if route == COMPLETIONS:
        return {"prompt": f"<|user|>{text}<|end|><|assistant|>", "max_tokens": 100, **shown}
    if route == CHAT:
        return {"messages": [{"role": "user", "content": text}], "tools": TOOLS, **shown}
    return {"input": text, "tools": [{"type": "function", "name": "f"}], **shown}


def said_in(reply: dict[str, Any]) -> Any:
    """What was said, and why it ended."""
    if "output" in reply:
        return reply["status"], [{k: v for k, v in item.items() if k != "id"} for item in reply["output"]]
    [choice] = reply["choices"]
    return choice.get("message", choice.get("text")), choice["finish_reason"], choice["token_ids"]
