"""The library's verdict, the judge's where the library says no, and what becomes of answers that never end."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from participants import Code, ParticipantError
from participants.data import Reply
from participants.verifiers.math_with_judge import MathWithJudgeServer, last_boxed

from .judges import ScriptedJudge, verify

EQUAL, OTHER = "They are equal: [[A=B]]", "They differ: [[A!=B]]"
SHOWN = re.compile(r"<(?:expected|generated)_answer>\n(.*?)\n</", re.DOTALL)
unit = pytest.mark.unit
children = pytest.mark.process
anyio_test = pytest.mark.anyio


@asynccontextmanager
async def judged_by(peer: ScriptedJudge | None, **options: Any) -> AsyncIterator[MathWithJudgeServer]:
    """A verifier with this judge, or with none."""
    peers = {peer.role: peer} if peer else {}
    server = MathWithJudgeServer(peers=peers, should_use_judge=peer is not None, library_at_once=1, **options)
    try:
        yield server
    finally:
        await server.aclose()


LIBRARY = [
    # Pairs and verdicts of the library's own tests, tests/test_all.py of huggingface/Math-Verify; there both sides
    # are given to the same parser, and here the second stands in a box.
    ("-5", "-5", True),
    ("7425000", "7,425,000", True),
    ("1000.0", "1,000.0", True),
    ("0.4", ".4", True),
    ("10/9", r"\frac{10}{9}", True),
    ("-10/9", r"-\frac{10}{9}", True),
    ("[0,1)", "[0,1)", True),
    ("[0,9)", "[0,1)", False),
    ("(0,9)", "[0,9)", False),
    ("9", "9", True),
    ("10", "(9+1)", True),
    ("1/3", r"\frac13", True),
    ("1", r"\frac3{3}", True),
    (r"\sqrt{3}", r"\sqrt3", True),
    ("1/3", r"\cfrac{1}{3}", True),
    ("1/3", r"\left( \frac{1}{3} \right)", True),
    ("1/3", r"\frac{1}{3} \text{meters}", True),
    ("1/3", r"k = \frac{1}{3}", True),
    (r"28\%", "28", True),
    ("0.28", "28", False),
    ("28", "28/100", False),
    ("2-2p", "2-2p", True),
    (r"\frac{14}{3}", r"\frac{14}{3}", True),
    (r"\text{Evelyn}", r"\text{Evelyn}", True),
    (r"(3, \frac{\pi}{2})", r"\left( 3, \frac{\pi}{2} \right)", True),
    # The example of its readme.
    (r"{1,3} \cup {2,4}", "{1,2,3,4}", True),
    # By hand.
    ("x^2+2x+1", "(x+1)^2", True),
    ("x^2+2x+1", "(x+1)^3", False),
    ("0.5", r"\frac{1}{2}", True),
    ("0.333333", r"\frac{1}{3}", True),
    ("0.33", r"\frac{1}{3}", False),
    ("2^{10}", "1024", True),
    ("120", "5!", True),
]


@children
@anyio_test
async def test_the_library_gives_the_verdicts_of_its_own_examples() -> None:
    """All of them through one child: 1.0 where it holds the pair to be equal, else 0.0."""
    found = {}
    async with judged_by(None) as server:
        for expected, answer, _ in LIBRARY:
            body = await verify(server, {"expected_answer": expected}, rf"So it is \boxed{{{answer}}}.", None)
            found[expected, answer] = body["reward"], body["library_reward"]
    wrong = {(e, a): found[e, a] for e, a, equal in LIBRARY if found[e, a] != (float(equal), float(equal))}
    assert wrong == {}


VERDICTS: list[tuple[str, list[str], float, float]] = [
    # What was said, what the judge says, the reward, and that of the library alone; by hand from the rules.
    (r"\boxed{\frac{2}{4}}", [], 1.0, 1.0),
    (r"\boxed{one half}", [EQUAL, EQUAL], 1.0, 0.0),
    (r"\boxed{one half}", [EQUAL, OTHER], 0.0, 0.0),
    (r"\boxed{one third}", [OTHER], 0.0, 0.0),
    (r"\boxed{one half}", ["[[A=B]], and never [[A!=B]]", EQUAL], 1.0, 0.0),
    (r"It is 1/2.", [], 0.0, 0.0),
    (r"\boxed{ } is 1/2", [], 0.0, 0.0),
    (r"\boxed{1/2", [], 0.0, 0.0),
    (r"\boxed{?} the answer is 1/2", [OTHER], 0.0, 0.0),
    (r"\boxed{1/3}, or perhaps $1/2$", [OTHER], 0.0, 0.0),
]


@children
@anyio_test
async def test_the_judge_is_asked_in_both_orders_where_the_library_says_no() -> None:
    """Both must say equal, the first label counts, and nobody is asked without a box."""
    judge = ScriptedJudge([])
    async with judged_by(judge) as server:
        for said, verdicts, reward, library in VERDICTS:
            judge.replies, judge.asked = verdicts, []
            found = await verify(server, {"question": "0.5?", "expected_answer": "1/2"}, said, None)
            assert (found["reward"], found["library_reward"], len(judge.asked)) == (reward, library, len(verdicts))
            shown = [SHOWN.findall(prompt) for prompt in judge.prompts]
            boxed = said[7 : said.rfind("}")]
            assert shown == [["1/2", boxed], [boxed, "1/2"]][: len(verdicts)]
            assert len(found["judge_evaluations"] or []) == len(verdicts)
            assert set(found) >= {"expected_answer", "extracted_answer"}


@children
@anyio_test
async def test_an_answer_that_never_ends_is_ended_and_is_not_equal() -> None:
    """Where the judge says no it is 0.0, and where it says equal 1.0; the next answer has a new child."""
    row, endless = {"expected_answer": r"10^{10^{10}}+1"}, r"\boxed{9^{9^{9^{9}}} + \sqrt{2}^{9^{9^9}}}"
    judge = ScriptedJudge([OTHER, EQUAL])
    async with judged_by(judge, library_cpu_s=1.0) as server:
        found = [await verify(server, row, endless, None) for _ in range(2)]
        assert [(each["reward"], each["library_reward"]) for each in found] == [(0.0, 0.0), (1.0, 0.0)]
        assert (await verify(server, {"expected_answer": "2"}, r"\boxed{2}", None))["reward"] == 1.0
        assert server.bounded.started == 3


@children
@anyio_test
async def test_an_expected_answer_that_nobody_can_read_is_the_rows_fault_without_a_judge() -> None:
    """With one, that decides."""
    row, said = {"expected_answer": "}{"}, r"\boxed{2}"
    async with judged_by(None) as server:
        with pytest.raises(ParticipantError, match="reads no answer in the expected one") as refused:
            await verify(server, row, said)
    assert refused.value.code is Code.INVALID_REQUEST
    async with judged_by(ScriptedJudge([OTHER])) as server:
        assert (await verify(server, row, said))["reward"] == 0.0


@children
@anyio_test
async def test_a_judge_that_fails_is_a_failure_also_where_the_library_has_said_no() -> None:
    """No reward of 0 comes of half a verdict: neither of the first pass nor of the second."""
    down = ParticipantError(Code.MODEL_FAILED, "down")
    judge = ScriptedJudge([])
    async with judged_by(judge) as server:
        scripts: list[list[Reply | str | Exception]] = [[down], [EQUAL, down], ["who knows"]]
        for replies in scripts:
            judge.replies, judge.asked = replies, []
            with pytest.raises(ParticipantError) as failed:
                await verify(server, {"expected_answer": "1/2"}, r"\boxed{half}", None)
            assert failed.value.code is Code.JUDGE_FAILED


@unit
@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{2}, and \boxed{} is empty", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {x}", "x"),
        ("\\boxed{\n 3 \n}", "3"),
        (r"\boxed{a \boxed{b} c}", r"a \boxed{b} c"),
        (r"} \boxed{4} {", "4"),
        (r"{\boxed{5}", "5"),
        (r"\boxed{6", None),
        (r"\boxed{}", None),
        (r"\\boxed{8}", None),
        (r"boxed{9}", None),
        ("", None),
    ],
)
def test_the_answer_is_what_stands_in_the_last_box(text: str, boxed: str | None) -> None:
    """By hand: braces nest and may be escaped, and a box that is blank or not closed is none."""
    assert last_boxed(text) == boxed


@unit
def test_many_open_boxes_take_no_longer_than_their_length() -> None:
    """A second pass over the rest for each of them would take minutes."""
    assert last_boxed(r"\boxed{" * 100_000 + "1" + "}" * 5) is not None


@unit
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"library_cpu_s": 0}, "more than 0"),
        ({"library_at_once": 33}, "0 to 32"),
        ({"should_use_judge": True}, "no judge 'model.main'; there are no models"),
        ({"prompt": "same?"}, "no {expected_answer} and no {generated_answer}"),
    ],
)
def test_a_verifier_that_could_not_judge_is_refused_when_it_is_made(options: dict[str, Any], says: str) -> None:
    """Nothing would show before the first verify otherwise."""
    with pytest.raises(ValueError, match=says):
        MathWithJudgeServer(**{"peers": {}, "should_use_judge": False, **options})
