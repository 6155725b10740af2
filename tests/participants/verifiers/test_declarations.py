"""What servers that ship declare is read from their source, as a trainer would who has none of their extras."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, Module, expect_none, modules, plant

FOLDERS = ("participants/verifiers", "participants/servers", "participants/workplace")
TRAINING = (
    "code_gen",
    "competitive_coding_challenges",
    "equivalence_llm_judge",
    "genrm_compare",
    "math_with_judge",
)
DECLARED = {"checkpoint_mode": ("exported", "stateless"), "checkpoint_verify": ("wait", "replay")}
EXTRAS = ("math_verify", "sympy", "latex2sympy2_extended", "reasoning_gym", "numpy", "mcp", "torch", "transformers")
IMPORTED = """
import importlib, sys
for name in {extras!r}:
    sys.modules[name] = None
for name in {names!r}:
    importlib.import_module(name)
"""


def servers(module: Module) -> Iterator[ast.ClassDef]:
    """Classes whose instances verify: those that say how, and those that say what of them a checkpoint may expect."""
    for statement in module.tree.body:
        if isinstance(statement, ast.ClassDef) and statement.name.endswith("Server"):
            methods = {each.name for each in statement.body if isinstance(each, ast.AsyncFunctionDef)}
            if "verify" in methods or declarations(statement):
                yield statement


def declarations(server: ast.ClassDef) -> dict[str, ast.expr | None]:
    """What the body of a class assigns to the two names."""
    found: dict[str, ast.expr | None] = {}
    for statement in server.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in DECLARED:
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if name in DECLARED:
                found[name] = value
    return found


def problems(module: Module) -> Iterator[str]:
    """Declarations that are missing, or that only running the code could tell."""
    for server in servers(module):
        found = declarations(server)
        for name, values in DECLARED.items():
            value = found.get(name)
            if not (isinstance(value, ast.Constant) and value.value in values):
                told = "nothing" if value is None else ast.unparse(value)
                yield f"{module.path}: {server.name}.{name} is {told}, and not one of {', '.join(values)}"


def shipped() -> list[Module]:
    """The modules with servers that ship."""
    return [module for folder in FOLDERS for module in modules(ROOT, folder)]


@pytest.mark.unit
def test_every_server_that_ships_declares_in_its_own_body() -> None:
    """Both attributes, each a literal, in every class that verifies."""
    expect_none([problem for module in shipped() for problem in problems(module)])


@pytest.mark.unit
@pytest.mark.parametrize("name", TRAINING)
def test_the_verifiers_of_training_are_stateless_and_replay(name: str) -> None:
    """One server in a module of that name, so that neither a checkpoint nor a crash waits for a judge or a compiler."""
    [module] = [module for module in shipped() if module.path.as_posix() == f"participants/verifiers/{name}.py"]
    [server] = servers(module)
    values = {key: ast.literal_eval(value) for key, value in declarations(server).items() if value is not None}
    assert values == {"checkpoint_mode": "stateless", "checkpoint_verify": "replay"}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("checkpoint_mode = 'exported'", "checkpoint_verify is nothing"),
        ("checkpoint_mode = 'exported'\n    checkpoint_verify = MODE", "checkpoint_verify is MODE"),
        ("checkpoint_mode = 'restart'\n    checkpoint_verify = 'wait'", "checkpoint_mode is 'restart'"),
        ("checkpoint_mode: str = 'x'\n    checkpoint_verify: str = 'wait'", "checkpoint_mode is 'x'"),
        ("checkpoint_mode = 'exported'\n    def __init__(self): self.checkpoint_verify = 'wait'", "is nothing"),
        ("async def verify(self): ...\n    checkpoint_verify = 'wait'", "checkpoint_mode is nothing"),
    ],
)
def test_a_declaration_that_the_source_does_not_show_is_found(tmp_path: Path, body: str, says: str) -> None:
    """Also in a module whose own import fails, for nothing is imported."""
    text = f"import no_such_package\n\n\nclass OddServer:\n    {body}\n"
    [module] = modules(plant(tmp_path, {"participants/servers/odd.py": text}), "participants/servers")
    [problem] = problems(module)
    assert says in problem


@pytest.mark.process
def test_a_server_can_be_imported_without_the_extras_that_it_uses() -> None:
    """A library is imported where it is used first, and its absence is told then, to whoever needs it."""
    names = [".".join(module.path.with_suffix("").parts) for module in shipped() if "__init__" not in module.path.name]
    code = IMPORTED.format(extras=EXTRAS, names=[name for name in names if not name.endswith(("_child", "_harness"))])
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert found.returncode == 0, found.stderr
