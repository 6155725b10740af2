"""Each `__init__` is a list of names, and the list is whole."""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from .tree import PACKAGES, ROOT, Module, expect_none, modules, plant

pytestmark = pytest.mark.unit


def order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """The order of `__all__`, as ruff has it: constants, classes, the rest; numbers by value."""
    group = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    pieces = re.findall(r"\d+|\D+", name)
    return group, [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in pieces]


def assigned(statement: ast.stmt) -> str:
    """The name that a plain assignment sets, or nothing."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name
    return ""


def exported(module: Module) -> list[str]:
    """The names in `__all__`, in order; none if there is no such list."""
    for statement in module.tree.body:
        if isinstance(statement, ast.Assign) and assigned(statement) == "__all__":
            return [str(name) for name in ast.literal_eval(statement.value)]
    return []


def public_imports(module: Module) -> Iterator[str]:
    """The names that the imports of a module bind, without those that begin with an underscore."""
    for statement in (*module.tree.body, *lazy_imports(module)):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                name = alias.asname or alias.name.split(".")[0]
                if not name.startswith("_"):
                    yield name


def lazy_imports(module: Module) -> list[ast.stmt]:
    """What stands under `if _TYPE_CHECKING`, where a `__getattr__` imports the same when it is asked for."""
    if not any(assigned(statement) == "__getattr__" for statement in module.tree.body):
        return []
    blocks = [s for s in module.tree.body if isinstance(s, ast.If) and ast.unparse(s.test) == "_TYPE_CHECKING"]
    return [statement for block in blocks for statement in block.body]


def list_problems(module: Module) -> Iterator[str]:
    """Why an `__init__` is more or less than a list of names."""
    if not ast.get_docstring(module.tree):
        yield f"{module.path}: has no docstring"
    lazy = lazy_imports(module)
    for statement in module.tree.body[1:]:
        if isinstance(statement, ast.Import | ast.ImportFrom) or (isinstance(statement, ast.If) and lazy):
            continue
        if assigned(statement) not in {"__all__", "__version__", "__getattr__"}:
            yield f"{module.at(statement)}: is neither an import nor __all__ nor __version__"
    names, expected = exported(module), set(public_imports(module))
    if any(assigned(statement) == "__version__" for statement in module.tree.body):
        expected.add("__version__")
    if names != sorted(set(names), key=order):
        yield f"{module.path}: __all__ is not sorted, or names something twice"
    for name in sorted(expected ^ set(names)):
        yield f"{module.path}: {name} is {'not in __all__' if name in expected else 'never imported'}"


def error_problems(root: Path) -> Iterator[str]:
    """Public error classes that the own package, or midflight, does not export."""
    inits = {m.folder: set(exported(m)) for m in modules(root, *PACKAGES) if m.path.name == "__init__.py"}
    for module in modules(root, *PACKAGES):
        own = module.folder[:1]
        if module.path.name != "errors.py" or own not in inits:
            continue
        classes = [s.name for s in module.tree.body if isinstance(s, ast.ClassDef)]
        for package in (own, ("midflight",)):
            for name in classes:
                if not name.startswith("_") and name not in inits.get(package, set()):
                    yield f"{module.path}: {name} is not exported by {package[0]}"


def violations(root: Path) -> list[str]:
    """Every way in which the export lists of a tree are wrong."""
    inits = [module for module in modules(root, *PACKAGES) if module.path.name == "__init__.py"]
    return [*(message for module in inits for message in list_problems(module)), *error_problems(root)]


def test_every_init_is_a_list_of_names() -> None:
    """Each `__init__` holds imports and their sorted list, and every public error class is on it."""
    expect_none(violations(ROOT))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_exists(package: str) -> None:
    """What `__all__` promises can be imported, and nothing warns on the way."""
    module = importlib.import_module(package)
    missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
    assert missing == []


def test_authors_need_the_public_names_alone() -> None:
    """The examples of a server and an agent of one's own import nothing of ours but from midflight."""
    ours = {package for package in PACKAGES if package != "midflight"}
    for path in (ROOT / "examples" / f"own_{what}.py" for what in ("agent", "server")):
        imports = [s for s in ast.walk(ast.parse(path.read_text())) if isinstance(s, ast.ImportFrom)]
        assert {str(s.module).split(".")[0] for s in imports} & ours == set(), path


