"""The resources servers that ship, found in their source."""

import ast
from pathlib import Path

FOLDERS = ("participants/servers", "participants/verifiers")
ROOT = Path(__file__).parents[2]


def _is_server(node: ast.ClassDef) -> bool:
    """One that says its mode and leaves nothing to its subclasses."""
    declares = any(ast.unparse(line).startswith("checkpoint_mode = ") for line in node.body)
    return declares and "@abstractmethod" not in ast.unparse(node)


def _found() -> dict[str, str]:
    modules = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
    return {
        node.name: f"{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}:{node.name}"
        for path in modules
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and _is_server(node)
    }


SHIPPED = _found()
"""Class name to `module:Class`."""
