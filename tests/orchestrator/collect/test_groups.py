"""Repeats of a row are a cohort without any field by hand: who is in which group, and in which attempt of it."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.collect import Collector, Config, Options, RunLedger, collect, open_segments
from orchestrator.collect.groups import SIZE, Attempts, Held, group_of, named_row
from orchestrator.collect.rows import Rollout, plan_rollouts
from orchestrator.collect.segments import Header, Line, Writer
from participants import Code, ParticipantError, Reply, Result
from participants.episode import body_of_run
from store import Life

from .test_in_process import OneTool

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

ROW = {"responses_create_params": {"input": [{"role": "user", "content": "Say something."}]}}
GROUP = "0123456789abcdef.0"


def test_a_repeat_is_named_as_the_member_that_it_is() -> None:
    """By the row's content and copy, so that it is the same after rows were added; a field of the row itself stands."""
    rollout = Rollout(f"{GROUP}.2", ROW, 7, 2)
    names = {"_ng_task_index": 7, "_ng_rollout_index": 2, "_ng_group_id": GROUP, "_ng_group_attempt": 1}
    assert named_row(ROW, rollout, 1, 4) == {**ROW, **names, SIZE: 4}
    assert named_row({**ROW, "_ng_group_id": "own"}, rollout, 1, 4) == {**ROW, **names, "_ng_group_id": "own"}


def test_a_typed_row_is_named_in_its_task_data() -> None:
    """Which is what reaches the verifier."""
    typed = {
        "task_id": {"taskset": "t", "task_id": 1},
        "task_input": {"responses_create_params": {"input": []}, "task_data": {"a": 1}},
    }
    asked = body_of_run(Life(f"{GROUP}.2", 1, 0, 0), named_row(typed, Rollout(f"{GROUP}.2", typed, 0, 2), 3, 4)).row
    assert (asked["a"], asked["_ng_group_id"], asked["_ng_rollout_index"]) == (1, GROUP, 2)
    assert (asked["_ng_group_attempt"], asked[SIZE]) == (3, 4)


@pytest.mark.parametrize(
    ("failed", "attempt"),
    [([], 0), ([0], 1), ([0, 1, 2], 1), ([0, 0], 2), ([0, 1, 2, 1], 2), ([1, 2, 0, 2, 1, 0], 2)],
    ids=str,
)
def test_the_next_attempt_is_that_of_whoever_failed_most_often_with_the_group(failed: list[int], attempt: int) -> None:
    """In whatever order its failures come; another group has attempts of its own."""
    attempts = Attempts(f"{GROUP}.{repeat}" for repeat in failed)
    assert attempts.of(f"{GROUP}.1") == attempt
    assert attempts.of("0123456789abcdef.1.1") == 0


def test_a_repeat_that_failed_starts_before_rows_that_have_not_begun() -> None:
    """Its siblings may take up all the room while they wait for it; without repeats it goes to the end."""
    for repeats, following in ((2, 0), (1, 1)):
        rollouts = plan_rollouts([{"n": n} for n in range(3)], repeats)
        ledger = RunLedger.begin(1, rollouts, ())
        opened = ledger.next_dispatch()
        assert opened is not None
        ledger.close(opened[0], final=False)
        again = ledger.next_dispatch()
        assert again is not None
        assert rollouts.index(again[1]) == following
        assert group_of(again[1].rollout_id) == again[1].rollout_id.rpartition(".")[0]


def result(repeat: int, *, failed: str = "", cohort: bool = True) -> Result:
    """Of one member."""
    row = None if failed else {"reward": 1.0, **({"group_attempt": 0} if cohort else {})}
    failure = {"class": failed, "message": "", "stage": "verification", "terminal": False} if failed else None
    return Result(life=Life(f"{GROUP}.{repeat}", 1, 0, repeat), row=row, failure=failure, active_s=0.0)


def test_rows_of_a_cohort_are_held_until_all_are_there_or_done() -> None:
    """A failure of a member alone is not held, and is waited for until it is final."""
    first, second, third = (result(repeat) for repeat in range(3))
    held, attempts = Held(f"{GROUP}.{repeat}" for repeat in range(3)), Attempts()
    assert held.take([first], attempts) == ([], [])
    failed = result(2, failed="timeout")
    assert held.take([second, failed], attempts) == ([failed], [])
    assert held.complete(()) == []
    assert held.complete([f"{GROUP}.2"]) == [first, second]
    assert held.complete([f"{GROUP}.2"]) == []
    assert held.take([first, second, third], attempts) == ([], [])
    assert held.complete(()) == [first, second, third]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=str)
