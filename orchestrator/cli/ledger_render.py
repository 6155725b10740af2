"""What is shown of ledgers to people: a line a ledger, a row, a record or a finding, as they are read."""

from collections.abc import Callable, Iterable
from typing import Any

import orjson
from rich.console import RenderableType
from rich.text import Text

from .ledger_documents import LedgerCheck, LedgerList, LedgerRecords, LedgerRow, LedgerRows, LedgerShown, Totals
from .words import amount, clip, count, grid, names, safe, sentence

_WIDEST = 60
"""Characters of a column whose values are longer in few of its lines."""
_CALL = 32


def _columns(*cells: tuple[object, int]) -> str:
    """One line; a negative width is on the right, and 0 is for the last."""
    found = [f"{clip(str(value), 200):{'<' if width >= 0 else '>'}{abs(width) or ''}}" for value, width in cells]
    return "  ".join(found).rstrip()


def _listed(listed: LedgerList) -> Iterable[RenderableType]:
    key = min(listed.key_width, _WIDEST) + 4

    def line(*values: object) -> str:
        return _columns(*zip(values, (key, -6, -7, -7, -8, 8, 0), strict=True))

    for row in listed.ledgers:
        if listed.totals.ledgers == 1:
            yield sentence(line("KEY", "ROWS", "CARRIED", "RECORDS", "SIZE", "", "LIFE"), "bold")
        numbers = ["?" if number is None else number for number in (row.rows, row.carried, row.records)]
        text = line(row.key if row.newest else "-", *numbers, amount(row.bytes), _state(row), row.life)
        yield sentence(text, "red" if row.damage or row.unreadable else "")
        if row.damage:
            yield sentence(f"damage: {row.life}: {row.damage}", "red")
        if row.unreadable:
            yield sentence(f"failed: {row.life}: {row.unreadable}", "red")
    yield sentence(_sum(listed.totals) if listed.totals.ledgers else f"no ledger in {listed.folder}")


def _state(row: LedgerRow) -> str:
    if row.damage or row.unreadable:
        return "DAMAGED" if row.damage else "?"
    return "open" if row.ended is None else "ended"


def _sum(totals: Totals) -> str:
    parts = [count(totals.ledgers, "ledger"), count(totals.rows, "row"), count(totals.records, "record")]
    return f"{', '.join(parts)}, {amount(totals.bytes)}"


def _shown(shown: LedgerShown) -> Iterable[RenderableType]:
    yield sentence(f"ledger {shown.key} of {shown.folder}")
    yield grid(_facts(shown))
    if shown.damage:
        yield sentence(f"damage: {shown.damage}", "red")


def _facts(shown: LedgerShown) -> Iterable[tuple[str, str]]:
    yield "life", shown.life
    yield "continues", shown.source or "-"
    yield "rows", f"{shown.rows}, {shown.carried} of them carried from {names(shown.origins)}"
    yield "records", str(shown.records)
    yield "last", shown.last
    yield "size", amount(shown.size)
    yield "frozen", names(f"{each['version']} at {count(each['rows'], 'row')}" for each in shown.frozen)
    yield "takes rows", f"no: {shown.end['reason']}" if shown.end else "yes"


def _rows(shown: LedgerRows) -> Iterable[RenderableType]:
    version = f" at {shown.version}" if shown.version else ""
    yield sentence(f"rows of {shown.life}{version}")
    widths = (-5, _CALL, 12, 12, -7, -9, -9, -7, 0)
    head = ("INDEX", "CALL", "OUTCOME", "FINISH", "PROMPT", "GENERATED", "CONTINUED", "MASKED", "LIFE")
    yield sentence(_columns(*zip(head, widths, strict=True)), "bold")
    fields = ("index", "call", "outcome", "finish_reason", "prompt_count", "generated_count", "continued", "masked",
              "life")  # fmt: skip
    for row in shown.rows:
        yield sentence(_columns(*zip((row[name] for name in fields), widths, strict=True)))


def _records(shown: LedgerRecords) -> Iterable[RenderableType]:
    version = f" at {shown.version}" if shown.version else ""
    yield sentence(f"records of the calls of {shown.life}{version}")
    for each in shown.records:
        yield sentence(f"{each['call']}:", "bold")
        pretty = orjson.dumps(each["record"], option=orjson.OPT_INDENT_2).decode()
        yield Text("\n".join(safe(line) for line in pretty.split("\n")))


def _checked(checked: LedgerCheck) -> Iterable[RenderableType]:
    for finding in checked.findings:
        word = "failed" if finding.code == "unreadable" else "damage"
        yield sentence(f"{word}: {finding.life}: {finding.message} ({finding.code})", "red")
    totals = checked.totals
    if not totals.ledgers:
        yield sentence(f"no ledger in {checked.folder}")
        return
    sound = not totals.damaged and not totals.unreadable
    yield sentence(f"{'sound' if sound else 'NOT SOUND'}: {_sum(totals)}", "" if sound else "red")


LEDGER_RENDERERS: dict[type, Callable[[Any], Iterable[RenderableType]]] = {
    LedgerList: _listed,
    LedgerShown: _shown,
    LedgerRows: _rows,
    LedgerRecords: _records,
    LedgerCheck: _checked,
}
