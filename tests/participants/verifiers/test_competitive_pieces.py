"""The parts of `competitive_coding_challenges` that run nothing: the metadata file, scores of subtasks, submissions."""

import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from participants import Code, ParticipantError
from participants.verifiers import json_offsets
from participants.verifiers.competitive_coding_challenges import CompetitiveCodingChallengesServer
from participants.verifiers.json_offsets import JsonFile, NotJson
from participants.verifiers.problems import Problems, Subtask
from participants.verifiers.submissions import last_cpp, with_includes
from participants.verifiers.subtasks import binary_reward, fraction_reward, next_tests, shown

pytestmark = pytest.mark.unit

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))
OBJECTS = st.lists(st.dictionaries(st.text(alphabet='a"\\{}é\n'), VALUES, max_size=4), max_size=4)


@settings(max_examples=25)
@given(OBJECTS, st.sampled_from([None, 1]), st.booleans(), st.booleans())
def test_places_of_values_are_those_that_python_reads(
    objects: list[dict[str, Any]], indent: int | None, ascii_only: bool, walk: bool
) -> None:
    """Each member loads to what Python's own reader has for it, however the file is written."""
    text = "\n".join(json.dumps(each, indent=indent, ensure_ascii=ascii_only) for each in objects)
    with JsonFile(io.BytesIO(text.encode())) as file:
        found = []
        for start in file.values():
            members: dict[str, Any] = {}
            for name, at in file.members(start):
                if walk and file.is_object(at):
                    members[name] = {inner: file.load(file.span(place), 1 << 20) for inner, place in file.members(at)}
                else:
                    members[name] = file.load(file.span(at), 1 << 20)
            found.append(members)
    assert found == objects


class Pieces(io.BytesIO):
    """Gives a few bytes at a time, and remembers the most that was asked for."""

    most = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.most = max(self.most, size or 0)
        return super().read(min(7, size or 7) if size == json_offsets.PIECE_BYTES else size)


def test_a_value_across_pieces_is_found_whole() -> None:
    """Strings, escapes and braces may lie across the pieces that are read, and no more than a piece is asked for."""
    plain = {'a"\\': 'x\\"y\\\\', "deep": {"list": [1, {"b": "}"}], "text": "\\" * 9 + '"' * 3}, "end": 12345678901}
    file = Pieces(json.dumps(plain).encode())
    reader = JsonFile(cast("BinaryIO", file))
    spans = {name: reader.span(at) for name, at in reader.members(0)}
    assert file.most == json_offsets.PIECE_BYTES
    assert {name: reader.load(span, 1000) for name, span in spans.items()} == plain


@pytest.mark.parametrize(
    "text", ["{", '{"a"', '{"a":', '{"a": "b', '{"a" 1}', "{1: 2}", '{"a": [1, 2', '{"a": 1 "b": 2}']
)
def test_a_file_that_ends_or_errs_is_said(text: str) -> None:
    """And neither hangs nor gives half of its members."""
    reader = JsonFile(io.BytesIO(text.encode()))
    with pytest.raises(NotJson):
        list(reader.members(0))


def test_a_value_over_the_limit_is_not_loaded() -> None:
    """Its size is known before."""
    reader = JsonFile(io.BytesIO(b'{"a": "%s"}' % (b"x" * 100)))
    [(_, at)] = reader.members(0)
    with pytest.raises(NotJson, match="102 bytes, over 50"):
        reader.load(reader.span(at), 50)


# The metadata file


def problem(**changes: Any) -> dict[str, Any]:
    """A small problem, as the file has it."""
    return {
        "name": "Sums",
        "compile": "g++ ...",
        "run": "./a.out",
        "grader_files": [["graders/grader.cpp", "int main() {}"]],
        "subtasks": {"one": {"aggregation": "min", "score": 30, "score_precision": 2, "test_names": ["a", "b"]}},
        "all_tests": {"a": {"input": "1", "output": "2", "group": "sample"}, "b": {"input": "3", "output": "4"}},
        **changes,
    }


def written(path: Path, *entries: Any) -> Path:
    """A metadata file."""
    path.write_text("\n".join(json.dumps(entry) for entry in entries), encoding="utf-8")
    return path


