"""`midflight conformance` as a command: what it prints, with which exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.commands import app
from orchestrator.cli.conformance import read_cases
from orchestrator.conformance import RULES

PLANTED, RIGHT = "tests.support.planted_servers", "tests.support.right_servers"
RULE = ("--rule", "continued-equals-uninterrupted")
RUN_TIMEOUT_S = 110
SERVER = '''
from midflight import ResourcesServer, tool

class Own(ResourcesServer):
    checkpoint_mode = "exported"

    def __init__(self, name="main", *, step, **options):
        super().__init__(name, **options)
        self.step = step

    async def seed(self, session, row):
        session.state["n"] = 0

    @tool
    async def up(self, session) -> int:
        """Up."""
        session.state["n"] += self.step
        return session.state["n"]

    async def verify(self, session, row):
        return {"reward": session.state["n"] - row["wanted"]}
'''


def run(*arguments: object) -> tuple[int, str, str]:
    """`midflight conformance` with these arguments, in this process."""
    result = CliRunner().invoke(app, ["conformance", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.unit
def test_a_broken_rule_is_told_with_its_numbered_calls() -> None:
    """Exit code 1, the same in JSON and for people."""
    code, out, _ = run(f"{PLANTED}:KeepsOnSelf", *RULE)
    assert code == 1
    assert '  3. add with {"n":1}\n  the last was answered {"total":1}, and {"total":2}' in out
    code, out, _ = run(f"{PLANTED}:KeepsOnSelf", *RULE, "--json")
    document = json.loads(out)
    [rule] = document["rules"]
    assert (code, document["exit_code"], rule["outcome"], len(rule["steps"])) == (1, 1, "broken", 3)
    assert rule["said"] == 'the last was answered {"total":1}, and {"total":2} without the interruption'


@pytest.mark.unit
def test_a_kept_rule_is_told() -> None:
    """Exit code 0, with the modes."""
    code, out, _ = run(f"{RIGHT}:Echo", *RULE)
    assert code == 0
    assert "all of 1 rule kept; checkpoint_mode stateless, checkpoint_verify replay" in out


@pytest.mark.unit
def test_the_rules_are_listed() -> None:
    """Each with its sentence and what it needs."""
    code, out, _ = run("--list")
    assert (code, [line.split()[0] for line in out.splitlines()[1:]]) == (0, [rule.name for rule in RULES])
    _, out, _ = run("--list", "--json")
    assert json.loads(out)["rules"][5]["need"] == "checkpoints"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "MODULE:CLASS is missing"),
        (("no.such:Thing",), "No module named 'no'"),
        (("midflight:Life",), "'midflight:Life' is not a ResourcesServer"),
        (("midflight:ResourcesServer",), "has no cases. Write in the class"),
        ((f"{RIGHT}:Echo", "--rule", "x"), "there is no rule 'x'"),
        ((f"{RIGHT}:Echo", "--option", "colour=red"), "does not take these options"),
        ((f"{RIGHT}:Echo", "--option", "colour"), "not of the form key=value"),
        ((f"{RIGHT}:Echo", "--cases", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
    ],
)
def test_what_cannot_be_tried_is_usage(arguments: tuple[str, ...], says: str) -> None:
    """Exit code 2, and one line that says what to write."""
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.unit
def test_a_line_that_is_no_case_is_named(tmp_path: Path) -> None:
    """With its file and number."""
    file = tmp_path / "cases.jsonl"
    file.write_text('{"row": {"wanted": 3}}\n\n{"row": {}, "calls": 5}\n')
    code, _, err = run(f"{RIGHT}:Echo", "--cases", file)
    assert code == 2
    assert "cases.jsonl:3 is no case: TypeError('calls are 5, not a list')" in err


@pytest.mark.unit
def test_a_case_may_have_any_text(tmp_path: Path) -> None:
    """Also separators of lines, and a mark of the byte order before the first."""
    file = tmp_path / "cases.jsonl"
    file.write_text('\ufeff{"row": {"a": "\u2028\x85"}}\r\n{"row": {}, "said": "\u2029"}\n', encoding="utf-8")
    assert [(case.row, case.said) for case in read_cases(file)] == [({"a": "\u2028\x85"}, ""), ({}, "\u2029")]


@pytest.mark.process
@pytest.mark.timeout(120)
def test_a_class_of_the_current_folder_is_tried_with_cases_and_options_of_the_command_line(tmp_path: Path) -> None:
    """The other process of the kit imports it as well, and gets the same options."""
    (tmp_path / "own.py").write_text(SERVER)
    calls = [{"name": "up"}] * 3
    rows = [{"row": {"wanted": wanted}, "calls": calls, "said": "done"} for wanted in (6, 5)]
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "midflight", "conformance", "own:Own", "--cases", "cases.jsonl"]
    ran = subprocess.run(
        [*command, "--option", "step=2", "--json", "--thorough", "--seed", "3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    document = json.loads(ran.stdout)
    outcomes = {rule["rule"]: rule["outcome"] for rule in document["rules"]}
    assert (outcomes["restored-in-another-process"], outcomes["restored-after-a-month"]) == ("kept", "kept")
    assert (document["warnings"], document["cases"], ran.stderr) == ([], 2, "")
