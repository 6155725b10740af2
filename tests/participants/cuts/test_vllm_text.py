"""What vLLM's streams show where a prompt of ids ends inside a character or with a mark; seen with vLLM 0.32."""

from typing import Any

import orjson
import pytest

from participants.cuts import Prefix, finished, joined, read, watch

pytestmark = pytest.mark.unit

COMPLETIONS = "/v1/completions"
BODY: dict[str, Any] = {"prompt": "Say é", "temperature": 0}
STOPPED: dict[str, Any] = {**BODY, "stop": ["zebra"]}


def streamed(*texts: str) -> bytes:
    """Events of one id each, and the end."""
    choices: list[dict[str, Any]] = [{"text": text, "token_ids": [50 + n]} for n, text in enumerate(texts)]
    choices[-1]["finish_reason"] = "length"
    return b"".join(b"data: " + orjson.dumps({"choices": [{"index": 0, **each}]}) + b"\n\n" for each in choices)


def text_of(body: dict[str, Any], shown: str, raw: str, whole: str | None, *texts: str) -> str:
    """The joined text of a prefix that showed `shown`, and the rest as it was streamed."""
    prefix = Prefix(prompt=(1, 2), ids=tuple(range(10, 10 + len(raw))), text=shown)
    rest = read(COMPLETIONS, [streamed(*texts)])
    found = joined(COMPLETIONS, body, prefix, rest, raw_text=raw, whole_text=whole).reply["choices"][0]
    text: str = found["text"]
    return text


@pytest.mark.parametrize("shown", ["", "Yes, "])
@pytest.mark.parametrize(
    "texts",
    [
        ("", "Say Yes, \u00e9", " and", " more"),
        ("Say ", "Yes, \u00e9 ", "and more"),
    ],
)
def test_what_is_shown_again_after_half_a_character_is_left_out(shown: str, texts: tuple[str, ...]) -> None:
    """The end of the prompt and of the prefix comes once more before the character; it is no text of the rest."""
    raw, whole = f"{shown}\ufffd", f"{shown}\u00e9 and more"
    texts = tuple(text.replace("Yes, ", shown) for text in texts)
    assert text_of(BODY, shown, raw, whole, *texts) == whole


def test_an_end_that_is_not_shown_does_not_hide_what_comes_twice() -> None:
    """The text of the ids has a mark at its end that the stream has not."""
    assert text_of(BODY, "", "\ufffd", "\u00e9 and<|end|>", "Say \u00e9", " and", "") == "\u00e9 and"


def test_a_mark_right_before_a_cut_is_not_shown() -> None:
    """Without stop strings a text never lags by more than half a character."""
    assert text_of(BODY, "one", "one<|user|>", None, " two") == "one two"


def test_text_that_lags_behind_for_a_stop_string_is_shown() -> None:
    """As much as may begin one."""
    assert text_of(STOPPED, "one ", "one ze", None, "al") == "one zeal"
    assert text_of(STOPPED, "one ", "one <|user|>ze", None, "al") == "one zeal"


def test_tokens_are_told_apart_while_a_stop_string_may_end() -> None:
    """Log probabilities are asked for then, where the caller has not; in no other case."""
    asked = {"prompt": [1], "stop": ["zebra"]}
    for raw, expected in (("one ze", {"prompt": [1], "logprobs": 0}), ("one", asked)):
        begun = watch(STOPPED, Prefix(prompt=(1,), ids=(2,), text="one"), route=COMPLETIONS, raw_text=raw)
        assert begun.asked(asked) == expected
    assert begun.asked({**asked, "logprobs": 3})["logprobs"] == 3


def test_a_stop_string_that_the_prefix_has_whole_is_named() -> None:
    """For a server that says which one it was, though nothing is asked of it any more."""
    prefix = Prefix(prompt=(1,), ids=(2, 3), text="one ")
    rest = finished("stop", says_stop_reason=True)
    reply = joined(COMPLETIONS, STOPPED, prefix, rest, raw_text="one zebra").reply
    assert (reply["choices"][0]["text"], reply["choices"][0]["stop_reason"]) == ("one ", "zebra")
