"""Runs a Python solution inside the sandbox: `python -I -c <this text> BYTES [FUNCTION]`. It imports nothing of ours.

The solution is the first BYTES of stdin, so that it stands in no file; what follows is the input of the test.

The solution is a program that reads stdin and writes stdout. With FUNCTION, that is called instead, with the JSON
values that stand on stdin, one a line; its result goes to stdout as JSON, and what the solution prints goes nowhere.

The solution runs in this very process, so it may do here what it likes. That is why nothing is judged here, and why
nothing of what is expected is known here.
"""

import importlib
import io
import json
import os
import sys
from typing import Any

MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "typing"),
)
"""At hand without an import, as on the sites that such tasks are from: all their public names, and the modules."""
RECURSION_LIMIT = 50_000


def namespace(name: str) -> dict[str, Any]:
    """Where a solution defines its names; `__name__` is `name`.

    What is at hand stands with the built-in names, which come first among them: so it is not taken for a definition of
    the solution's, as `operator.add` would be for a function `add`.
    """
    modules = [importlib.import_module(module) for module in MODULES]
    names: dict[str, Any] = {}
    for module in modules:
        public = getattr(module, "__all__", [each for each in vars(module) if not each.startswith("_")])
        names.update((each, getattr(module, each)) for each in public)
    names |= {**dict(zip(MODULES, modules, strict=True)), **vars(importlib.import_module("builtins"))}
    return {"__builtins__": names, "__name__": name}


def read(size: int) -> bytes:
    """So many bytes of stdin, and not one more."""
    data = bytearray()
    while len(data) < size and (more := os.read(0, size - len(data))):
        data += more
    return bytes(data)


def main(size: str, function: str = "") -> None:
    """Run the program, or call the function."""
    source = compile(read(int(size)), "solution.py", "exec")
    sys.setrecursionlimit(RECURSION_LIMIT)
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
