"""The kill matrix: a cell of each victim, all others in the tier `scale`, and the page that has them."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.errors import CommitFailed, ControlFailed
from participants import Code, ParticipantError
from participants.wire import Finished
from store import Life
from tests.support.backend import Call
from tests.tidy.tree import ROOT

from .matrix import __main__ as command
from .matrix.checks import Again, again, problems, told
from .matrix.phases import PHASES, Phase
from .matrix.runner import Runner
from .matrix.table import read, table, with_table
from .matrix.victims import VICTIMS, Victim
from .seen import Seen
from .tasks import Task

pytestmark = pytest.mark.timeout(240)

PAGE = ROOT / "docs" / "kill-matrix.md"
QUICK = {
    "environment": "committing",
    "agent": "restored",
    "model": "prepared",
    "resources": "activating",
    "one worker of environment": "publishing",
    "one worker of agent": "staging",
    "one worker of model": "idle",
    "one worker of resources": "preparing",
    "controller": "activating",
    "inference backend": "prepared",
    "store": "publishing",
}
"""One cell of each victim, and each phase at least once."""
CELLS = [(victim, phase) for victim in VICTIMS for phase in PHASES]


def _cell(victim: Victim, phase: Phase) -> Any:
    quick = pytest.mark.real if victim.s3 else pytest.mark.process
    mark = quick if QUICK[victim.name] == phase.name else pytest.mark.scale
    return pytest.param(victim, phase, id=f"{victim.name} {phase.name}".replace(" ", "-"), marks=mark)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """One for all cells."""
    with Runner(tmp_path_factory.mktemp("matrix")) as made:
        yield made


@pytest.mark.parametrize(("victim", "phase"), [_cell(*cell) for cell in CELLS])
def test_nothing_is_lost_whoever_is_killed_whenever(runner: Runner, victim: Victim, phase: Phase) -> None:
    """Every rollout ends once with the right reward, servers end idle, and what was published restores and verifies."""
    result = runner.run(victim, phase)
    assert not result.problems, result
    assert result.adopted + result.restored + result.started_over == 4
    assert (result.lost, result.again.verified) == (0, 0)


@pytest.mark.unit
def test_the_page_has_every_victim_and_every_phase() -> None:
    """No cell is empty, none had a problem, and each says that nothing was lost."""
    cells = read(PAGE.read_text(encoding="utf-8"))
    assert list(cells) == [(victim.name, phase.name) for victim, phase in CELLS]
    wrong = {cell for cell, said in cells.items() if "WRONG" in said or not re.search(r"; lost: 0$", said)}
    assert wrong == set()


@pytest.mark.unit
def test_the_quick_tiers_run_a_cell_of_each_victim_and_each_phase() -> None:
    """They have all rows and all columns."""
    assert set(QUICK) == {victim.name for victim in VICTIMS}
    assert set(QUICK.values()) == {phase.name for phase in PHASES}


@pytest.mark.unit
def test_some_cells_replace_those_of_a_page_and_leave_the_others() -> None:
    """What is written is what is read, also where cells are empty, and the rest of the page stays."""
    page = f"before\n\n{table({('agent', 'idle'): 'old', ('store', 'staging'): 'kept'})}\n\nafter\n"
    new = with_table(page, table(read(page) | {("agent", "idle"): "new", ("model", "restored"): "more"}))
    assert read(new) == {("agent", "idle"): "new", ("model", "restored"): "more", ("store", "staging"): "kept"}
    assert new.startswith("before\n\n| victim |")
    assert new.endswith("|\n\nafter\n")
    with pytest.raises(ValueError, match="no table"):
        with_table("nothing", new)


# The checks


TASK = Task(0)
FIRST, SECOND = Life("r0", 1, 0, 0), Life("r0", 2, 1, 0)


def _call(state: str = "finished", generated: int = 5, continued: int = 0) -> Call:
    shape: dict[str, Any] = dict.fromkeys(Call.__dataclass_fields__)
    return Call(**{**shape, "state": state, "generated": generated, "continued": continued})


def _seen(*steps: tuple[Life, int, Call], tools: dict[Life, list[Any]], verified: list[Life]) -> Seen:
    seen = Seen(verified=verified)
    for life, number, call in steps:
        seen.calls[life].append(number)
        seen.made[life].append(call)
    seen.tools.update(tools)
    return seen


def _continued() -> Seen:
    """A rollout that was cut in its second call, after 2 tokens, and went on as its second life."""
    steps = [(FIRST, 1, _call()), (FIRST, 2, _call("aborted", 2)), (SECOND, 2, _call(continued=2, generated=3))]
    steps += [(SECOND, number, _call()) for number in (3, 4)]
    return _seen(*steps, tools={FIRST: TASK.tools[:1], SECOND: TASK.tools[1:]}, verified=[SECOND])


def _ended(life: Life, reward: float = 1.0) -> Finished:
    return Finished(n=1, life=life, row={"reward": reward}, failure=None, active_s=1.0)


@pytest.mark.unit
def test_a_rollout_that_was_continued_is_no_problem_and_no_work_done_again() -> None:
    """Its cut call counts once, with the tokens that were kept."""
    assert problems([TASK], [_ended(SECOND)], _continued()) == []
    assert again(_continued()) == Again(0, 0, 0, 0)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("results", "says"),
    [
        ([], "r0 was lost"),
        ([_ended(SECOND), _ended(FIRST)], "r0 was delivered 2 times"),
        ([_ended(SECOND, 0.0)], "has the reward 0.0"),
    ],
    ids=["lost", "twice", "wrong"],
)
def test_a_wrong_end_is_found(results: list[Finished], says: str) -> None:
    """A rollout that is lost, delivered twice or rewarded wrongly is one problem."""
    [problem] = problems([TASK], results, _continued())
    assert says in problem


@pytest.mark.unit
def test_work_that_one_life_did_twice_or_nobody_did_is_found() -> None:
    """A tool that ran twice in one life, a call that it repeated, and a tool that never ran."""
    twice = _continued()
    twice.tools[SECOND].append("get")
    assert problems([TASK], [_ended(SECOND)], twice) == [f"{SECOND} did work twice"]
    repeated = _continued()
    repeated.calls[SECOND].append(4)
    repeated.made[SECOND].append(_call())
    assert problems([TASK], [_ended(SECOND)], repeated) == [f"{SECOND} did work twice"]
    never = _continued()
    never.tools[SECOND].remove("get")
    assert "made the calls [1, 2, 3, 4]" in problems([TASK], [_ended(SECOND)], never)[0]


@pytest.mark.unit
def test_work_that_a_later_life_did_again_is_counted() -> None:
    """A call with its tokens, its tool call and a verification."""
    seen = _continued()
    seen.calls[SECOND].insert(0, 1)
    seen.made[SECOND].insert(0, _call(generated=7))
    seen.tools[SECOND].insert(0, TASK.amount(1))
    seen.verified.append(FIRST)
    assert again(seen) == Again(calls=1, tools=1, verified=1, tokens=5)


@pytest.mark.unit
def test_an_outcome_names_who_failed_how() -> None:
    """By code, where there is one; those that failed alike are named together."""
    stale = ParticipantError(Code.STALE_ROUND, "older")
    failures: dict[str, BaseException | str] = {"b": ConnectionError(), "a": ConnectionError(), "c": stale}
    assert told(CommitFailed(failures)) == "commit failed: a b gone, c stale_round"
    assert told(ControlFailed({"a": TimeoutError()})) == "resume failed: a TimeoutError"
    assert told(ValueError()) == "ValueError"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nosuch"], "victims are environment, agent, model, resources, "),
        (["--only", "agent,nosuch"], "phases are idle, preparing, prepared, "),
        (["--page", "/nosuch.md"], "there is no file '/nosuch.md'"),
        (["--page", str(ROOT / "README.md")], "has no table of the matrix"),
    ],
)
def test_a_wish_for_cells_or_a_page_that_are_not_there_is_refused(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence that names what there is, and 2, before anything is run."""
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n")) == (2, 1)
    assert says in told
