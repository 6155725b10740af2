"""The kit's own logic, on servers that are tiny."""

from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from orchestrator.conformance import RULES, NoCases, UnknownRule, case_of, check_conformance, conformance_tests
from orchestrator.conformance.answers import difference
from orchestrator.conformance.awaits import Watched, watched_class
from orchestrator.conformance.reports import Violation
from orchestrator.conformance.rules_damage import mutations
from orchestrator.conformance.rules_hooks import odd_calls
from orchestrator.conformance.shrinking import MAX_TRIES, shrink
from orchestrator.conformance.subject import Group, document_of, groups_of
from participants import Case, Conformance, ResourcesSession, ToolCall, ToolError
from participants.serving import ConfigError
from tests.support.planted_servers import (
    PLANTED,
    KeepsOnSelf,
    LeavesBusy,
    Planted,
    TakesGarbage,
    VerifyCounts,
    first_words,
)
from tests.support.right_servers import Adder, Echo, Meeting, SlowAdder, Undeclared, WaitingAdder

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
IN_PROCESS = [rule.name for rule in RULES if rule.need != "a new process"]
QUICK = (KeepsOnSelf, TakesGarbage, LeavesBusy, VerifyCounts)


async def test_a_right_server_breaks_no_rule() -> None:
    """All that can be tried in this process is tried and kept, and exports are measured."""
    cases = Conformance(cases=Adder.conformance().cases[2:])
    report = await check_conformance(Adder, cases, rules=IN_PROCESS)
    assert report.text == ""
    assert {rule.rule for rule in report.rules if rule.outcome == "kept"} == set(IN_PROCESS) - {
        "exports-are-copies",
        "bad-states-are-refused",
        "stateless-keeps-nothing",
    }
    assert (report.cases, report.warnings) == (2, ())
    assert report.export_bytes == len('{"total": 10}')  # The fourth case begins with 4 and adds 6.


@pytest.mark.parametrize("planted", [p for p in PLANTED if p.server in QUICK], ids=lambda p: p.server.__name__)
async def test_a_wrong_server_is_found_with_the_shortest_sequence(planted: Planted) -> None:
    """The rule that its mistake breaks, and no call more than it takes to see it."""
    [found] = (await check_conformance(planted.server, rules=[planted.rule])).rules
    assert (found.outcome, first_words(found.steps)) == ("broken", planted.steps)


async def test_what_is_broken_is_said_with_what_came_instead_of_what() -> None:
    """For people: the rule, the numbered calls, both answers."""
    report = await check_conformance(KeepsOnSelf, rules=["continued-equals-uninterrupted"])
    [first, *steps, said] = report.text.splitlines()
    assert first.startswith("continued-equals-uninterrupted: Restored from any boundary")
    assert steps == [
        '  1. seed with {"start":1,"goal":8}',
        "  2. a checkpoint; the process dies; restored into a fresh one, under the next attempt",
        '  3. add with {"n":1}',
    ]
    assert said == '  the last was answered {"total":1}, and {"total":2} without the interruption'


async def test_nothing_declared_is_told_and_is_no_mistake() -> None:
    """Rules about checkpoints are not tried, and a warning says what that means."""
    report = await check_conformance(Undeclared)
    assert report.broken == []
    needless = {rule.name for rule in RULES if not rule.need}
    assert {rule.rule for rule in report.rules if rule.outcome == "kept"} == needless
    assert "start over after a crash" in report.warnings[0]


async def test_a_verify_that_is_waited_for_may_change_the_session() -> None:
    """It is repeated under its own id alone, and then has the kept reply."""
    names = ["continued-equals-uninterrupted", "restored-three-times-over", "a-replayed-verify-changes-nothing"]
    report = await check_conformance(WaitingAdder, rules=names)
    assert [rule.outcome for rule in report.rules] == ["kept", "kept", "not tried"]


async def test_cases_of_a_cohort_are_verified_at_the_same_time() -> None:
    """Each of these verifies waits for the others of its cohort; one after the other would never end."""
    with anyio.fail_after(20):
        names = ["cases-can-be-played", "continued-equals-uninterrupted"]
        report = await check_conformance(Meeting, rules=names)
    assert [(rule.outcome, rule.tried) for rule in report.rules] == [("kept", 2), ("kept", 2)]


