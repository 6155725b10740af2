"""The examples of docs/commands.md are run again, in their order, and print what the page shows."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.commands import app

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "commands.md"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 50

CHANGES = (
    (re.compile(r"[0-9a-f]{64}|[0-9a-f]{32}"), "<hex>"),
    (re.compile(r"\d+(\.\d+)? (kB|B)\b"), "<size>"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:+]+"), "<time>"),
    (re.compile(r"just now|\d+ min ago"), "<age>"),
    (re.compile(r"written by .*"), "written by <software>"),
    (re.compile(r" +"), " "),
)
"""What differs from one run to the next, or between versions of what is installed."""


def steady(text: str) -> str:
    """The text without what changes."""
    for pattern, name in CHANGES:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def examples() -> Iterator[tuple[str, str]]:
    """Each command of the page with the output below it."""
    for block in CONSOLE.findall(PAGE.read_text(encoding="utf-8")):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = example.partition("\n")
            yield command, output


def output_of(command: str, folder: Path) -> str:
    """What a command prints, on either stream."""
    program, *arguments = shlex.split(command)
    if program == "midflight":
        result = CliRunner().invoke(app, arguments)
        return result.output.replace(f"file://{folder}", "file:///...")
    script = [sys.executable, str(ROOT / arguments[0])]
    return subprocess.run(script, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout


def test_every_example_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, one after another; the checkpoints that the page begins with are three runs of the example."""
    monkeypatch.chdir(tmp_path)
    shown = list(examples())
    assert len(shown) > 8
    for command, expected in shown:
        assert steady(output_of(command, tmp_path)) == steady(expected), command
        if command.startswith("python"):
            for _ in range(2):
                output_of(command, tmp_path)
