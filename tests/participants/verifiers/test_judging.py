"""A judge is asked once, in a bounded time and number, and whatever it fails in is a typed failure."""

from typing import Any

import anyio
import pytest

from participants import Code, Gate, ParticipantError
from participants.data import CallId, Reply
from participants.verifiers.comparing import broken_up, fill, said_in
from participants.verifiers.equivalence_llm_judge import EquivalenceLLMJudgeServer
from participants.verifiers.judging import PASSED_ON
from store import Life

from .judges import LIFE, ScriptedJudge, chat_reply, verify

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

ROW = {"question": "2 + 2?", "expected_answer": "4"}
EQUAL, OTHER = "[[A=B]]", "[[A!=B]]"
SAID = {"role": "assistant", "content": "If so [[A=B]], but"}


def judged_by(peer: ScriptedJudge, **options: Any) -> EquivalenceLLMJudgeServer:
    """A verifier with this judge."""
    return EquivalenceLLMJudgeServer(peers={peer.role: peer}, **options)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(429, {"error": {"message": "slow down"}}), "answered 429"),
        (Reply(404, "no such model"), "answered 404"),
        (Reply(200, "<html>"), "no JSON object"),
        (Reply(200, {"error": "overloaded"}), "an error"),
        (Reply(200, {"choices": []}), "no list of choices"),
        (Reply(200, {"choices": [{"message": {"content": 7}}]}), "a choice without a message"),
        (chat_reply(None), "said nothing"),
        (chat_reply("  \n"), "said nothing"),
        (chat_reply("I wonder. [[A=B]]</think>"), "said nothing"),
        (chat_reply("<think>Perhaps [[A=B]], or"), "said nothing"),
        (Reply(200, {"choices": [{"message": SAID, "finish_reason": "length"}]}), "cut off before its last label"),
        (chat_reply(None, refusal="I would rather not say [[A=B]]"), "said nothing"),
        (chat_reply(None, reasoning_content="surely [[A=B]]"), "said nothing"),
        (chat_reply("They are the same."), "neither label"),
        (ParticipantError(Code.MODEL_FAILED, "gone", {"reason": "unreachable"}), "gone"),
        (ParticipantError(Code.DEADLINE_EXCEEDED, "too late"), "too late"),
        (ParticipantError(Code.INTERNAL, "a bug"), "a bug"),
    ],
)
async def test_a_judge_that_gives_no_verdict_is_a_failure_and_no_reward(
    reply: Reply | ParticipantError, says: str
) -> None:
    """Refusals, errors, what is no generation, silence, thoughts alone and the model server's own failures."""
    with pytest.raises(ParticipantError, match=says) as failed:
        await verify(judged_by(ScriptedJudge([reply])), ROW, "4")
    assert failed.value.code is Code.JUDGE_FAILED


@pytest.mark.parametrize("body", ["<html>", {"output": "[[A=B]]"}, {"error": {}, "output": []}, {"output": []}])
async def test_a_judge_that_speaks_the_other_dialect_fails_alike(body: Any) -> None:
    """What is no list of items, and one without a message."""
    judge = ScriptedJudge([Reply(200, body)])
    with pytest.raises(ParticipantError) as failed:
        await verify(judged_by(judge, judge_dialect="responses"), ROW, "4")
    assert failed.value.code is Code.JUDGE_FAILED


@pytest.mark.parametrize("code", sorted(PASSED_ON))
async def test_a_loss_among_the_runs_own_servers_is_no_failure_of_the_judge(code: Code) -> None:
    """Its controller knows what to do about it, by its code."""
    with pytest.raises(ParticipantError) as failed:
        await verify(judged_by(ScriptedJudge([ParticipantError(code, "the judge's worker")])), ROW, "4")
    assert failed.value.code is code


async def test_after_a_failure_the_same_verify_asks_again_and_is_rewarded() -> None:
    """Nothing of the failure is kept: a judge that is back gives the reward that it would have given."""
    judge = ScriptedJudge([ParticipantError(Code.MODEL_FAILED, "down"), EQUAL])
    server = judged_by(judge)
    with pytest.raises(ParticipantError):
        await verify(server, ROW, "4")
    assert (await verify(server, ROW, "4"))["reward"] == 1.0
    assert judge.asked[0].body == judge.asked[1].body