async def test_a_tool_that_gives_way_is_caught_in_the_middle() -> None:
    """And one that does not is noted: there was nothing to try."""
    names = ["a-checkpoint-waits-for-a-call", "a-cancelled-call-changes-nothing"]
    slow, quick = [await check_conformance(server, rules=names) for server in (SlowAdder, Adder)]
    assert [(rule.outcome, rule.notes) for rule in slow.rules] == [("kept", ())] * 2
    assert all("gives way" in rule.notes[0] for rule in quick.rules)


async def test_equal_rewards_are_warned_of() -> None:
    """Cases that all end alike cannot show a score that was lost."""
    alike = Conformance(cases=[case for case in Adder.conformance().cases if case.row["start"] % 2])
    report = await check_conformance(Adder, alike, rules=["cases-can-be-played"])
    assert "every case that was played got the reward 0.0" in report.warnings[0]


@pytest.mark.parametrize(("played", "others", "warned"), [(3, 0, True), (3, 1, False), (10, 1, True)])
async def test_equal_rewards_of_a_few_cases_say_nothing_of_the_others(played: int, others: int, warned: bool) -> None:
    """On a slow machine only the first are played: all of them, or ten, are needed for the warning."""
    odd, even = ([case for case in Adder.conformance().cases if case.row["start"] % 2 == rest] for rest in (1, 0))
    alike = [replace(odd[0], cohort="first")] * played
    report = await check_conformance(
        Adder, Conformance(cases=[*alike, *even[:others]]), rules=["cases-can-be-played"], rule_s=0.0
    )
    assert (report.rules[0].tried, bool(report.warnings)) == (1, warned)


# What cannot be tried


async def test_a_class_without_cases_is_refused() -> None:
    """So that nobody takes an empty trial for a passed one."""
    with pytest.raises(NoCases, match="Echo has no cases: write its `conformance`"):
        await check_conformance(Echo, Conformance(cases=()))


async def test_a_rule_that_is_none_and_options_that_are_wrong_are_refused() -> None:
    """Both before anything is tried."""
    with pytest.raises(UnknownRule, match="no rule 'no-such-rule'"):
        await check_conformance(Echo, rules=["no-such-rule"])
    with pytest.raises(ConfigError, match="does not take these options"):
        await check_conformance(Echo, Conformance(cases=Echo.conformance().cases, options={"colour": "red"}))


# As pytest functions