def test_a_problem_is_read_from_its_place(tmp_path: Path) -> None:
    """By competition where several have one of the name; its tests only when they are asked for."""
    path = written(
        tmp_path / "meta.jsonl",
        {"competition_id": "x", "metadata": {"sums": problem(), "other": problem(time_limit=3, memory_limit=1 << 28)}},
        {"problems": {"sums": problem(compile="clang ...")}, "competition": "y"},
    )
    problems = Problems(path)
    first, other, second = problems.find("sums", "x"), problems.find("other", None), problems.find("sums", "y")
    assert (first.compile, second.compile) == ("g++ ...", "clang ...")
    assert first.subtasks == {"one": Subtask(aggregation="min", score=30.0, precision=2, tests=["a", "b"])}
    assert (other.time_limit_s, other.memory_limit, first.time_limit_s) == (3.0, 1 << 28, 30.0)
    assert (problems.test(first, "a").given, problems.test(first, "b").expected) == ("1", "4")
    assert (problems.test(first, "a").group, problems.test(first, "b").group) == ("sample", None)


def test_the_older_form_is_taken(tmp_path: Path) -> None:
    """A problem whose members are subtasks, which share tests and scripts."""
    scripts = {"compile": "c", "run": "r", "grader_files": [["graders/g.cpp", "g"]]}
    tests = {"1": {"input": "i1", "output": "o1"}, "2": {"input": "i2", "output": "o2"}}
    older = {
        "a": {**scripts, "score": 40, "tests": {"1": tests["1"]}},
        "b": {**scripts, "score": 60, "score_precision": 1, "tests": tests},
        "id": "sums",
    }
    problems = Problems(written(tmp_path / "meta.jsonl", {"metadata": {"sums": older}}))
    found = problems.find("sums", None)
    assert found.subtasks == {
        "a": Subtask(aggregation="min", score=40.0, precision=0, tests=["1"]),
        "b": Subtask(aggregation="min", score=60.0, precision=1, tests=["1", "2"]),
    }
    assert [problems.test(found, name).expected for name in found.tests] == ["o1", "o2"]


@pytest.mark.parametrize(("problem_id", "competition"), [("none", None), ("sums", None), ("sums", "z")])
def test_a_problem_that_the_row_names_wrongly_is_the_rows_fault(
    tmp_path: Path, problem_id: str, competition: str | None
) -> None:
    """Unknown, in several competitions, or not in that one."""
    entries = [{"competition_id": name, "metadata": {"sums": problem()}} for name in ("x", "y")]
    with pytest.raises(ParticipantError) as caught:
        Problems(written(tmp_path / "meta.jsonl", *entries)).find(problem_id, competition)
    assert caught.value.code == Code.INVALID_REQUEST


