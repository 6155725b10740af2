"""Runs a Python solution inside the sandbox: `python -I -c <this text> BYTES [FUNCTION]`. It imports nothing of ours.

The solution is the first BYTES of stdin, so that it stands in no file; what follows is the input of the test. That is
put into a file of its own, for a solution that opens `/dev/stdin` or seeks to the beginning.

The solution is the module `__main__`, or `solution` where a function of it is called: so multiprocessing finds it.

The solution is a program that reads stdin and writes stdout. With FUNCTION, that is called instead, with the JSON
values that stand on stdin, one a line; its result goes to stdout as JSON, and what the solution prints goes nowhere.

The solution runs in this very process, so it may do here what it likes. That is why nothing is judged here, and why
nothing of what is expected is known here.
"""

import importlib
import io
import json
import os
import resource
import sys
import tempfile
import types
from typing import Any

MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "typing"),
)
"""At hand without an import, as on the sites that such tasks are from: all their public names, and the modules."""
RECURSION_LIMIT = 50_000
MAX_DIGITS = 50_000
"""Of a whole number that is read or written as text, which Python takes quadratic time for."""
PIECE_BYTES = 1 << 20


def namespace(name: str) -> dict[str, Any]:
    """Where a solution defines its names: those of a new module of this name.

    What is at hand stands with the built-in names, which come first among them: so it is not taken for a definition of
    the solution's, as `operator.add` would be for a function `add`.
    """
    modules = [importlib.import_module(module) for module in MODULES]
    names: dict[str, Any] = {}
    for module in modules:
        public = getattr(module, "__all__", [each for each in vars(module) if not each.startswith("_")])
        names.update((each, getattr(module, each)) for each in public)
    names |= {**dict(zip(MODULES, modules, strict=True)), **vars(importlib.import_module("builtins"))}
    module = sys.modules[name] = types.ModuleType(name)
    vars(module)["__builtins__"] = names
    return vars(module)


def read(size: int) -> bytes:
    """So many bytes of stdin, and not one more."""
    data = bytearray()
    while len(data) < size and (more := os.read(0, size - len(data))):
        data += more
    return bytes(data)


def keep_input() -> None:
    """Make what is left of stdin all of it."""
    with tempfile.TemporaryFile(buffering=0) as file:
        while piece := os.read(0, PIECE_BYTES):
            file.write(piece)
        file.seek(0)
        os.dup2(file.fileno(), 0)


def allow_depth() -> None:
    """A solution may recurse, also through the library's C, as deep as its memory allows."""
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (most, most))
    sys.setrecursionlimit(RECURSION_LIMIT)


def main(size: str, function: str = "") -> None:
    """Run the program, or call the function."""
    source = compile(read(int(size)), "solution.py", "exec")
    keep_input()
    allow_depth()
    sys.set_int_max_str_digits(MAX_DIGITS)
    sys.argv = ["solution.py"]
    if not function:
        exec(source, namespace("__main__"))
        return
    arguments = [json.loads(line) for line in sys.stdin.read().split("\n")]
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdin = io.StringIO()
    names = namespace("solution")
    exec(source, names)
    owner = names.get("Solution")
    called = getattr(owner(), function) if owner is not None else names[function]
    results.write(json.dumps(called(*arguments), allow_nan=False))
    results.flush()
    os._exit(0)  # Threads that it left do not count.


if __name__ == "__main__":
    main(*sys.argv[1:])
