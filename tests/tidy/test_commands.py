"""Every command line that the docs and messages show exists, and every command that exists is documented."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
import typer

from .commands import FENCE, Command, Option, inline_code, invocations, problem, read_app, shell_lines
from .tree import PACKAGES, ROOT, Page, expect_none, modules, pages, plant

HEADING = re.compile(r"^(?P<level>#+) (?P<title>.*)$", re.MULTILINE)
SHARED_TITLE = "common"
"""A section with this word in its title documents options for all commands."""
RUN_TIMEOUT_S = 50


@pytest.fixture
def midflight() -> Command:
    """The commands of this repository."""
    return read_app(importlib.import_module("orchestrator.cli.commands").app)


@pytest.fixture
def small() -> Command:
    """The commands of a small app, to try the checks on."""
    app, group = typer.Typer(add_completion=False), typer.Typer()
    app.add_typer(group, name="shelf")

    @app.callback()
    def top(version: bool = False) -> None: ...

    @group.command()
    def put(book: str, top: bool = False, row: Annotated[int, typer.Option("--row", "-r")] = 0) -> None: ...

    @group.command(hidden=True)
    def burn(book: str) -> None: ...

    return read_app(app)


def wrong_lines(root: Path, app: Command) -> list[str]:
    """Command lines in pages, docstrings and messages that the app would not understand."""
    found = []
    sources = [*pages(root), *(Page(module.path, module.text) for module in modules(root, *PACKAGES))]
    for source in sources:
        shown = [*shell_lines(source.text), *inline_code(source.text)]
        found += [
            f"{source.path}: `midflight {line}`: {reason}"
            for line in invocations(iter(shown))
            if (reason := problem(line, app))
        ]
    return found


def sections(markdown: str) -> Iterator[tuple[str, str]]:
    """Each title of a page with the text below it, down to the next title of its level or above."""
    text = FENCE.sub(lambda block: block[0].replace("\n#", "\n "), markdown)
    headings = list(HEADING.finditer(text))
    for i, heading in enumerate(headings):
        rest = (h.start() for h in headings[i + 1 :] if len(h["level"]) <= len(heading["level"]))
        yield heading["title"], text[heading.end() : next(rest, len(text))]


def mentions(text: str, word: str) -> bool:
    """Whether a text has this word or option, and not just a longer one that begins or ends with it."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def unnamed(options: tuple[Option, ...], text: str) -> Iterator[str]:
    """The names of options that a text leaves out."""
    for option in options:
        yield from (name for name in option.names if name.startswith("--") and not mentions(text, name))


def undocumented(root: Path, app: Command) -> list[str]:
    """Commands without a section in docs/commands.md, and options that their section leaves out."""
    page = root / "docs" / "commands.md"
    if not page.exists():
        return ["docs/commands.md does not exist"]
    parts = list(sections(page.read_text(encoding="utf-8")))
    shared = "\n".join(body for title, body in parts if SHARED_TITLE in title.lower())
    found = []
    for command in app.leaves():
        name = command.path.rpartition(" ")[2]
        own = [body for title, body in parts if mentions(title, name)]
        if not own:
            found.append(f"{command.path} has no section")
            continue
        missing = unnamed(command.options, "\n".join([shared, *own]))
        found += [f"{command.path} does not document {option}" for option in missing]
    return found


@pytest.mark.unit
def test_every_command_shown_is_real(midflight: Command) -> None:
    """Whoever copies a command out of a page or an error message gets one that exists, options and all."""
    expect_none(wrong_lines(ROOT, midflight))


@pytest.mark.unit
def test_every_command_is_documented(midflight: Command) -> None:
    """Each command has a section in docs/commands.md, which names each of its options."""
    expect_none(undocumented(ROOT, midflight))


@pytest.mark.process
@pytest.mark.usefixtures("midflight")
def test_the_script_and_the_module_are_the_same_program(tmp_path: Path) -> None:
    """`midflight` and `python -m midflight` both run, from any folder, and offer the same commands."""
    script = [str(Path(sys.executable).with_name("midflight"))]
    module = [sys.executable, "-m", "midflight"]
    shown = [
        subprocess.run(
            [*command, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=True
        ).stdout.replace("python -m midflight", "midflight")
        for command in (script, module)
    ]
    assert "checkpoints" in shown[0]
    assert [line.split() for line in shown[0].splitlines()] == [line.split() for line in shown[1].splitlines()]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```bash\nmidflight shelf take x\n```\n", "midflight shelf has no command take"),
        ("```bash\n$ .venv/bin/midflight shelf put x --low\n```\n", "shelf put has no option --low"),
        ("```sh\nls | midflight shelf put x \\\n  --low=3 | jq\n```\n", "no option --low"),
        ("```bash\npython -m midflight shef\n```\n", "midflight has no command shef"),
        ("see `midflight shelf take`, or not", "no command take"),
        ("see `midflight shelf\nburn x`", "no command burn"),
    ],
)
def test_a_command_that_does_not_exist_is_found(tmp_path: Path, small: Command, text: str, says: str) -> None:
    """A wrong name of a command or option is found wherever a page shows it."""
    [message] = wrong_lines(plant(tmp_path, {"docs/a.md": text}), small)
    assert message.startswith("docs/a.md: ")
    assert says in message


@pytest.mark.unit
def test_a_wrong_command_in_a_message_is_found(tmp_path: Path, small: Command) -> None:
    """An error's hint may name only what exists."""
    root = plant(tmp_path, {"store/errors.py": 'HINT = "run `midflight shelf take`"\n'})
    assert len(wrong_lines(root, small)) == 1


@pytest.mark.unit
def test_right_commands_pass(tmp_path: Path, small: Command) -> None:
    """Values of options, placeholders, brackets, comments and other programs are not mistaken for commands."""
    text = (
        "```bash\nmidflight --version shelf put x -r 3 --row 4 --no-top # --what\n"
        "midflight shelf put --help && midflight shelf put x > y\nmidflights shelf take\n```\n"
        "`midflight shelf put [--row N] BOOK`, `midflight shelf COMMAND --help`, `midflight/`, `midflight`\n"
        "```text\nmidflight anything\n```\n"
    )
    assert wrong_lines(plant(tmp_path, {"README.md": text}), small) == []


DOCS = "# Commands\n## Common options\n`--top`, `--no-top`\n## `midflight shelf put BOOK`\n### Options\n`--row`\n"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DOCS, []),
        (DOCS.replace("shelf put", "shelf"), ["midflight shelf put has no section"]),
        (DOCS.replace("--row", "--rows"), ["midflight shelf put does not document --row"]),
        (
            DOCS.replace("Common", "Other"),
            [f"midflight shelf put does not document {o}" for o in ("--top", "--no-top")],
        ),
        (DOCS.replace("### Options", "## Another"), ["midflight shelf put does not document --row"]),
    ],
)
def test_what_is_not_documented_is_found(tmp_path: Path, small: Command, text: str, expected: list[str]) -> None:
    """A command without a section and an option outside of its section are both found."""
    assert undocumented(plant(tmp_path, {"docs/commands.md": text}), small) == expected


@pytest.mark.unit
def test_a_missing_page_is_found(tmp_path: Path, small: Command) -> None:
    """Without the page nothing is documented."""
    assert undocumented(tmp_path, small) == ["docs/commands.md does not exist"]
