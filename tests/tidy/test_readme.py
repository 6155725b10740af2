"""The README sets up with exactly two commands, and CI runs the one for tests as it stands there."""

import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from .tree import ROOT, expect_none, plant

SET_UP = re.compile(r"^<!-- set-up: (?P<name>\w+) -->\n```bash\n(?P<command>.*?)\n```$", re.MULTILINE | re.DOTALL)
INSTALLS = re.compile(r"pip install|-m venv|uv (?:sync|pip|venv)|apt(?:-get)? install")
EXTRAS = re.compile(r"\.\[([\w,-]+)\]")
NAMES = ["run", "test"]


def set_up(root: Path) -> dict[str, str]:
    """The marked set-up commands of the README, by name."""
    text = (root / "README.md").read_text(encoding="utf-8")
    return {match["name"]: match["command"] for match in SET_UP.finditer(text)}


def readme_problems(root: Path) -> Iterator[str]:
    """How the README differs from having two set-up commands of one line each."""
    text, commands = (root / "README.md").read_text(encoding="utf-8"), set_up(root)
    if sorted(commands) != NAMES or text.count("<!-- set-up:") != len(NAMES):
        yield f"the set-up commands are {sorted(commands)} instead of {NAMES}"
    if INSTALLS.search(SET_UP.sub("", text)):
        yield "something is installed outside of the two set-up commands"
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, command in commands.items():
        if "\n" in command:
            yield f"{name} has more than one line"
        for extra in ",".join(EXTRAS.findall(command)).split(","):
            if extra and extra not in project["optional-dependencies"]:
                yield f"{name} installs the extra {extra}, which does not exist"
        for script in re.findall(r"\S+\.py\b", command):
            if not (root / script).is_file():
                yield f"{name} runs {script}, which does not exist"


def ci_problems(root: Path) -> Iterator[str]:
    """How the CI script repeats the README instead of reading it."""
    text = (root / ".ci" / "run").read_text(encoding="utf-8")
    if "README.md" not in text:
        yield ".ci/run does not read README.md"
    if "pip install" in text:
        yield ".ci/run installs Python packages by a command of its own"


def violations(root: Path) -> list[str]:
    """Everything wrong with setting up from the README of a tree."""
    return [*readme_problems(root), *ci_problems(root)]


@pytest.mark.unit
def test_the_readme_sets_up_with_two_commands() -> None:
    """One command leads up to the main job and one to the tests; nothing else is to be installed."""
    expect_none(violations(ROOT))


README = """<!-- set-up: run -->
```bash
python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/python examples/a.py
```
<!-- set-up: test -->
```bash
python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && .venv/bin/pytest
```
"""


def tree(root: Path, readme: str, ci: str = "< README.md\n") -> Path:
    """A small tree with a README and a CI script."""
    files = {
        "README.md": readme,
        ".ci/run": ci,
        "examples/a.py": "",
        "pyproject.toml": "[project.optional-dependencies]\ndev = []\n",
    }
    return plant(root, files)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("readme", "ci", "says"),
    [
        (README.replace("set-up: run", "run"), "< README.md", "the set-up commands are ['test']"),
        (README + README.replace("test", "more"), "< README.md", "'more'"),
        (README + README, "< README.md", "the set-up commands are"),
        (README + "then `pip install x`", "< README.md", "outside of the two"),
        (README.replace("pytest\n", "pytest\nls\n"), "< README.md", "test has more than one line"),
        (README.replace("[dev]", "[dev,gpu]"), "< README.md", "the extra gpu"),
        (README.replace("a.py", "b.py"), "< README.md", "examples/b.py, which does not exist"),
        (README, "pytest", "does not read README.md"),
        (README, "< README.md\n.venv/bin/pip install .", "a command of its own"),
    ],
)
def test_a_wrong_set_up_is_found(tmp_path: Path, readme: str, ci: str, says: str) -> None:
    """A missing, extra, repeated or broken set-up command is found, and so is a script that has its own."""
    found = violations(tree(tmp_path, readme, ci))
    assert any(says in message for message in found), found


@pytest.mark.unit
def test_a_right_set_up_passes(tmp_path: Path) -> None:
    """Two commands of one line each, read by the CI script, are what is wanted."""
    assert violations(tree(tmp_path, README)) == []


def shown_by_ci(root: Path) -> "subprocess.CompletedProcess[str]":
    """What this repository's CI script would run for the tests, in this tree."""
    shutil.copy(ROOT / ".ci" / "run", root / ".ci" / "run")
    return subprocess.run([".ci/run", "show"], cwd=root, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.process
def test_ci_runs_what_the_readme_says(tmp_path: Path) -> None:
    """Whatever the README's test command becomes, CI runs that, and here it runs the one that we read."""
    changed = README.replace("bin/pytest", "bin/pytest --changed")
    result = shown_by_ci(tree(tmp_path / "planted", changed))
    assert result.stdout.strip() == set_up(tmp_path / "planted")["test"]
    assert result.stdout.strip().endswith("--changed")
    (tmp_path / "own" / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / "README.md", tmp_path / "own")
    assert shown_by_ci(tmp_path / "own").stdout.strip() == set_up(ROOT)["test"]


@pytest.mark.process
def test_ci_refuses_a_readme_without_a_test_command(tmp_path: Path) -> None:
    """A README that lost its mark fails CI, rather than leaving it with nothing to run."""
    result = shown_by_ci(tree(tmp_path, README.replace("set-up: test", "set up: test")))
    assert result.returncode == 1
    assert "no test command" in result.stderr


KILLED = re.compile(r"^<!-- killed: as a test -->\n```bash\n(?P<script>.*?)\n```$", re.MULTILINE | re.DOTALL)
SCRIPT_TIMEOUT_S = 55


@pytest.mark.process
def test_the_run_that_the_readme_kills_continues(tmp_path: Path) -> None:
    """The block as it stands there, but for port and environment: rollouts go on, and calls are not repeated."""
    found = KILLED.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    (tmp_path / "runs").mkdir()
    (tmp_path / "examples" / "collect").mkdir(parents=True)
    for name in ("run.toml", "rows.jsonl"):
        text = (ROOT / "examples" / "collect" / name).read_text(encoding="utf-8")
        (tmp_path / "examples" / "collect" / name).write_text(text.replace(":8000", f":{port}"), encoding="utf-8")
    script = found["script"].replace("8000", port).replace(".venv/bin/midflight", f"{sys.executable} -m midflight")
    ran = subprocess.run(
        ["bash"], input=script, cwd=tmp_path, capture_output=True, text=True, timeout=SCRIPT_TIMEOUT_S, check=False
    )
    says = re.search(r"(\d+) continued \((\d+) model calls", ran.stderr)
    assert says is not None, ran
    assert int(says[1]) > 0
    assert int(says[2]) > 0
    rows = (tmp_path / "examples" / "collect" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 24