class Clock:
    """Stands still unless it is told to go on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_silent_judge_is_given_up_after_its_time() -> None:
    """By the active clock, which has gone on by more than the limit."""
    clock = Clock()
    judge = ScriptedJudge([EQUAL], hold=anyio.Event(), before=lambda: setattr(clock, "now", 1000.0))
    server = judged_by(judge, judge_timeout_s=0.01, gate=Gate(clock=clock))
    with anyio.fail_after(10), pytest.raises(ParticipantError, match=r"gave no verdict: .* longer than") as failed:
        await verify(server, ROW, "4")
    assert (failed.value.code, judge.open) == (Code.JUDGE_FAILED, 0)


async def test_the_time_of_a_checkpoint_does_not_count_against_the_judge() -> None:
    """The same limit, and the same time passes while admission is closed."""
    clock = Clock()
    gate = Gate(clock=clock)
    judge = ScriptedJudge([EQUAL])

    def checkpoint() -> None:
        gate.close()
        clock.now += 1000.0
        gate.reopen()

    judge.before = checkpoint
    assert (await verify(judged_by(judge, judge_timeout_s=0.01, gate=gate), ROW, "4"))["reward"] == 1.0


async def test_only_so_many_ask_at_once() -> None:
    """The others wait, and are all judged in the end."""
    judge = ScriptedJudge([EQUAL], hold=anyio.Event())
    server = judged_by(judge, judge_at_once=2)
    rewards: list[float] = []

    async def one(number: int) -> None:
        rewards.append((await verify(server, ROW, "4", Life(f"r{number}", 1, 0, number)))["reward"])

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(one, number)
        await anyio.wait_all_tasks_blocked()
        assert judge.open == 2
        assert judge.hold is not None
        judge.hold.set()
    assert rewards == [1.0] * 5


async def test_the_judge_is_asked_under_the_rollouts_life_with_an_id_that_a_replay_has_again() -> None:
    """Both calls have the boundary of the verify and are numbered through, so that a checkpoint keeps their replies."""
    judge = ScriptedJudge([EQUAL])
    await verify(judged_by(judge, check_twice_swap=True), ROW, "four")
    assert [request.life for request in judge.asked] == [LIFE, LIFE]
    assert [request.call for request in judge.asked] == [CallId("resources.main", 4, k) for k in (0, 1)]


async def test_the_request_is_that_of_the_options() -> None:
    """Greedy unless said otherwise, with a system message where there is one, in either dialect."""
    chat = ScriptedJudge([EQUAL])
    await verify(judged_by(chat, system_message="Be fair."), ROW, "4")
    [asked] = chat.asked
    assert asked.route == "/v1/chat/completions"
    assert (asked.body["temperature"], asked.body["max_tokens"]) == (0.0, 4096)
    assert asked.body["messages"][0] == {"role": "system", "content": "Be fair."}
    said = {"type": "message", "content": [{"type": "output_text", "text": EQUAL}]}
    responses = ScriptedJudge([Reply(200, {"status": "completed", "output": [said]})], role="model.judge")
    options = {"judge": "model.judge", "judge_dialect": "responses", "judge_parameters": {"top_p": 0.5}}
    found = await verify(judged_by(responses, **options), ROW, "4")
    [asked] = responses.asked
    assert (asked.route, asked.body["top_p"], found["reward"]) == ("/v1/responses", 0.5, 1.0)
    assert found["judge_evaluations"][0]["responses_create_params"] == asked.body


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"judge": "model.other"}, r"no judge 'model.other'; there are model.main"),
        ({"judge_dialect": "completions"}, "chat or responses"),
        ({"judge_timeout_s": 0}, "more than 0"),
        ({"judge_timeout_s": float("nan")}, "more than 0"),
        ({"judge_at_once": 0}, "at least 1"),
        ({"no_verdict": "zero"}, "failed or not_equal"),
        ({"prompt": "{question} {expected_answer}"}, "no {generated_answer}"),
        ({"equal_label": "EQUAL", "not_equal_label": "NOT EQUAL"}, "cannot be told apart"),
        ({"equal_label": "Y"}, "cannot be told apart"),
    ],
)
def test_a_verifier_that_could_not_judge_is_refused_when_it_is_made(options: dict[str, Any], says: str) -> None:
    """Nothing would show before the first verify otherwise."""
    with pytest.raises(ValueError, match=says):
        judged_by(ScriptedJudge([EQUAL]), **options)


def test_what_is_put_into_a_prompt_is_not_looked_at_again() -> None:
    """Answers with braces, placeholders, backslashes and format specs come through as they are."""
    odd = r"{expected_answer} {} {0} {{x}} \1 \g<1> %s \boxed{\frac{1}{2}}"
    filled = fill("Q {question} A {expected_answer} B {generated_answer} {other}", question=odd, expected_answer="E")
    assert filled == rf"Q {odd} A E B {{generated_answer}} {{other}}"


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("[[A=B]]", EQUAL, EQUAL),
        ("[[A!=B]]", OTHER, OTHER),
        ("Not [[A=B]], for it is 5: [[A!=B]]", EQUAL, OTHER),
        ("[[A!=B]]... no, wait: [[A=B]]", OTHER, EQUAL),
        ("**[[A=B]]**\n", EQUAL, EQUAL),
        ("[[A=B", None, None),
        ("[[a=b]]", None, None),
        ("[A=B]", None, None),
        ("[[A = B]]", None, None),
        ("", None, None),
    ],
)
def test_a_verdict_is_a_label_as_it_is_written(text: str, first: str | None, last: str | None) -> None:
    """By hand: the first or the last of several, none where none is whole."""
    assert (said_in(text, (EQUAL, OTHER), first=True), said_in(text, (EQUAL, OTHER), first=False)) == (first, last)


@pytest.mark.parametrize("text", [EQUAL, OTHER, f"[{EQUAL}]", f"{EQUAL}{OTHER}{EQUAL}", "[[A[[A=B]]=B]]"])
def test_a_label_in_what_is_judged_is_none_any_more(text: str) -> None:
    """Whatever stands around it, and however often."""
    assert said_in(broken_up(text, (EQUAL, OTHER)), (EQUAL, OTHER), first=False) is None
    assert broken_up("a === b", ("==", "!=")) == "a = = = b"
