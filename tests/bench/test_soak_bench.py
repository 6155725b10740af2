"""The soak finds what grows and what is wrong, tells the rest flat, and runs through with kills."""

import copy
import itertools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.soak import __main__ as command
from bench.soak.fleets import VICTIMS
from bench.soak.journal import NAME, Journal
from bench.soak.report import Report, amount, draw, sparkline
from bench.soak.rows import Shape, amounts, faults, reward, row
from bench.soak.strikes import BACKEND, strikes
from bench.soak.verdict import Point, Tolerance, judge
from tests.tidy.tree import ROOT

HOURS = 2 * 3600.0
MEMORY = Tolerance(0.05, 4.0)
SHAPE = Shape(2, 3, 100.0)
TIMEOUT_S = 300


def noisy(slope_per_hour: float, *, until_s: float = HOURS, every_s: float = 10.0, level: float = 80.0) -> list[Point]:
    """A straight line with an even swing of 2 around it."""
    count = int(until_s / every_s)
    return [Point(n * every_s, level + slope_per_hour * n * every_s / 3600 + (n * 7 % 5) - 2) for n in range(count)]


@pytest.mark.unit
@pytest.mark.parametrize("slope", [-5.0, 0.0, 3.0])
def test_what_swings_or_rises_within_its_tolerance_is_flat(slope: float) -> None:
    """The slope is found nevertheless, with its uncertainty."""
    found = judge(noisy(slope), HOURS, MEMORY)
    assert found is not None
    assert not found.grows
    assert abs(found.per_hour - slope) <= found.error + 0.1


@pytest.mark.unit
def test_a_leak_is_found_and_a_warm_process_is_none() -> None:
    """Judged is the second half alone; a step in the first is no growth."""
    leak, warm = noisy(12.0), [Point(p.at_s, p.value - 40 * (p.at_s < 900)) for p in noisy(0.0)]
    found = judge(leak, HOURS, MEMORY)
    assert found is not None
    assert found.grows
    assert abs(found.per_hour - 12) < 1
    settled = judge(warm, HOURS, MEMORY)
    assert settled is not None
    assert not settled.grows


@pytest.mark.unit
def test_one_odd_point_moves_no_verdict() -> None:
    """The median of a stretch does not see it."""
    points = noisy(0.0)
    points[-1] = Point(points[-1].at_s, 1e6)
    found = judge(points, HOURS, MEMORY)
    assert found is not None
    assert not found.grows


@pytest.mark.unit
def test_the_same_slope_is_found_in_two_hours_and_not_in_ten_minutes() -> None:
    """What a series may rise by at least holds however short the time is."""
    long, short = judge(noisy(12.0), HOURS, MEMORY), judge(noisy(12.0, until_s=600.0), 600.0, MEMORY)
    assert long is not None
    assert short is not None
    assert (long.grows, short.grows) == (True, False)


@pytest.mark.unit
def test_what_is_too_short_has_no_verdict() -> None:
    """Neither has what has no points in the second half."""
    assert judge(noisy(0.0, until_s=60.0), 60.0, MEMORY) is None
    assert judge(noisy(0.0, until_s=600.0), HOURS, MEMORY) is None


@pytest.mark.unit
def test_kills_follow_from_the_seed_and_spare_what_is_to_live() -> None:
    """Nobody kills servers of the fleet whose servers live on, or the controller of the one whose controller does."""
    many = list(itertools.islice(strikes(3, 5.0, VICTIMS), 3000))
    assert many == list(itertools.islice(strikes(3, 5.0, VICTIMS), 3000))
    assert many[:9] != list(itertools.islice(strikes(4, 5.0, VICTIMS), 9))
    hit = Counter((strike.fleet, strike.victim) for strike in many)
    assert set(hit) == {("", BACKEND), *((fleet, victim) for fleet, shares in VICTIMS.items() for victim in shares)}
    assert VICTIMS["served"].keys() == {"controller"}
    assert not [victim for victim in VICTIMS["controlled"] if "controller" in victim or victim == "everybody"]
    assert 4.8 < sum(strike.after_s for strike in many) / len(many) < 5.2


def finished(number: int) -> dict[str, Any]:
    """The row of a rollout that went as it should."""
    calls = [
        {"type": "function_call", "arguments": json.dumps({"count": amount})} for amount in amounts(number, SHAPE.turns)
    ]
    about = {"_ng_rollout_id": f"r{number}", "_midflight_life": "a", "_ng_attempt_index": 0}
    response = {"output": calls, "created_at": number}
    return {**about, "initial_count": number, "reward": reward(number), "response": response}