def test_there_is_one_test_for_each_rule() -> None:
    """Named after it, so that one can be run alone."""
    [mark] = [mark for mark in conformance_tests(Adder).pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    assert mark.args == ("rule", [rule.name for rule in RULES])


def test_a_test_of_a_broken_rule_fails_and_of_another_need_is_skipped() -> None:
    """The failure has the sequence, and the skip the reason."""
    test = conformance_tests(VerifyCounts)
    with pytest.raises(pytest.fail.Exception, match=r"a-replayed-verify-changes-nothing: .*\n  1\. seed with"):
        test("a-replayed-verify-changes-nothing")
    with pytest.raises(pytest.skip.Exception, match="the class writes no import_session"):
        test("bad-states-are-refused")
    test("cases-can-be-played")


# Shrinking


def group_of(count: int) -> Group:
    return (Case(row={}, calls=[ToolCall(name=f"t{n}") for n in range(count)]),)


@pytest.mark.parametrize(
    ("count", "needed"),
    [(5, ()), (5, ("t3",)), (6, ("t1", "t4")), (12, ("t0", "t6", "t11")), (30, ("t7", "t8", "t20", "t29"))],
)
async def test_the_shortest_sequence_is_found(count: int, needed: tuple[str, ...]) -> None:
    """Of a rule that is broken whenever certain calls are made, in that order, those calls alone are left."""

    async def attempt(group: Group) -> Violation | None:
        names = [call.name for call in group[0].calls]
        return Violation("planted", names) if [name for name in names if name in needed] == list(needed) else None

    found = await shrink(group_of(count), Violation("planted", ["everything"]), attempt)
    assert found.steps == needed


async def test_shortening_comes_to_an_end() -> None:
    """Where each try takes its time, what was found so far has to do."""
    tried = 0

    async def attempt(group: Group) -> Violation | None:
        nonlocal tried
        tried += 1
        return None

    found = await shrink(group_of(1000), Violation("planted", ["everything"]), attempt)
    assert (found.steps, tried) == (("everything",), MAX_TRIES)


# Pieces


@pytest.mark.parametrize("value", [{"a": 1, "b": "text"}, {"a": None}, [1, 2, 3], "text", 5, {}], ids=repr)
def test_each_mutation_is_another_value(value: object) -> None:
    """None is what was exported, and each says what it is."""
    found = list(mutations(value))
    assert all(other != value or type(other) is not type(value) for _, other in found)
    assert len({how for how, _ in found}) == len(found) > 2


def test_odd_calls_have_one_odd_argument() -> None:
    """The calls themselves come first."""
    call = ToolCall(name="put", arguments={"n": 5, "what": "x"})
    found = [dict(each.arguments) for each in odd_calls([call, call])]
    assert found[0] == call.arguments
    assert found[1:] == [
        {"n": -1, "what": "x"},
        {"n": 1000, "what": "x"},
        {"n": 5, "what": ""},
        {"n": 5, "what": "x not"},
    ]


def test_cohorts_are_played_together_and_cases_survive_json() -> None:
    """In the order of their first case."""
    cases = Meeting.conformance().cases
    assert [len(group) for group in groups_of(cases)] == [2, 3]
    assert [case_of(document_of(case)) for case in cases] == list(cases)


@pytest.mark.parametrize("wrong", [{}, {"row": {}, "call": []}, {"row": {}, "calls": {}}, {"row": {}, "calls": [{}]}])
def test_what_is_no_case_is_refused(wrong: dict[str, object]) -> None:
    """A missing row, an unknown field, calls that are none."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        case_of(wrong)


async def test_a_call_of_no_tool_is_told_and_is_no_case() -> None:
    """A name that is misspelt would be refused each time, and every rule kept by it."""
    calls = [ToolCall(name="add", arguments={"n": 1}), ToolCall(name="ad", arguments={"n": 1})]
    cases = Conformance(cases=[Case(row={"start": 1, "goal": 8}, calls=calls)])
    [rule] = (await check_conformance(Adder, cases, rules=IN_PROCESS[:1])).rules
    assert (rule.outcome, first_words(rule.steps)) == ("broken", "seed ad")
    assert rule.said == "there is no tool ad, so that call tries nothing; there are add, look"


class Silent(Adder):
    """Says nothing of its tools, of which one is not found."""

    def tool_schemas(self) -> list[dict[str, Any]]:
        return []

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        if arguments.get("n") == 0:
            raise ToolError("nothing to add", 404)
        return await super().call_tool(session, name, arguments)


async def test_what_a_tool_does_not_find_is_its_own_refusal() -> None:
    """Status 404 of a tool that is there, or of a server that does not say what it has, breaks no rule."""
    calls = [ToolCall(name="add", arguments={"n": 0})]
    cases = Conformance(cases=[Case(row={"start": 1, "goal": 8}, calls=calls)])
    [rule] = (await check_conformance(Silent, cases, rules=IN_PROCESS[:1])).rules
    assert rule.outcome == "kept", rule.said


async def test_awaits_are_counted_and_errors_pass() -> None:
    """A driven hook gives and raises what it would without being driven."""
    seen: list[int] = []

    async def at(number: int) -> None:
        seen.append(number)
        await anyio.lowlevel.checkpoint()

    async def hook(fail: bool) -> str:
        for _ in range(2):
            await anyio.lowlevel.checkpoint()
        if fail:
            raise KeyError("planted")
        return "given"

    watched = Watched()
    watched.at = at
    assert await watched.drive(hook(False)) == "given"
    assert (seen, watched.awaits) == ([1, 2], 2)
    watched.at = at
    with pytest.raises(KeyError, match="planted"):
        await watched.drive(hook(True))
    assert watched_class(Adder, watched).__qualname__ == "Adder"


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (1, 2, ("", 1, 2)),
        ({"a": [1, 2], "b": 0}, {"a": [1, 3], "b": 0}, ("['a'][1]", 2, 3)),
        ({"a": [1], "b": 0}, {"a": [1, 3], "b": 0}, ("['a']", [1], [1, 3])),
        ({"a": {"c": 1}}, {"a": {"d": 1}}, ("['a']", {"c": 1}, {"d": 1})),
        ({"a": [1, 2]}, {"a": [3, 4]}, ("['a']", [1, 2], [3, 4])),
    ],
    ids=["values", "one-item", "lengths", "keys", "two-items"],
)
def test_a_difference_is_told_where_it_stands(one: object, other: object, told: tuple[str, object, object]) -> None:
    """A long export is shown at the place that changed, and not at its beginning."""
    assert difference(one, other) == told
