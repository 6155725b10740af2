"""Python in the docs is quoted from examples, examples run, and links lead somewhere."""

import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from .commands import FENCE
from .tree import ROOT, expect_none, modules, pages, plant

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
EXAMPLE_TIMEOUT_S = 50
SAYS = {
    "served_controller.py": r"\b[1-9]\d* model calls of 4 .* not made again\n(?:\S+/2\.1#\d: reward 1\.0\n){4}",
    "trainer.py": r"goes on behind 6 rows, with [1-4] in flight\n12 rows, each trained on once\n",
}
"""What an example says that has done what it is for; any other says something."""
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
PYTHON = {"python", "py", "python3", "pycon"}


def quoted(block: str, examples: list[str]) -> bool:
    """Whether consecutive lines of an example are this block, at any indentation."""
    wanted = textwrap.dedent(block).strip()
    for example in examples:
        lines = example.splitlines()
        size = len(wanted.splitlines())
        windows = ("\n".join(lines[i : i + size]) for i in range(len(lines) - size + 1))
        if any(textwrap.dedent(window).strip() == wanted for window in windows):
            return True
    return False


def unquoted_blocks(root: Path) -> Iterator[str]:
    """Python blocks of the pages that no example holds, and so nothing runs."""
    examples = [module.text for module in modules(root, "examples")]
    for page in pages(root):
        for block in FENCE.finditer(page.text):
            if block["language"] in PYTHON and not quoted(block["body"], examples):
                line = page.text[: block.start()].count("\n") + 1
                yield f"{page.path}:{line}: this Python is in no file of examples/"


def anchors(markdown: str) -> set[str]:
    """The anchors that the headings of a page give it."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(root: Path) -> Iterator[str]:
    """Relative links of the pages that lead to no file or no heading."""
    for page in pages(root):
        for link in LINK.finditer(FENCE.sub("", page.text)):
            target = root / page.path.parent / link[1] if link[1] else root / page.path
            if not target.exists():
                yield f"{page.path}: {link[1]} does not exist"
            elif link[2] and link[2] not in anchors(target.read_text(encoding="utf-8")):
                yield f"{page.path}: {link[1]} has no heading #{link[2]}"


RUN_ELSEWHERE = frozenset({"training"})
"""Folders of examples/ that a test of their own runs: tests/scenarios/test_training.py."""


def nested_examples(root: Path) -> Iterator[str]:
    """Examples that no test would run, because they lie in a folder of their own."""
    nested = (m for m in modules(root, "examples") if len(m.folder) > 1 and m.folder[1] not in RUN_ELSEWHERE)
    yield from (f"{m.path}: lies too deep to be run" for m in nested)


def violations(root: Path) -> list[str]:
    """Everything in the pages of a tree that is untested or leads nowhere."""
    return [*unquoted_blocks(root), *broken_links(root), *nested_examples(root)]


@pytest.mark.unit
def test_python_in_the_docs_runs_and_links_lead_somewhere() -> None:
    """Every Python block is quoted from an example, and every relative link has a target."""
    expect_none(violations(ROOT))


@pytest.mark.process
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_as_it_is(example: Path, tmp_path: Path) -> None:
    """Each file of examples/ runs to its end in an empty folder, with warnings as errors, and says something."""
    command = [sys.executable, "-W", "error", str(example)]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=EXAMPLE_TIMEOUT_S, check=False
    )
    assert result.returncode == 0, result.stderr
    assert re.search(SAYS.get(example.name, "."), result.stdout), result.stdout


EXAMPLE = "def main() -> None:\n    first()\n    second()\n"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"docs/a.md": "text\n```python\nthird()\n```\n"}, "docs/a.md:2: this Python"),
        ({"README.md": "```python\nfirst()\nthird()\n```\n"}, "README.md:1: this Python"),
        ({"README.md": "```python\nfirst\n```\n"}, "README.md:1: this Python"),
        ({"README.md": "[a](b.md)"}, "README.md: b.md does not exist"),
        ({"docs/a.md": "[a](README.md)", "README.md": ""}, "docs/a.md: README.md does not exist"),
        ({"docs/a.md": "[a](b.md#two)", "docs/b.md": "# One\n"}, "b.md has no heading #two"),
        ({"examples/deep/b.py": ""}, "lies too deep"),
    ],
)
def test_what_nothing_runs_or_leads_nowhere_is_found(tmp_path: Path, files: dict[str, str], says: str) -> None:
    """Invented Python, a broken link and an example out of reach are each one violation."""
    [message] = violations(plant(tmp_path, {"examples/a.py": EXAMPLE, **files}))
    assert says in message


@pytest.mark.unit
def test_quotes_and_good_links_pass(tmp_path: Path) -> None:
    """A block may quote the inside of a function, and a link may have an anchor or leave the repository."""
    page = (
        "# It's one `head`\n```python\nfirst()\nsecond()\n```\n```json\n[a](b.md)\n```\n"
        "[a](#its-one-head) [b](../README.md) [c](https://example.org/x.md#y)\n"
    )
    files = {"examples/a.py": EXAMPLE, "docs/a.md": page, "README.md": f"```python\n{EXAMPLE}```\n"}
    assert violations(plant(tmp_path, files)) == []


@pytest.mark.process
@pytest.mark.parametrize("name", ["collect_and_kill.py", "evaluate.py"])
def test_an_example_of_a_run_takes_nothing_over_from_one_in_its_folder(name: str, tmp_path: Path) -> None:
    """Beside the run.toml that it copies may lie finished rows and checkpoints, as after the README: not one counts."""
    left = shutil.ignore_patterns("results*", "checkpoints", "__pycache__")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=left)
    (tmp_path / "examples" / "collect" / "results.jsonl.segments").mkdir()
    (tmp_path / "examples" / "collect" / "checkpoints").mkdir()
    (tmp_path / "examples" / "collect" / "checkpoints" / "left").touch()
    command = [sys.executable, str(tmp_path / "examples" / name)]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=EXAMPLE_TIMEOUT_S, check=False
    )
    assert result.returncode == 0, result.stderr
    [run] = (tmp_path / "runs").iterdir()
    assert len((run / "results.jsonl").read_text(encoding="utf-8").splitlines()) == 24
    assert not (run / "checkpoints" / "left").exists()
    assert ("killed with SIGKILL" in result.stdout) is (name == "collect_and_kill.py")