def test_every_package_ships_and_is_typed() -> None:
    """The wheel holds the packages that this house has, each with its marker for type checkers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == set(PACKAGES)
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").is_file()] == []


def folders_without_init(root: Path) -> list[str]:
    """Folders of Python that are no package: pytest would then import tests/store in place of store."""
    folders = {module.path.parent for module in modules(root, *PACKAGES, "tests")}
    return sorted(str(folder) for folder in folders if not (root / folder / "__init__.py").is_file())


def test_every_folder_is_a_package() -> None:
    """Packages and the tests that mirror them have different full names, so none stands in for the other."""
    expect_none(folders_without_init(ROOT))


def test_a_folder_that_is_no_package_is_found(tmp_path: Path) -> None:
    """A folder of Python without an `__init__` is found, and one with it is not."""
    files = {"tests/store/test_a.py": "", "tests/__init__.py": "", "store/backends/a.py": "", "store/__init__.py": ""}
    assert folders_without_init(plant(tmp_path, files)) == ["store/backends", "tests/store"]


GOOD = '"""Names."""\nfrom .a import B, c\n__all__ = ["B", "c"]\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace('"""Names."""\n', ""), "has no docstring"),
        (GOOD + "def f(): ...\n", "neither an import"),
        (GOOD + "LIMIT = 3\n", "neither an import"),
        (GOOD.replace('"B", "c"', '"c", "B"'), "not sorted"),
        (GOOD.replace('"B", "c"', '"B", "B", "c"'), "twice"),
        (GOOD.replace('["B", "c"]', '["B"]'), "c is not in __all__"),
        (GOOD.replace('"c"]', '"c", "d"]'), "d is never imported"),
        ('"""Names."""\nfrom .a import B\n', "B is not in __all__"),
        (GOOD + '__version__ = "1"\n', "__version__ is not in __all__"),
    ],
)
def test_a_wrong_list_is_found(tmp_path: Path, text: str, says: str) -> None:
    """Each way in which an `__init__` stops being a list of names is found."""
    found = violations(plant(tmp_path, {"store/backends/__init__.py": text}))
    assert any(says in message for message in found), found


def test_a_right_list_passes(tmp_path: Path) -> None:
    """Private helpers for the version may be imported, and a package without names needs no list."""
    root = plant(
        tmp_path,
        {
            "midflight/__init__.py": '"""Names."""\nfrom importlib.metadata import version as _version\n'
            'from store import LIMIT, Part2, Part10, b\n__all__ = ["LIMIT", "Part2", "Part10", "__version__", "b"]\n'
            '__version__ = _version("x")\n',
            "participants/__init__.py": '"""Nothing yet."""\n',
        },
    )
    assert violations(root) == []


LAZY = 'if _TYPE_CHECKING:\n    from .a import B\n__getattr__ = _names_from(__name__, ("a",))\n'


def test_a_lazy_list_passes_and_is_checked_like_any(tmp_path: Path) -> None:
    """Names under `if _TYPE_CHECKING` count where a `__getattr__` gives them, and only there."""
    path = "store/backends/__init__.py"
    assert violations(plant(tmp_path, {path: f'"""Names."""\n{LAZY}__all__ = ["B"]\n'})) == []
    for text in (LAZY, LAZY.partition("__getattr__")[0] + '__all__ = ["B"]\n', LAZY + "if x:\n    y()\n"):
        assert violations(plant(tmp_path, {path: f'"""Names."""\n{text}'})) != []


@pytest.mark.parametrize("package", ["store", "midflight"])
def test_an_error_that_is_not_exported_is_found(tmp_path: Path, package: str) -> None:
    """A public error class is missed in its own package and in the facade, a private one in neither."""
    files = {
        "store/errors.py": "class Lost(Exception): ...\nclass _Base(Exception): ...\n",
        "store/__init__.py": '"""Names."""\nfrom .errors import Lost\n__all__ = ["Lost"]\n',
        "midflight/__init__.py": '"""Names."""\nfrom store import Lost\n__all__ = ["Lost"]\n',
    }
    assert violations(plant(tmp_path, files)) == []
    files[f"{package}/__init__.py"] = '"""Names."""\n'
    assert violations(plant(tmp_path, files)) == [f"store/errors.py: Lost is not exported by {package}"]