def test_members_of_an_attempt_that_failed_start_again_with_the_others(order: tuple[int, ...]) -> None:
    """Whether they come before the failure or after it; nothing of them is durable."""
    results = [result(0), result(1, failed="cohort_failed"), result(2)]
    for at_once in (True, False):
        held, attempts = Held(f"{GROUP}.{repeat}" for repeat in range(3)), Attempts()
        batches = [[results[n] for n in order]] if at_once else [[results[n]] for n in order]
        taken = [held.take(batch, attempts) for batch in batches]
        assert [each for passed, _ in taken for each in passed] == [results[1]]
        assert {each.life for _, again in taken for each in again} == {results[0].life, results[2].life}
        assert held.complete(()) == []
        assert attempts.of(f"{GROUP}.0") == 1


def test_rows_that_no_cohort_has_decided_are_not_held() -> None:
    """Repeats of a verifier that looks at each alone, and a row without siblings."""
    alone = result(2, cohort=False)
    assert Held(f"{GROUP}.{repeat}" for repeat in range(3)).take([alone], Attempts()) == ([alone], [])
    assert Held([f"{GROUP}.0"]).take([result(0)], Attempts()) == ([result(0)], [])


class Comparing(OneTool):
    """Says who it is, and judges; `before` may raise, and is told what is asked."""

    def __init__(self, before: Callable[[str], None] = lambda asked: None) -> None:
        """What is asked: `<repeat>` or `judge`."""
        super().__init__()
        self._ask = before

    async def complete(self, route: str, body: Mapping[str, Any], life: Life | None = None) -> Reply:
        """The first of two answers is 4, the second 2."""
        self.calls += 1
        assert life is not None
        judged = "response_1" in (body.get("metadata") or {})
        repeat = life.rollout_id[-1]
        self._ask("judge" if judged else repeat)
        said = '{"score_1": 4, "score_2": 2, "ranking": 1}' if judged else f"I am {repeat}."
        message = {"type": "message", "content": [{"type": "output_text", "text": said}]}
        usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
        return Reply(200, {"status": "completed", "output": [message], "usage": usage})


