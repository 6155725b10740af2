"""Imports point down only: store <- participants <- orchestrator <- midflight."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .tree import COMPANIONS, PACKAGES, ROOT, Module, expect_none, modules, plant

pytestmark = pytest.mark.unit


@dataclass(frozen=True, slots=True)
class Arrow:
    """One import statement, or call that imports by name."""

    where: str
    target: str
    """The first name of an absolute import; empty for a relative one."""
    level: int = 0
    """How many dots a relative import has."""


def arrows(module: Module) -> Iterator[Arrow]:
    """Every import of a module, inside functions and type-checking blocks too."""
    for node in module.nodes:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Arrow(module.at(node), alias.name.split(".")[0])
            case ast.ImportFrom(module=name, level=level):
                target = (name or "").split(".")[0] if level == 0 else ""
                yield Arrow(module.at(node), target, level)
            case ast.Call(func=func, args=[ast.Constant(value=str() as name), *_]) if _imports(func):
                yield Arrow(module.at(node), name.split(".")[0])


def _imports(func: ast.expr) -> bool:
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name in {"import_module", "__import__"}


def problem(module: Module, arrow: Arrow) -> str:
    """Why this import is wrong here, or nothing."""
    own = module.folder[0]
    if arrow.level > len(module.folder):
        return f"{arrow.where}: a relative import leaves {own}"
    if arrow.target in COMPANIONS:
        return f"{arrow.where}: {own} ships and imports {arrow.target}, which does not"
    if arrow.target not in PACKAGES:
        return ""
    if arrow.target == own:
        return f"{arrow.where}: import relatively within {own}"
    if PACKAGES.index(arrow.target) > PACKAGES.index(own):
        return f"{arrow.where}: {own} imports {arrow.target}, which stands above it"
    return ""


def violations(root: Path) -> list[str]:
    """Every wrong import in the packages of a tree."""
    found = (problem(module, arrow) for module in modules(root, *PACKAGES) for arrow in arrows(module))
    return [message for message in found if message]


def test_imports_point_down_only() -> None:
    """No package that ships imports one above it, or itself by its own name."""
    expect_none(violations(ROOT))


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("store/a.py", "import participants", "store imports participants"),
        ("store/backends/a.py", "from orchestrator.cli import app", "store imports orchestrator"),
        ("store/a.py", "def f():\n    import midflight.x", "store imports midflight"),
        ("participants/a.py", "if TYPE_CHECKING:\n    from orchestrator import x", "participants imports"),
        ("orchestrator/a.py", "import midflight", "orchestrator imports midflight"),
        ("orchestrator/a.py", "import_module('midflight.x')", "orchestrator imports midflight"),
        ("store/a.py", "from store.errors import StoreError", "import relatively within store"),
        ("store/a.py", "from ..participants import x", "a relative import leaves store"),
        ("midflight/a.py", "from tests.support import x", "which does not"),
    ],
)
def test_a_wrong_arrow_is_found(tmp_path: Path, path: str, text: str, says: str) -> None:
    """Each way of importing in the wrong direction is one violation that names the file."""
    [message] = violations(plant(tmp_path, {path: text}))
    assert message.startswith(path)
    assert says in message


def test_right_arrows_pass(tmp_path: Path) -> None:
    """Absolute imports of lower packages, relative ones within a package and foreign ones are all fine."""
    root = plant(
        tmp_path,
        {
            "store/backends/a.py": "from ..errors import x\nfrom . import y\nimport anyio",
            "participants/a.py": "from store import x",
            "orchestrator/a.py": "from participants import x\nimport store.errors",
            "midflight/__init__.py": "from store import x\nimport orchestrator",
        },
    )
    assert violations(root) == []