def other(rows: list[dict[str, Any]], number: int, **changed: Any) -> list[dict[str, Any]]:
    """The same rows, one of them changed."""
    rows = copy.deepcopy(rows)
    rows[number] |= changed
    return rows


@pytest.mark.unit
def test_every_wrong_row_is_found() -> None:
    """Missing, double, strange, another reward, other calls, another text; lives and times may differ."""
    wanted = [finished(number) for number in range(8)]
    assert faults(other(wanted, 1, _midflight_life="b", _ng_attempt_index=7), wanted, SHAPE) == []
    assert faults(wanted[1:], wanted, SHAPE) == ["r0 has no row"]
    assert faults([*wanted, wanted[3]], wanted, SHAPE) == ["r3 has 2 rows"]
    assert faults(other(wanted, 0, _ng_rollout_id="z"), wanted, SHAPE) == [
        "r0 has no row", "z is no rollout of the input",
    ]  # fmt: skip
    told = faults(other(wanted, 6, reward=1.0), wanted, SHAPE)
    assert told == ["r6: its reward is 1.0 and should be 0.0", "r6 is not as in an undisturbed run"]
    told = faults(other(wanted, 2, response={"output": []}), wanted, SHAPE)
    assert told == ["r2: it added [] and should have added [3, 4]", "r2 is not as in an undisturbed run"]


@pytest.mark.unit
def test_the_rows_say_what_their_rollouts_must_come_to() -> None:
    """Every seventh expects one more than its calls add up to."""
    rows = [row(number, SHAPE) for number in range(14)]
    over = [one["expected_count"] - n - sum(amounts(n, SHAPE.turns)) for n, one in enumerate(rows)]
    assert over == [0, 0, 0, 0, 0, 0, 1] * 2
    assert [reward(number) for number in range(14)] == [1.0 - each for each in over]