DAMAGED: Mapping[str, Mapping[str, Any]] = {
    "a path that leads out": {"grader_files": [["../grader.cpp", ""]]},
    "a path from the root": {"grader_files": [["/etc/profile", ""]]},
    "no subtasks": {"subtasks": {}},
    "a subtask without tests": {"subtasks": {"one": {"aggregation": "min", "score": 1, "test_names": []}}},
    "an unknown test": {"subtasks": {"one": {"aggregation": "min", "score": 1, "test_names": ["c"]}}},
    "an unknown aggregation": {"subtasks": {"one": {"aggregation": "max", "score": 1, "test_names": ["a"]}}},
    "no script": {"run": None},
    "a broken configuration": {"grader_files": [["graders/grader_config.json", "{"]]},
    "a limit that is none": {"time_limit": "long"},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_problem_is_the_executors_fault(tmp_path: Path, name: str) -> None:
    """It is said with the problem and the file, and is no reward."""
    path = written(tmp_path / "meta.jsonl", {"metadata": {"sums": problem(**DAMAGED[name])}})
    with pytest.raises(ParticipantError, match=r"sums.*meta\.jsonl") as caught:
        Problems(path).find("sums", None)
    assert caught.value.code == Code.EXECUTOR_FAILED


@pytest.mark.parametrize(
    "text", [None, "", "{", '{"metadata": {"sums": {"a": 1'], ids=["missing", "empty", "cut", "torn"]
)
def test_a_file_of_no_use_is_said(tmp_path: Path, text: str | None) -> None:
    """A missing or broken file is a typed failure; an empty one has no problems."""
    path = tmp_path / "meta.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ParticipantError) as caught:
        Problems(path).find("sums", None)
    assert caught.value.code == (Code.INVALID_REQUEST if text == "" else Code.EXECUTOR_FAILED)


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    """And a test is never read from a place in the file that was before."""
    path = written(tmp_path / "meta.jsonl", {"metadata": {"sums": problem()}})
    problems = Problems(path)
    old = problems.find("sums", None)
    new = problem(all_tests={"b": {"input": "new", "output": "n"}, "a": {"input": "a", "output": "a"}})
    os.replace(written(tmp_path / "other", {"metadata": {"sums": new}}), path)
    with pytest.raises(ParticipantError, match="changed") as caught:
        problems.test(old, "b")
    assert caught.value.code == Code.EXECUTOR_FAILED
    assert problems.test(problems.find("sums", None), "b").given == "new"


# Scores


def subtask(aggregation: str, tests: Sequence[str], score: float = 0.0, precision: int = 0) -> dict[str, Any]:
    """As the file has it."""
    return {"aggregation": aggregation, "score": score, "score_precision": precision, "test_names": list(tests)}


def scored(**subtasks: Any) -> Any:
    """A problem of tests a to e with these subtasks."""
    tests = {name: {"input": "", "output": ""} for name in "abcde"}
    return Problems(None, [{"metadata": {"p": problem(subtasks=subtasks, all_tests=tests)}}]).find("p", None)


def scores(text: str) -> dict[str, float]:
    """`a1 b0.5` as scores."""
    return {each[0]: float(each[1:]) for each in text.split()}


SCORED = [
    # A subtask, scores of its tests, what is shown of it, and whether it has all that it is worth; worked out by hand.
    (subtask("min", "ab", 30), "a1 b1", 30.0, True),
    (subtask("min", "ab", 30), "a1 b0.5", 15.0, False),
    (subtask("min", "ab", 30), "a0.25 b0.5", 8.0, False),  # 7.5, to the even of 8 and 7
    (subtask("min", "ab", 33, 2), "a1 b0.333", 10.99, False),
    (subtask("min", "ab", 30), "a1 b0.999", 30.0, False),  # 29.97 is shown as 30, and is not 30
    (subtask("min", "ab", 30), "a0", 0.0, False),
    (subtask("min", "ab", 0), "a1 b1", 0.0, True),
    (subtask("min", "ab", 0), "a1 b0.5", 0.0, False),
    (subtask("sum_tests", "abc"), "a1 b1 c1", 3.0, True),
    (subtask("sum_tests", "abc"), "a1 b0 c1", 2.0, False),
    (subtask("sum_tests", "abc"), "a1 b0.1 c1", 3.0, True),  # the reference counts what is above 0
]


@pytest.mark.parametrize(("given", "of_tests", "wanted", "full"), SCORED, ids=range(len(SCORED)))
def test_scores_of_subtasks(given: dict[str, Any], of_tests: str, wanted: float, full: bool) -> None:
    """The least of the tests times the worth, or the number of tests above 0."""
    of = scored(one=given).subtasks["one"]
    assert shown(of, scores(of_tests)) == wanted
    assert binary_reward([of], scores(of_tests), None) == float(full)


def test_the_rows_worth_counts_instead_of_the_problems() -> None:
    """Half of 30 is enough for 15, and not for 16."""
    of = scored(one=subtask("min", "ab", 30)).subtasks["one"]
    assert [binary_reward([of], scores("a1 b0.5"), worth) for worth in (15, 16)] == [1.0, 0.0]


def test_a_worth_that_a_sum_of_floats_just_misses_is_reached() -> None:
    """By hand: three subtasks of 33.3 are worth 99.9, and their sum is 99.89999999999999."""
    of = list(scored(**{name: subtask("min", name, 33.3) for name in "abc"}).subtasks.values())
    assert binary_reward(of, scores("a1 b1 c1"), 99.9) == 1.0
    assert binary_reward(of, scores("a1 b1 c0.99"), 99.9) == 0.0


def test_a_whole_problem_wants_all_of_its_subtasks() -> None:
    """30 and 2 tests are worth 32: what one lacks, the other cannot make good."""
    of = list(scored(one=subtask("min", "ab", 30), two=subtask("sum_tests", "cd")).subtasks.values())
    assert binary_reward(of, scores("a1 b1 c1 d1"), None) == 1.0
    assert binary_reward(of, scores("a1 b1 c1 d0"), None) == 0.0
    assert binary_reward(of, scores("a1 b0 c1 d1"), None) == 0.0


def test_the_fraction_counts_each_test_once() -> None:
    """Of five tests, one in two subtasks, three have a full score."""
    of = list(scored(one=subtask("min", "abc", 30), two=subtask("min", "cde", 70)).subtasks.values())
    assert fraction_reward(of, scores("a1 b1 c1 d0.9 e0")) == 0.6


def test_a_failed_subtask_is_given_up() -> None:
    """Its tests run no more, unless another subtask wants them; a partial score and sums give nothing up."""
    of = scored(one=subtask("min", "abc", 30), two=subtask("min", "cd", 70), sums=subtask("sum_tests", "e"))
    every = ["one", "two", "sums"]

    def following(of_tests: str, names: list[str], all_of_them: bool = False) -> list[str]:
        return next_tests(of, names, scores(of_tests), 10, all_of_them=all_of_them)

    assert following("", every) == ["a", "b", "c", "d", "e"]
    assert following("a0", every) == ["c", "d", "e"]
    assert following("a0.5", every) == ["b", "c", "d", "e"]
    assert following("a0 c0", every) == ["e"]
    assert following("a0", every, all_of_them=True) == ["b", "c", "d", "e"]
    assert following("", ["two"]) == ["c", "d"]
    assert following("a1 b1 c1 d1 e0", every) == []
    assert next_tests(of, every, {}, 2, all_of_them=False) == ["a", "b"]


# Submissions


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```cpp\na\n```", "a\n"),
        ("```cpp\na\n```\n```cpp\nb\n```\n```python\nc\n```", "b\n"),
        ("```CPP  \na```", "a"),
        ("```\na\n```", ""),
        ("```cpp\na", ""),
        ("", ""),
    ],
)
def test_the_submission_is_the_last_block_of_cpp(text: str, code: str) -> None:
    """Other languages, blocks without one, and blocks that do not end are not taken."""
    assert last_cpp(text) == code


