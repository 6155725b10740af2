"""`midflight conformance`: an author's hooks, tried by the rules that a run relies on."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from store import InvalidInput

from .conformance_documents import Conformed, ListedRule, RuleList, TriedRule
from .documents import Document
from .running import finish
from .target import parse_option

if TYPE_CHECKING:
    from participants import Case, Conformance, ResourcesServer

    from ..conformance import ConformanceReport

TARGET = "MODULE:CLASS"
HOW_TO_HAVE_CASES = (
    "Write in the class, with names from midflight: `@classmethod def conformance(cls): return "
    'Conformance(cases=[Case(row={...}, calls=[ToolCall(name="...", arguments={...})], said="...")])`. '
    'Or give --cases FILE, with a line for each: {"row": {...}, "calls": [{"name": "...", "arguments": {...}}], '
    '"said": "..."}'
)


def conformance(
    target: Annotated[str | None, typer.Argument(metavar=TARGET, help="The class of the server.")] = None,
    cases: Annotated[Path | None, typer.Option(help="JSON Lines, a case each; else what the class says.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A keyword argument of the class; repeatable.")
    ] = None,
    rule: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Try this rule only; repeatable.")] = None,
    list_rules: Annotated[bool, typer.Option("--list", help="Say which rules there are, and try none.")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="Try every case and every boundary.")] = False,
    seed: Annotated[int, typer.Option(help="Another one chooses other cases.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document for programs.")] = False,
) -> None:
    """Try the hooks of a resources server, and show the shortest calls that break a rule."""

    try:
        # Before there is an event loop: what a module does when it is imported is its own affair.
        given = None if list_rules else _given(target, cases, option or [])
        refused = None
    except InvalidInput as error:
        given, refused = None, error

    async def job() -> Document:
        if refused is not None:
            raise refused
        return _listed() if given is None else await _tried(*given, rule or [], thorough=thorough, seed=seed)

    finish("conformance", job, as_json=as_json)


def _listed() -> RuleList:
    from ..conformance import RULES

    return RuleList(rules=tuple(ListedRule(rule=r.name, sentence=r.sentence, need=r.need) for r in RULES))


def _given(
    target: str | None, file: Path | None, options: list[str]
) -> "tuple[str, type[ResourcesServer], Conformance]":
    """The class, and how it is tried. Raises InvalidInput."""
    if not target:
        raise InvalidInput(f"{TARGET} is missing", hint="Say which class to try, such as own_server:TodoServer")
    sys.path.insert(0, os.getcwd())
    server = _find(target)
    return target, server, _with_options(_with_cases(server.conformance(), file), options)


async def _tried(
    target: str,
    server: "type[ResourcesServer]",
    given: "Conformance",
    names: list[str],
    *,
    thorough: bool,
    seed: int,
) -> Conformed:
    """Raises InvalidInput for what cannot be tried as it is."""
    # Here and not above: no other command waits until the participants are imported.
    from participants.serving import ConfigError

    from ..conformance import NoCases, UnknownRule, check_conformance

    try:
        report = await check_conformance(server, given, rules=names, thorough=thorough, seed=seed)
    except ConfigError as error:
        raise InvalidInput(str(error), hint="--option KEY=VALUE gives the constructor what it wants") from error
    except NoCases as error:
        raise InvalidInput(f"{target} has no cases", hint=HOW_TO_HAVE_CASES) from error
    except UnknownRule as error:
        raise InvalidInput(str(error), hint="`midflight conformance --list` names them") from error
    return _document(report)


def _find(target: str) -> "type[ResourcesServer]":
    from participants import ResourcesServer
    from participants.serving import ConfigError
    from participants.serving.loading import find_class

    try:
        found: type[ResourcesServer] = find_class("conformance", target, ResourcesServer)
    except ConfigError as error:
        raise InvalidInput(str(error), hint="Name a class, as module:Class, that can be imported from here") from error
    return found


def _with_options(given: "Conformance", options: list[str]) -> "Conformance":
    return dataclasses.replace(given, options={**given.options, **dict(map(parse_option, options))})


def _with_cases(given: "Conformance", file: Path | None) -> "Conformance":
    return given if file is None else dataclasses.replace(given, cases=read_cases(file))


def read_cases(file: Path) -> "list[Case]":
    """The cases of a file. Raises InvalidInput, naming the line."""
    from ..conformance import case_of

    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # Not splitlines: texts may have other ends of lines.
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}", hint="Give a file of JSON Lines") from error
    return [_read(case_of, file, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _read(parse: Any, file: Path, number: int, line: str) -> "Case":
    try:
        found: Case = parse(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{file}:{number} is no case: {error!r}", hint=HOW_TO_HAVE_CASES) from error
    return found


def _document(report: "ConformanceReport") -> Conformed:
    return Conformed(
        server=report.server,
        checkpoint_mode=report.checkpoint_mode,
        checkpoint_verify=report.checkpoint_verify,
        cases=report.cases,
        rules=tuple(TriedRule(**dataclasses.asdict(rule)) for rule in report.rules),
        warnings=report.warnings,
        export_bytes=report.export_bytes,
        export_s=report.export_s,
    )


def register(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("conformance")(conformance)