def journal_of(folder: Path, *, leak: float = 0.0, ended: bool = True, until_s: float = HOURS) -> None:
    """Two hours, or what is said, of one fleet whose controller gets so many more descriptors an hour."""
    folder.mkdir()
    journal = Journal(folder)
    journal.write(0.0, "plan", seed=1)
    for at in range(0, int(until_s), 20):
        descriptors = 30 + int(leak * at / 3600)
        seen = ["collect", 7, float(at), 80_000_000, descriptors, 14, 1.0]
        journal.write(at, "fleet", fleet="controlled", rows=at // 10, work_files=15, processes=[seen])
        journal.write(at, "commit", fleet="controlled", took_s=0.2, held_s=0.1, n=4)
    journal.write(50.0, "strike", fleet="controlled", victim="worker", hit=True)
    journal.write(55.0, "strike", fleet="controlled", victim="server", hit=False)
    if ended:
        journal.write(until_s, "drain")
        journal.write(until_s + 9, "compared", fleet="controlled", rows=720)
        journal.write(until_s + 9, "end")
    journal.close()


@pytest.mark.unit
def test_a_planted_leak_is_named_and_fails_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One descriptor every five minutes, and the same journal without it."""
    leaking = "controlled: collect, lives on: descriptors"
    for name, leak, growing in (("flat", 0.0, []), ("leak", 12.0, [leaking])):
        journal_of(tmp_path / name, leak=leak)
        code = command.main(["--report", str(tmp_path / name), "--json"])
        *lines, last = capsys.readouterr().out.splitlines()
        found = json.loads(last)
        assert (code, found["growing"], found["kills"]) == (len(growing), growing, {"controlled: worker": 1})
        assert len([line for line in lines if "GROWS" in line]) == len(growing)
        assert found["series"][leaking]["verdict"] == ("grows" if growing else "flat")
        judged = f"{found['judged']} series"
        assert lines[-1] == f"0 violations; growing: {leaking if growing else 'nothing'} of {judged}"
        assert (found["judged"], found["too_short_to_be_judged"]) == (5, [])


@pytest.mark.unit
def test_a_soak_that_is_too_short_does_not_say_that_nothing_grows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rows are right, so that it ends with 0; the line, each series and the object say that none was judged."""
    journal_of(tmp_path / "short", until_s=60)
    assert command.main(["--report", str(tmp_path / "short"), "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert lines[0] == "1.0 minutes with kills, seed 1: 1 kills, 4 rows done meanwhile"
    assert lines[-2:] == [
        "controlled: 720 rows compared with an undisturbed run, those done after the kills among them",
        "0 violations; growing: nothing is long enough to be judged",
    ]
    assert (found["growing"], found["judged"], len(found["too_short_to_be_judged"])) == ([], 0, 5)
    assert found["series"]["controlled: commit"]["verdict"] == "too short"
    assert "verdict" not in found["series"]["controlled: rows done so far"]


@pytest.mark.unit
def test_a_folder_without_a_soak_or_with_another_one_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence and 2 before anything is begun, and for numbers that try nothing as well."""
    journal_of(tmp_path / "old")
    for options, says in (
        (["--report", "/nosuch"], "there is no file '/nosuch/journal.jsonl'"),
        (["--folder", str(tmp_path / "old")], "has a soak already"),
        (["--svg", "/nosuch/a.svg"], "there is no folder '/nosuch'"),
        (["--minutes", "0"], "'0' is no number above 0"),
        (["--fleets", "nosuch"], "there is no 'nosuch'; there are served, controlled, both"),
    ):
        with pytest.raises(SystemExit) as ended:
            command.main(options)
        told = capsys.readouterr().err
        assert (ended.value.code, told.count("\n")) == (2, 1)
        assert says in told


@pytest.mark.unit
def test_a_violation_and_an_interrupted_soak_fail_the_command(tmp_path: Path) -> None:
    """What was seen until then is shown, also where the last line is torn."""
    journal_of(tmp_path / "cut", ended=False)
    with (tmp_path / "cut" / NAME).open("a") as file:
        file.write('{"at": 7201.0, "ki')
    report = Report(tmp_path / "cut")
    assert (report.exit_code, report.growing, report.violations) == (1, [], [])
    assert "has not come to its end" in report.text()
    journal_of(tmp_path / "wrong")
    with (tmp_path / "wrong" / NAME).open("a") as file:
        file.write('{"at": 7300.0, "kind": "violation", "fleet": "both", "what": "r1 has no row"}\n')
    report = Report(tmp_path / "wrong")
    assert report.exit_code == 1
    assert "VIOLATION at 7300 s, both: r1 has no row" in report.text()


@pytest.mark.unit
def test_a_plot_goes_from_the_least_to_the_greatest_with_gaps() -> None:
    """Eight steps; what is equal everywhere is the lowest; figures have their unit."""
    assert sparkline([Point(0, 1.0), Point(1, 2.0), Point(3, 8.0)], 4.0, 4) == "▁▂ █"
    assert sparkline([Point(n, 5.0) for n in range(4)], 4.0, 4) == "▁▁▁▁"
    assert [amount(3.2e6, "B"), amount(412.0, "B"), amount(0.0412, "s"), amount(12.0, "")] == [
        "3.20 MB", "0.41 kB", "41.2 ms", "12.0",
    ]  # fmt: skip


def planted(journal: Path, folder: Path) -> None:
    """What a soak saw last, as if it had seen it for an hour before, but for a store that is pruned too little."""
    folder.mkdir()
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    seen = [line for line in lines if line["kind"] == "fleet"][-1]
    rest = [line for line in lines if line["kind"] not in ("plan", "fleet", "commit", "restore", "look")]
    with (folder / NAME).open("w") as file:
        file.write(json.dumps(lines[0]) + "\n")
        for at in range(0, 3600, 30):
            store = {"objects": 50 + at, "size": 50_000, "chain_objects": 9, "chain_size": 6_000}
            file.write(json.dumps(seen | {"at": at, "store": store}) + "\n")
        file.writelines(json.dumps(line | {"at": line["at"] + 3600}) + "\n" for line in rest)


@pytest.mark.process
@pytest.mark.timeout(TIMEOUT_S + 40)
def test_a_short_soak_comes_through_its_kills_and_what_is_planted_in_it_is_found(tmp_path: Path) -> None:
    """Every row is as in an undisturbed run, nothing lives on, and a store that grows is named."""
    options = ["--minutes", "0.15", "--fleets", "both", "--kill-every", "2.5", "--look-every", "0.5"]
    folder = tmp_path / "soak"
    line = [sys.executable, "-m", "bench.soak", *options, "--folder", str(folder), "--json"]
    done = subprocess.run(
        line,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["violations"], found["compared"], found["ended"]) == ([], {"both": found["rollouts"]}, True)
    assert sum(found["kills"].values()) >= 1
    planted(folder / NAME, tmp_path / "planted")
    report = Report(tmp_path / "planted")
    assert (report.exit_code, report.growing) == (1, ["both: store, objects"])
    draw(report, tmp_path / "soak.svg")
    assert "a restore, s" in (tmp_path / "soak.svg").read_text()