def configured(folder: Path, rows: int = 1, **run: Any) -> Config:
    """Rows with three repeats each, and nothing of groups in them."""
    lines = [json.dumps({**ROW, "number": number}) for number in range(rows)]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    server = "participants.verifiers.genrm_compare:GenRMCompareServer"
    options = {"num_rollouts_per_prompt": 3, "cohort_collection_timeout_s": 5.0}
    return Config.model_validate(
        {
            "run": {"input": str(folder / "rows.jsonl"), "output": str(folder / "out.jsonl"), "repeats": 3, **run},
            "model": {"base_url": "http://localhost:1/v1", "model": "m", "dialect": "responses"},
            "resources": {"genrm": {"server": server, "options": options}},
            "checkpoint": {"enabled": True, "url": str(folder / "store"), "interval_s": 0, "grace_s": 5.0},
        }
    )


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The output, by index."""
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    return sorted(rows, key=lambda row: int(row["_ng_rollout_index"]))


class Once:
    """Fails what is named, once."""

    def __init__(self, asked: str) -> None:
        """`<repeat>` or `judge`."""
        self._left = {asked}

    def __call__(self, asked: str) -> None:
        if asked in self._left:
            self._left.remove(asked)
            raise ParticipantError(Code.MODEL_FAILED, "out of memory", {"status": 500})


async def test_a_run_with_repeats_is_scored_in_cohorts(tmp_path: Path) -> None:
    """Each is first in one pair and second in another one: (4 + 2) / 2, by hand. Three answers, three comparisons."""
    upstream = Comparing()
    summary = await collect(configured(tmp_path), Options(), lambda name, facts: None, upstream)
    assert (summary.exit_code, summary.rows, upstream.calls) == (0, 3, 6)
    rows = rows_of(tmp_path)
    assert [(row["reward"], row["rollout_index"], row["group_attempt"]) for row in rows] == [
        (3, n, 0) for n in range(3)
    ]


async def test_a_cohort_that_failed_is_run_again_whole_in_its_next_attempt(tmp_path: Path) -> None:
    """The judge fails once: three failures, and then three rows of attempt 1."""
    summary = await collect(configured(tmp_path), Options(), lambda name, facts: None, Comparing(Once("judge")))
    assert (summary.exit_code, summary.rows, summary.failures) == (0, 3, 3)
    assert {row["group_attempt"] for row in rows_of(tmp_path)} == {1}
    failures = [json.loads(line) for line in (tmp_path / "out_failures.jsonl").read_text().splitlines()]
    assert {failure["_ng_failure_class"] for failure in failures} == {"judge_failed"}


async def test_a_member_that_fails_alone_is_waited_for_in_the_same_attempt(tmp_path: Path) -> None:
    """Also where its waiting siblings leave room for one only, and other rows have not begun."""
    config = configured(tmp_path, rows=2, concurrency=3)
    summary = await collect(config, Options(), lambda name, facts: None, Comparing(Once("1")))
    assert (summary.exit_code, summary.rows, summary.failures) == (0, 6, 1)
    assert {row["group_attempt"] for row in rows_of(tmp_path)} == {0}


async def test_members_of_one_that_failed_for_good_wait_for_it_once(tmp_path: Path) -> None:
    """Then they fail for good as well, rather than be generated again and wait again; another group is left alone."""

    def refuse(asked: str) -> None:
        if asked == "1":
            raise ParticipantError(Code.MODEL_FAILED, "out of memory", {"status": 500})

    config = configured(tmp_path, max_attempts=4)
    options = {"num_rollouts_per_prompt": 3, "cohort_collection_timeout_s": 1.5}
    genrm = config.resources["genrm"].model_copy(update={"options": options})
    summary = await collect(
        config.model_copy(update={"resources": {"genrm": genrm}}), Options(), lambda *_: None, Comparing(refuse)
    )
    assert (summary.exit_code, summary.rows, summary.failed_for_good) == (1, 0, 3)
    failures = [json.loads(line) for line in (tmp_path / "out_failures.jsonl").read_text().splitlines()]
    waited = Counter(each["_ng_rollout_index"] for each in failures if each["_ng_failure_class"] == "cohort_failed")
    assert waited == {0: 1, 2: 1}


async def test_a_judge_that_fails_is_tried_again_whoever_else_has_failed_for_good(tmp_path: Path) -> None:
    """Repeats of a verifier that looks at each alone are no cohort."""
    rollouts = plan_rollouts([{"n": 0}], 2)
    ledger = RunLedger.begin(1, rollouts, ())
    ledger.lost_groups.add(group_of(rollouts[0].rollout_id))
    opened = ledger.next_dispatch()
    assert opened is not None
    collector = Collector(configured(tmp_path), cast("Any", None), ledger, cast("Any", None), lambda *_: None)
    for named, final in (("judge_failed", False), ("timeout", False), ("cohort_failed", True)):
        failure = {"class": named, "message": "", "stage": "verification", "terminal": False}
        failed = Result(life=opened[0], row=None, failure=failure, active_s=0.0)
        assert collector._line(failed).final is final


async def test_the_attempt_of_a_group_is_known_to_the_next_start(tmp_path: Path) -> None:
    """From the failures in the output: the servers of before may know that the earlier attempt has failed."""
    segments = await open_segments(str(tmp_path / "out.jsonl"), "run")
    writer = Writer(segments, 1)
    await writer.begin(Header({}))
    classes = ("cohort_failed", "judge_failed", "timeout")
    lines = [
        Line(f"{GROUP}.{n}", f"{GROUP}.{n}/1.0#{n}", {"_ng_failure_class": named}, failed=True, final=False)
        for n, named in enumerate(classes)
    ]
    await writer.append([*lines, Line(f"{GROUP}.3", f"{GROUP}.3/1.0#3", {"_ng_failure_class": "cohort_failed"})])
    found = (await segments.read(1)).lines
    assert [kept.why for kept in found] == [kept.why for kept in writer.lines] == [*classes, ""]
    await segments.aclose()
