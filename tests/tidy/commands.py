"""Reads command lines out of pages, and what a Typer app would make of them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

import typer
import typer.main

FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = {"bash", "sh", "shell", "console"}
INLINE = re.compile(r"`([^`]+)`")
INVOCATION = re.compile(r"^(?:\$ )?(?:\S*/)?(?:python3? -m )?midflight\s+(\S.*)$")
SEPARATOR = re.compile(r"\s(?:\||\|\||&&|;|>>?|&)(?:\s|$)")
PLACEHOLDER = re.compile(r"[A-Z_]+|<.*|\.\.\.|…")


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command, under all its names."""

    names: tuple[str, ...]
    takes_value: bool


@dataclass(frozen=True, slots=True)
class Command:
    """A command or a group of them."""

    path: str
    """As it is typed, such as `midflight checkpoints list`."""
    options: tuple[Option, ...] = ()
    children: "dict[str, Command]" = field(default_factory=dict)

    def leaves(self) -> "Iterator[Command]":
        """The commands that do something."""
        if not self.children:
            yield self
        for child in self.children.values():
            yield from child.leaves()

    def option(self, name: str) -> Option | None:
        """The option that goes by this name."""
        return next((option for option in self.options if name in option.names), None)


HELP = Option(("--help",), takes_value=False)


def read_app(app: typer.Typer, name: str = "midflight") -> Command:
    """The tree of commands that a Typer app answers to."""
    return _read(typer.main.get_command(app), name)


def _read(command: object, path: str) -> Command:
    """Click's classes are not named here: some versions of Typer bring their own copy of them."""
    options = []
    for param in getattr(command, "params", []):
        if param.param_type_name == "option" and not param.hidden:
            names = (*param.opts, *param.secondary_opts)
            options.append(Option(names, takes_value=not (param.is_flag or param.count)))
    children = {
        name: _read(child, f"{path} {name}")
        for name, child in getattr(command, "commands", {}).items()
        if not child.hidden
    }
    return Command(path, tuple(options), children)


def shell_lines(markdown: str) -> Iterator[str]:
    """The lines of the shell blocks of a page, continued ones joined."""
    for block in FENCE.finditer(markdown):
        if block["language"] in SHELLS:
            yield from block["body"].replace("\\\n", " ").splitlines()


def inline_code(text: str) -> Iterator[str]:
    """What stands between backticks outside of fenced blocks, on one line."""
    for match in INLINE.finditer(FENCE.sub("", text)):
        yield " ".join(match[1].split())


def invocations(lines: Iterator[str]) -> Iterator[str]:
    """What follows the word midflight in those lines that call it, up to a pipe or the like."""
    for line in lines:
        for command in SEPARATOR.split(line.strip()):
            if match := INVOCATION.match(command.strip()):
                yield match[1]


def problem(invocation: str, app: Command) -> str:
    """Why these arguments are not a command that exists, or nothing. Arguments themselves are not judged."""
    command = app
    tokens = iter([token.strip("[]") for token in shlex.split(invocation, comments=True)])
    for token in tokens:
        if token.startswith("-") and token != "-":
            name, equals, _ = token.partition("=")
            option = HELP if name == "--help" else command.option(name)
            if option is None:
                return f"{command.path} has no option {name}"
            if option.takes_value and not equals:
                next(tokens, None)
        elif command.children and not PLACEHOLDER.fullmatch(token):
            if token not in command.children:
                return f"{command.path} has no command {token}"
            command = command.children[token]
    return ""