def test_includes_are_added_where_they_are_missing() -> None:
    """The large header, the problem's own, and the namespace where nothing says std::; nothing twice."""
    of = Problems(None, [{"metadata": {"p": problem(problem_header_include="p.h")}}]).find("p", None)
    header = ["#include <bits/stdc++.h>", '#include "p.h"', "using namespace std;"]
    assert with_includes("int x;", of).splitlines() == [*header, "int x;"]
    assert with_includes("std::string s;", of).splitlines() == [*header[:2], "std::string s;"]
    whole = "\n".join(header)
    assert with_includes(whole, of).splitlines() == header


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"test_file": "x", "reward_mode": "mean"},
        {"test_file": "x", "time_scale": 0},
        {"test_file": "x", "problems": [{}]},
        {"test_file": "x"},
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No file, two sources, an unknown mode, no time, a file that is not there."""
    monkeypatch.delenv("CCC_TEST_FILE", raising=False)
    with pytest.raises(ValueError, match=r"test_file|reward_mode|time_scale|there is no metadata file x"):
        CompetitiveCodingChallengesServer(**options)


def test_the_file_may_be_named_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As with the reference."""
    path = tmp_path / "meta.jsonl"
    path.touch()
    monkeypatch.setenv("CCC_TEST_FILE", str(path))
    assert CompetitiveCodingChallengesServer().problems.path == path


def test_there_are_fifty_cases_of_both_ends() -> None:
    """The same ones every time, for the conformance kit."""
    cases = CompetitiveCodingChallengesServer.conformance().cases
    assert len(cases) >= 50
    assert cases == CompetitiveCodingChallengesServer.conformance().cases
