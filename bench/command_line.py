"""What command lines have in common: each option has its words and its default, and a bad value costs one sentence."""

import argparse
import math
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

BAD_INPUT = 2
"""Exit code."""
OWN = frozenset({"bench", "examples", "midflight", "orchestrator", "participants", "store", "tests"})


class Command(argparse.ArgumentParser):
    """`python -m NAME`. What is wrong with its arguments is one sentence on stderr, and ends it with 2."""

    def __init__(self, name: str, about: str | None) -> None:
        """Described by the first paragraph of its docstring."""
        first = (about or "").split("\n\n")[0]
        super().__init__(prog=f"python -m {name}", description=first, formatter_class=Defaults)

    def error(self, message: str) -> NoReturn:
        """End with the sentence."""
        self.exit(BAD_INPUT, f"{self.prog}: {message.rstrip('.')}; --help says what there is\n")

    def add_list(self, name: str, kind: Callable[[str], list[Any]], default: Sequence[Any] | None, words: str) -> None:
        """An option that takes several values, of one of the kinds of lists below."""
        about = f"{words}; separated by commas"
        self.add_argument(name, nargs="+", action=_Listed, type=kind, metavar="A,B", default=default, help=about)


class Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of each option that has one and does not tell it in its own words."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        told, default = action.help or "", action.default
        if default is None or default is False or default in ("", argparse.SUPPRESS) or "default:" in told:
            return told
        if isinstance(default, list | tuple):
            return f"{told} (default: {', '.join(map(str, default))})"
        return super()._get_help_string(action)


class _Listed(argparse.Action):
    """Parts that are separated by spaces are taken as well."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Keep all of them as one list."""
        setattr(namespace, self.dest, [each for part in values for each in part])


# Kinds of values. Each raises ArgumentTypeError, which argparse makes its sentence of.


def whole(least: int) -> Callable[[str], int]:
    """A whole number that is not below `least`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return number

    return read


count = whole(1)
"""How many of something that has to be tried."""
count_or_none = whole(0)


def above_zero(text: str) -> float:
    """A finite number above 0, such as of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def counts(text: str) -> list[int]:
    """Whole numbers above 0, separated by commas."""
    return [count(part) for part in text.split(",")]


def names(known: Collection[str]) -> Callable[[str], list[str]]:
    """Some of these names, separated by commas."""

    def read(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"there is no {name!r}; there are {', '.join(known)}")
        return found

    return read


def folder(text: str) -> Path:
    """A folder that is there."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text!r}")
    return Path(text)


def to_read(text: str) -> Path:
    """A file that is there."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return Path(text)


def to_write(text: str) -> Path:
    """A file that may be there, in a folder that is: looked at before the work, and not after it."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r} for it")
    return path


# What is not installed


def can_draw(parser: Command, option: str) -> None:
    """End now, and not after the work, where a picture could not be drawn."""
    if find_spec("matplotlib") is None:
        parser.error(f"{option} needs matplotlib, of the extra dev")


def explain_what_is_missing() -> None:
    """From here on a module of another project that is missing ends this process with one sentence, and 2.

    For `python -m` alone: while Python looks for that module, the first argument is `-m`.
    """
    if sys.argv[:1] == ["-m"]:
        sys.excepthook = _explained


def _explained(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None or missing.partition(".")[0] in OWN:
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write(
        f'{missing} is not installed; the README says under "Work on it" how all that tests and benches need is '
        "installed, and bench/README.md what else a bench needs\n"
    )
    sys.exit(BAD_INPUT)
