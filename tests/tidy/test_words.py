"""What no file here may say or call: hosts, machine paths, pickles, patches, sleeps, loose tasks."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from .tree import COMPANIONS, PACKAGES, ROOT, Module, expect_none, modules, plant

pytestmark = pytest.mark.unit

HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("quay", "io"),
        ("anaconda", "org"),
    )
)
"""Whoever installs decides where from. Put together here, so that this file does not name them either."""
MACHINE_PATH = re.compile(r"(?<![\w.~:/>}-])/(?:work|root|home|Users|workspace)/[\w.-]")
"""The folder alone is no path of one machine: `/root` is also what the kernel calls a field."""
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
LOOSE_TASKS = {"create_task", "ensure_future", "run_coroutine_threadsafe"}
MAY_POLL = PurePosixPath("tests/support")
"""Another program's readiness is no event that we could await."""

TOP_LEVEL = ("*.md", "*.toml", ".gitignore", "LICENSE", ".ci/*")
FOLDERS = (*PACKAGES, *COMPANIONS, "docs")
TEXT = {".py", ".md", ".toml", ".json", ".txt", ".sh", ".yaml", ".yml", ".cfg", ".ini"}


def texts(root: Path) -> Iterator[Path]:
    """The text files of a tree that belong to the repository."""
    for pattern in TOP_LEVEL:
        yield from (path for path in sorted(root.glob(pattern)) if path.is_file())
    for folder in FOLDERS:
        yield from (path for path in sorted((root / folder).rglob("*")) if path.suffix in TEXT)


def word_problems(root: Path) -> Iterator[str]:
    """Lines that name a package registry or a path of somebody's machine."""
    for path in texts(root):
        text = path.read_text(encoding="utf-8")
        if not any(host in text for host in HOSTS) and not MACHINE_PATH.search(text):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            where = f"{path.relative_to(root)}:{number}"
            if any(host in line for host in HOSTS):
                yield f"{where}: names a registry host"
            if MACHINE_PATH.search(line):
                yield f"{where}: names a path of one machine"


def imported(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """Each import statement with each dotted name that it brings in."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def called(module: Module) -> Iterator[tuple[ast.Call, str, str]]:
    """Each call by name: the call, what stands before the last dot, and the name after it."""
    for node in module.nodes:
        if isinstance(node, ast.Call):
            yield node, *_parts(node.func)


def _parts(function: ast.expr) -> tuple[str, str]:
    """What stands before the last dot, where it is a name, and the name after it."""
    if isinstance(function, ast.Attribute):
        return function.value.id if isinstance(function.value, ast.Name) else "", function.attr
    return "", function.id if isinstance(function, ast.Name) else ""


def import_problems(module: Module) -> Iterator[str]:
    """Imports of something that unpickles, patches, or hides a sleep behind a bare name."""
    for node, name in imported(module):
        head, _, tail = name.partition(".")
        if head in UNPICKLERS:
            yield f"{module.at(node)}: imports {head}, and nothing here is pickled"
        if name.startswith("unittest.mock") or head == "mock" or name == "unittest.mock":
            yield f"{module.at(node)}: imports mock; write a small public fake"
        if tail in {"sleep", "sleep_until"}:
            yield f"{module.at(node)}: imports a bare sleep; call it through its module"


def call_problems(module: Module) -> Iterator[str]:
    """Calls that start a task without an owner, or that sleep in a test."""
    in_tests = module.folder[0] == "tests" and not module.path.is_relative_to(MAY_POLL)
    for node, owner, name in called(module):
        if name in LOOSE_TASKS:
            yield f"{module.at(node)}: {name} starts a task that no task group owns"
        if in_tests and name in {"sleep", "sleep_until"} and owner in {"time", "anyio", "asyncio", "trio"}:
            yield f"{module.at(node)}: sleeps in a test; wait for an event or use a clock of your own"


def docstring_problems(module: Module) -> Iterator[str]:
    """A module whose first line does not say what it is for."""
    docstring = ast.get_docstring(module.tree, clean=False)
    if not docstring or not docstring.splitlines()[0].strip() or module.tree.body[0].lineno != 1:
        yield f"{module.path}: its first line does not say what it is for"


def violations(root: Path) -> list[str]:
    """Everything in a tree that is not to be said or called."""
    found = list(word_problems(root))
    for module in modules(root, *PACKAGES, *COMPANIONS):
        found += [*import_problems(module), *call_problems(module), *docstring_problems(module)]
    return found


def test_nothing_forbidden_is_said_or_called() -> None:
    """No registry, machine path, pickle, mock, sleeping test or loose task; each module says what it is for."""
    expect_none(violations(ROOT))


SLASH = "/"
"""Keeps the planted paths below from being found in this file."""


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("README.md", f"from https://{HOSTS[0]}/simple", "registry host"),
        (".ci/run", f"--index-url https://{HOSTS[1]}", "registry host"),
        ("pyproject.toml", f"x = '{SLASH}work/main'", "path of one machine"),
        ("docs/a.md", f"see `{SLASH}root/.cache`", "path of one machine"),
        ("tests/golden/a.json", f'["{SLASH}home/me/x"]', "path of one machine"),
        ("store/a.py", '"""A."""\nimport pickle', "imports pickle"),
        ("bench/a.py", '"""A."""\ndef f():\n    from marshal import loads', "imports marshal"),
        ("tests/test_a.py", '"""A."""\nfrom unittest.mock import patch', "imports mock"),
        ("tests/test_a.py", '"""A."""\nfrom unittest import mock', "imports mock"),
        ("tests/test_a.py", '"""A."""\nfrom time import sleep', "imports a bare sleep"),
        ("tests/test_a.py", '"""A."""\nimport anyio\nasync def f(): await anyio.sleep(1)', "sleeps in a test"),
        ("tests/store/test_a.py", '"""A."""\nimport time\ntime.sleep(1)', "sleeps in a test"),
        ("store/a.py", '"""A."""\nimport asyncio\nasyncio.create_task(f())', "create_task starts a task"),
        ("store/a.py", '"""A."""\nloop().ensure_future(f())', "ensure_future starts a task"),
        ("store/a.py", "import anyio", "first line does not say"),
        ("store/a.py", '\n"""A."""', "first line does not say"),
        ("examples/a.py", '"""\nA."""', "first line does not say"),
        ("tests/__init__.py", "", "first line does not say"),
    ],
)
def test_a_forbidden_thing_is_found(tmp_path: Path, path: str, text: str, says: str) -> None:
    """Each thing that is not to be said or called is found, once, wherever it stands."""
    [message] = violations(plant(tmp_path, {path: text}))
    assert message.startswith(path)
    assert says in message


def test_what_only_looks_forbidden_passes(tmp_path: Path) -> None:
    """URLs, placeholders, relative paths, polling support code and sleeping for ever are all allowed."""
    files = {
        "docs/a.md": "s3://bucket/work/x, ./work/x, <root>/root/x, ~/home, a/home/b, /workers/a, /root opts, /work",
        "tests/support/a.py": '"""A."""\nimport anyio\nasync def f(): await anyio.sleep(1)',
        "tests/test_a.py": '"""A."""\nimport anyio\nasync def f(): await anyio.sleep_forever()',
        "store/a.py": '"""A."""\nimport anyio\nasync def f(clock): await anyio.sleep(1); await clock.sleep(1)',
    }
    assert violations(plant(tmp_path, files)) == []
