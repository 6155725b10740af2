"""A view of a source tree, real or planted: its Python modules and its pages."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = ("store", "participants", "orchestrator", "midflight")
"""What ships, lowest first: each may import those before it."""
COMPANIONS = ("tests", "bench", "examples")
"""Python that does not ship."""

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file, parsed when somebody looks, once a process."""

    path: PurePosixPath
    """Relative to the root."""
    text: str

    @property
    def tree(self) -> ast.Module:
        """What it is parsed to, which nobody changes."""
        return _parsed(self.text)

    @property
    def folder(self) -> tuple[str, ...]:
        """The names of the packages that it is in, outermost first."""
        return self.path.parent.parts

    def at(self, node: ast.stmt | ast.expr) -> str:
        """Where a node stands, for a message."""
        return f"{self.path}:{node.lineno}"

    @property
    def nodes(self) -> Sequence[ast.AST]:
        """Every node of the tree."""
        return _nodes(self.text)

    def functions(self) -> Sequence[AnyFunction]:
        """Every function and method, nested ones too."""
        return _functions(self.text)


@dataclass(frozen=True, slots=True)
class Page:
    """One text file that people or the shell read."""

    path: PurePosixPath
    text: str


def modules(root: Path, *folders: str) -> list[Module]:
    """The Python files below these folders of a root, sorted by path."""
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return [Module(_relative(path, root), path.read_text(encoding="utf-8")) for path in paths]


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _nodes(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_parsed(text)))


@cache
def _functions(text: str) -> tuple[AnyFunction, ...]:
    return tuple(node for node in _nodes(text) if isinstance(node, AnyFunction))


def pages(root: Path) -> list[Page]:
    """The Markdown files at the root and in docs/."""
    paths = [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]
    return [Page(_relative(path, root), path.read_text(encoding="utf-8")) for path in paths]


def plant(root: Path, files: Mapping[str, str]) -> Path:
    """Write a small tree to try a check on, and return its root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def expect_none(found: list[str]) -> None:
    """Fail with every violation on a line of its own; a plain comparison of lists would show only the first."""
    __tracebackhide__ = True
    assert not found, "\n".join(["", *found])


def _relative(path: Path, root: Path) -> PurePosixPath:
    return PurePosixPath(path.relative_to(root).as_posix())
