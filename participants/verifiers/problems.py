"""The problems of `competitive_coding_challenges`: a file of any size, indexed once and read one problem at a time.

The file holds JSON objects one after the other, usually one a line: `{competition_id (or competition), metadata (or
problems): {<problem_id>: <problem>}}`. What is taken of a problem:

    compile, run            scripts for bash; run prints the score of the test at hand, from 0 to 1
    grader_files            [[path below the working folder, text], ...]
    subtasks                {<name>: {aggregation: "min" or "sum_tests", score, score_precision, test_names}}
    all_tests               {<name>: {input, output, group}}
    problem_header_include  of a header to include in the submission
    time_limit              seconds of wall time of one run script, before time_scale; 30 without
    memory_limit            bytes, of the submission
    name                    for people

An older form, `{<subtask>: {compile, run, grader_files, score, score_precision, tests: {<name>: {input, output}}}}`,
is taken as subtasks of aggregation `min`. Other fields, such as id, statement or sample_test_names, are not needed.

In memory are the places of the problems, the places of the tests of the problems used last, and the tests that run. A
file that is replaced is indexed again. Everything here blocks.
"""

import io
import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, BinaryIO

from ..errors import Code, ParticipantError
from .json_offsets import JsonFile, NotJson, Span

MAX_PROBLEM_BYTES = 64 << 20
"""Of a problem without its tests."""
MAX_TEST_BYTES = 512 << 20
"""Of the JSON of one test."""
KEPT_PROBLEMS = 8
DEFAULT_TIME_LIMIT_S = 30.0
AGGREGATIONS = ("min", "sum_tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtask:
    """A group of tests that is scored as one."""

    aggregation: str
    """One of `AGGREGATIONS`."""
    score: float
    """What it is worth."""
    precision: int
    """Decimals of its score, as it is shown."""
    tests: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem without the data of its tests."""

    problem_id: str
    compile: str
    run: str
    grader_files: Mapping[str, str]
    """Text by path."""
    header: str
    subtasks: Mapping[str, Subtask]
    tests: Mapping[str, Span]
    """Where each test stands in the file, in the order of the file."""
    time_limit_s: float
    memory_limit: int | None
    """In bytes."""
    task_type: str
    """Of the grader's configuration: `MULTIFILE` submissions get no includes."""
    source: "Stamp"
    """Of the file that the places are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestData:
    """One test."""

    given: str
    expected: str
    group: str | None


Stamp = tuple[int, int, int]
"""Of a file: number, size, and time of its last change in ns."""


@dataclass(slots=True)
class _Index:
    stamp: Stamp
    places: dict[str, dict[str, Span]] = field(default_factory=dict)
    """By problem and competition."""
    kept: OrderedDict[tuple[str, str], Problem] = field(default_factory=OrderedDict)


class Problems:
    """Problems in a file, or in memory. Its methods block, and may be called by several threads."""

    def __init__(self, path: Path | None, entries: Sequence[Mapping[str, Any]] = ()) -> None:
        """Without a path, the entries are what the lines of a file would be."""
        self.path = path
        self._bytes = b"\n".join(json.dumps(entry).encode() for entry in entries)
        self._index: _Index | None = None
        self._lock = Lock()

    def find(self, problem_id: str, competition_id: str | None) -> Problem:
        """One problem. Raises `invalid_request` if there is no such one, `executor_failed` if the file is of no use."""
        with self._lock, self._telling(f"problem {problem_id!r}"):
            index = self._fresh_index()
            competition = _competition(index.places, problem_id, competition_id)
            key = competition, problem_id
            if key not in index.kept:
                with self._open(index.stamp) as file:
                    span = index.places[problem_id][competition]
                    index.kept[key] = _Reading(file, problem_id, index.stamp).problem(span)
                while len(index.kept) > KEPT_PROBLEMS:
                    index.kept.popitem(last=False)
            index.kept.move_to_end(key)
            return index.kept[key]

    def test(self, problem: Problem, name: str) -> TestData:
        """The data of one test. Raises `executor_failed`."""
        with self._telling(f"test {name!r} of problem {problem.problem_id!r}"), self._open(problem.source) as file:
            test = file.load(problem.tests[name], MAX_TEST_BYTES)
            group = test.get("group")
            return TestData(
                given=_text(test, "input"), expected=_text(test, "output"), group=None if group is None else str(group)
            )

    def _fresh_index(self) -> _Index:
        if self._index is None or self._index.stamp != self._stamp():
            self._index = None
            index = _Index(self._stamp())
            with self._open(index.stamp) as file:
                for start in file.values():
                    _add_entry(index.places, file, start)
            self._index = index
        return self._index

    def _stamp(self) -> Stamp:
        if self.path is None:
            return (0, len(self._bytes), 0)
        return _stamp_of(os.stat(self.path))

    def _open(self, stamp: Stamp) -> JsonFile:
        if self.path is None:
            return JsonFile(io.BytesIO(self._bytes))
        file: BinaryIO = open(self.path, "rb", buffering=0)  # noqa: SIM115
        if _stamp_of(os.fstat(file.fileno())) != stamp:
            file.close()
            raise NotJson("the file was changed meanwhile; verify again")
        return JsonFile(file)

    def _telling(self, what: str) -> "_Telling":
        return _Telling(f"{what} cannot be read from {self.path or 'the given problems'}")


@dataclass(frozen=True, slots=True)
class _Telling:
    """Translates what goes wrong with the file into `executor_failed`."""

    what: str

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | ValueError | TypeError | KeyError | AttributeError):
            raise ParticipantError(Code.EXECUTOR_FAILED, f"{self.what}: {error!r:.300}") from error


def _stamp_of(status: os.stat_result) -> Stamp:
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def _add_entry(places: dict[str, dict[str, Span]], file: JsonFile, start: int) -> None:
    """The problems of one line; the later one counts where a competition has two of the same name."""
    competition = ""
    found: dict[str, Span] = {}
    for name, at in file.members(start):
        if name in ("metadata", "problems"):
            found |= {problem_id: file.span(place) for problem_id, place in file.members(at)}
        elif name in ("competition_id", "competition"):
            competition = str(file.load(file.span(at), MAX_PROBLEM_BYTES) or competition)
    for problem_id, span in found.items():
        places.setdefault(problem_id, {})[competition] = span


def _competition(places: Mapping[str, Mapping[str, Span]], problem_id: str, competition_id: str | None) -> str:
    of = places.get(problem_id, {})
    if competition_id:
        if competition_id in of:
            return competition_id
        told = f"there is no problem {problem_id!r} in the competition {competition_id!r}"
    elif len(of) == 1:
        return next(iter(of))
    else:
        told = f"there is no problem {problem_id!r}"
        told = f"the problem {problem_id!r} is in several competitions: name competition_id" if of else told
    raise ParticipantError(Code.INVALID_REQUEST, f"{told}; look at the row and at the metadata file")


class _Reading:
    """Of one problem."""

    def __init__(self, file: JsonFile, problem_id: str, stamp: Stamp) -> None:
        self._file = file
        self._problem_id = problem_id
        self._stamp = stamp
        self._left = MAX_PROBLEM_BYTES

    def problem(self, span: Span) -> Problem:
        places = dict(self._file.members(span.start))
        if "all_tests" in places and "subtasks" in places:
            return self._of_today(places)
        return self._older(places)

    def _of_today(self, places: Mapping[str, int]) -> Problem:
        fields = {name: self._load(at) for name, at in places.items() if name != "all_tests"}
        subtasks = {name: _subtask(given, given["test_names"]) for name, given in fields["subtasks"].items()}
        return self._made(fields, subtasks, self._spans(places["all_tests"]))

    def _older(self, places: Mapping[str, int]) -> Problem:
        fields: dict[str, Any] = {}
        subtasks: dict[str, Subtask] = {}
        tests: dict[str, Span] = {}
        for name, at in places.items():
            if not self._file.is_object(at):
                continue
            members = dict(self._file.members(at))
            of_subtask = self._spans(members.pop("tests"))
            given = {each: self._load(place) for each, place in members.items()}
            fields = {**given, **fields}
            tests = {**of_subtask, **tests}
            subtasks[name] = _subtask({**given, "aggregation": "min"}, list(of_subtask))
        return self._made(fields, subtasks, tests)

    def _spans(self, start: int) -> dict[str, Span]:
        return {name: self._file.span(at) for name, at in self._file.members(start)}

    def _load(self, at: int) -> Any:
        span = self._file.span(at)
        self._left -= span.size
        if self._left < 0:
            raise NotJson(f"it has over {MAX_PROBLEM_BYTES} bytes beside its tests")
        return self._file.load(span, MAX_PROBLEM_BYTES)

    def _made(self, fields: Mapping[str, Any], subtasks: Mapping[str, Subtask], tests: Mapping[str, Span]) -> Problem:
        if not subtasks or not all(subtask.tests for subtask in subtasks.values()):
            raise NotJson("it has no subtasks, or one without tests")
        if missing := {name for subtask in subtasks.values() for name in subtask.tests} - tests.keys():
            raise NotJson(f"its subtasks name tests that it does not have: {sorted(missing)[:3]}")
        files = {_safe_path(path): str(text) for path, text in fields["grader_files"]}
        limit = fields.get("memory_limit")
        return Problem(
            problem_id=_safe_name(self._problem_id),
            compile=_text(fields, "compile"),
            run=_text(fields, "run"),
            grader_files=files,
            header=str(fields.get("problem_header_include") or ""),
            subtasks=subtasks,
            tests=tests,
            time_limit_s=float(fields.get("time_limit") or DEFAULT_TIME_LIMIT_S),
            memory_limit=int(limit) if limit else None,
            task_type=_task_type(files),
            source=self._stamp,
        )


def _subtask(given: Mapping[str, Any], tests: Sequence[str]) -> Subtask:
    if given["aggregation"] not in AGGREGATIONS:
        raise NotJson(f"the aggregation {given['aggregation']!r:.50} is none of {', '.join(AGGREGATIONS)}")
    return Subtask(
        aggregation=given["aggregation"],
        score=float(given.get("score") or given.get("subtask_score") or 0.0),
        precision=max(0, int(given.get("score_precision") or 0)),
        tests=[str(name) for name in tests],
    )


def _text(given: Mapping[str, Any], name: str) -> str:
    if not isinstance(given[name], str):
        raise NotJson(f"its {name} is no text")
    return str(given[name])


def _task_type(files: Mapping[str, str]) -> str:
    config = files.get("graders/grader_config.json")
    given = json.loads(config) if config else {}
    return str(given.get("task_type", "")) if isinstance(given, dict) else ""


def _safe_path(path: Any) -> str:
    """A path below the working folder. Raises `NotJson` for one that leads out of it."""
    pure = PurePosixPath(str(path))
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in str(path):
        raise NotJson(f"the grader file {path!r:.100} is not below the working folder")
    return str(pure)


def _safe_name(name: str) -> str:
    if _safe_path(name) != name or "/" in name:
        raise NotJson(f"{name!r:.100} is no name of a file")
    return name
