"""The runs that docs/tasks.md shows, as they stand there."""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from .tree import ROOT

pytestmark = pytest.mark.process

RUNS = re.compile(r"^<!-- runs: (?P<name>\w+) -->\n```bash\n(?P<script>.*?)\n```$", re.MULTILINE | re.DOTALL)
SCRIPT_TIMEOUT_S = 90
EXPECTED: Mapping[str, tuple[str, Mapping[tuple[str, float], int]]] = {
    "own": ("math_verify", {("3.5", 1.0): 2, (r"\frac{3}{4}", 1.0): 2, ("1440", 0.0): 2}),
    "reasoning": ("reasoning_gym", {("chain_sum", 1.0): 8, ("leg_counting", 0.0): 8}),
}
"""The package that it needs, and how often its results have which task with which reward, as the page says."""


def test_every_run_of_the_page_is_tried() -> None:
    """None is added without a test, and none goes unseen."""
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    assert {found["name"] for found in RUNS.finditer(page)} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_run_of_the_page_gives_what_the_page_says(name: str, tmp_path: Path) -> None:
    """But for port and environment, in a fresh copy of the examples."""
    package, expected = EXPECTED[name]
    pytest.importorskip(package)
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    [script] = [found["script"] for found in RUNS.finditer(page) if found["name"] == name]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shutil.copytree(ROOT / "examples" / "tasks", tmp_path / "examples" / "tasks", ignore=shutil.ignore_patterns("runs"))
    file = tmp_path / "examples" / "tasks" / f"{name}.toml"
    file.write_text(file.read_text(encoding="utf-8").replace(":8000", f":{port}"), encoding="utf-8")
    script = re.sub(r"^midflight", f"{sys.executable} -m midflight", script.replace("8000", port), flags=re.MULTILINE)
    ran = subprocess.run(
        ["bash"], input=script, cwd=tmp_path, capture_output=True, text=True, timeout=SCRIPT_TIMEOUT_S, check=False
    )
    results = tmp_path / "examples" / "tasks" / "runs" / name / "results.jsonl"
    assert results.exists(), ran
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    told = [row["expected_answer"] if name == "own" else row["reasoning_gym"]["dataset"] for row in rows]
    assert Counter(zip(told, (row["reward"] for row in rows), strict=True)) == expected
