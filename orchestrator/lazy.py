"""Names of a package that are imported when they are first asked for.

The command line lies below `orchestrator`: whatever this package imports, `midflight --version` waits for, and a Ctrl-C
at that moment meets no handler yet.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module


def names_from(package: str, modules: Sequence[str]) -> Callable[[str], object]:
    """A module's `__getattr__` that finds each name of `__all__` in the first of the package's modules that has it."""

    def find(name: str) -> object:
        if name in sys.modules[package].__all__:
            for module in modules:
                found = import_module(f".{module}", package)
                if hasattr(found, name):
                    return getattr(found, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
