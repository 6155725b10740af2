"""Printing: tables for people, one JSON document for programs. Where a command says something, it says it here.

Whatever comes out of a store is untrusted: control characters are shown as escapes, and nothing is markup.
"""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from .documents import (
    Compared,
    Copied,
    Document,
    Failure,
    Listing,
    Pruned,
    Row,
    Shown,
    ShownRollout,
    Verified,
)
from .jsonout import to_json

_MANY = 10
"""Names that are shown one by one; of more it is said how many there are."""
_LONGEST_CELL = 200
"""Characters of one value in a table."""
_LONGEST_FACT = 1000
"""Characters of one line in a list of facts, which may name several things."""
_LONGEST_LINE = 4000
"""Characters of anything else that is one line, but for records, which are shown whole."""
_WIDE = 1000
"""Columns where the output is no terminal: lines are never broken for a program that reads them."""
_COLOURS = {"damage": "red", "secret": "magenta", "leftover": "yellow", "warning": "yellow"}


def print_document(document: Document, command: str, *, as_json: bool) -> None:
    """Print what a command has to say; an error goes to stderr, and with `--json` also to stdout."""
    if as_json:
        _write(to_json(document, command))
    if isinstance(document, Failure):
        print_failure(document)
    elif not as_json:
        _print(sys.stdout, _RENDERERS[type(document)](document))


def print_failure(failure: Failure) -> None:
    """One line of what happened and what to do; where stderr does not take it, nobody can be told."""
    hint = f". {failure.hint}" if failure.hint else ""
    try:
        _print(sys.stderr, [_text(f"midflight: {failure.message}{hint}")])
    except OSError:
        silence(sys.stderr)


def print_text(text: str) -> None:
    """One plain line, unless its reader has gone away."""
    try:
        _print(sys.stdout, [_text(text)])
    except BrokenPipeError:
        silence(sys.stdout)


def _write(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _print(stream: TextIO, parts: Iterable[RenderableType]) -> None:
    is_terminal = stream.isatty()
    console = Console(
        file=stream, width=None if is_terminal else _WIDE, highlight=False, markup=False, emoji=False, soft_wrap=False
    )
    for part in parts:
        with console.capture() as capture:
            console.print(part, soft_wrap=isinstance(part, Text))
        lines = capture.get().splitlines()
        stream.write("".join(f"{line if is_terminal else line.rstrip()}\n" for line in lines))
    stream.flush()


def silence(stream: TextIO) -> None:
    """After a stream has failed: let nothing fail again when the interpreter flushes at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# Words and numbers for people


def safe(text: str) -> str:
    """The text with every character that a terminal could act on shown as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def clip(text: str, limit: int) -> str:
    """At most so many characters, and how many there were."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def _text(text: str, style: str = "") -> Text:
    return Text(safe(clip(text, _LONGEST_LINE)), style=style)


def _cell(text: str) -> Text:
    return Text(safe(clip(text, _LONGEST_CELL)))


def amount(size: int | None) -> str:
    """Bytes in decimal units."""
    if size is None:
        return "?"
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


def age(created_at: str, now: datetime) -> str:
    """How long ago the controller's clock said this; the text itself where it is no time."""
    try:
        seconds = (now - datetime.fromisoformat(created_at)).total_seconds()
    except (TypeError, ValueError):
        return created_at or "?"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now" if seconds >= 0 else "in the future"


def count(number: int, noun: str) -> str:
    """A number with its noun."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def names(items: Iterable[object]) -> str:
    """A few by name, and how many more."""
    shown = [clip(str(item), _LONGEST_CELL) for item in items]
    more = f" and {len(shown) - _MANY} more" if len(shown) > _MANY else ""
    return ", ".join(shown[:_MANY]) + more if shown else "-"


def _table(*columns: str, right: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _grid(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for label, value in rows:
        table.add_row(Text(label, style="bold"), Text(safe(clip(value, _LONGEST_FACT))))
    return table


# One function a document


def _listing(listing: Listing) -> Iterable[RenderableType]:
    table = _table(
        "CHECKPOINT",
        "",
        "ENTRY",
        "ROLLOUTS",
        "RECORDS",
        "SIZE",
        "AGE",
        "TAGS",
        right=("ENTRY", "ROLLOUTS", "RECORDS", "SIZE"),
    )
    now = datetime.now(UTC)
    for row in listing.checkpoints:
        numbers = [_or_unknown(row.rollouts), _or_unknown(row.records), amount(row.bytes)]
        cells = [
            str(row.checkpoint),
            _marks(row),
            str(row.entry),
            *numbers,
            age(row.created_at, now),
            " ".join(row.tags),
        ]
        table.add_row(*map(_cell, cells), style="red" if row.damage else "")
    yield _text(
        f"{listing.store}: run {listing.run_id}, epoch {listing.epoch}, {count(listing.entries, 'chain entry')}"
    )
    if listing.checkpoints:
        yield table
    else:
        yield _text("no checkpoint")
    for row in listing.checkpoints:
        if row.damage:
            yield _text(f"damage: {row.damage}", "red")
    for plan in listing.deletions:
        ended = "ended" if plan.finished else "not finished: run prune again"
        yield _text(f"deletion planned in entry {plan.entry}, {ended}: {names(plan.checkpoints)}")
    for warning in listing.warnings:
        yield _text(f"warning: {warning}", "yellow")


def _or_unknown(number: int | None) -> str:
    return "?" if number is None else str(number)


def _marks(row: Row) -> str:
    marks = (("head", row.head), ("imported", row.imported), ("DAMAGED", row.damage is not None))
    return " ".join(mark for mark, holds in marks if holds)


def _shown(shown: Shown) -> Iterable[RenderableType]:
    yield _text(f"checkpoint {shown.checkpoint} of {shown.store}")
    yield _grid(_facts(shown))
    if shown.participants:
        table = _table("PARTICIPANT", "RECORDS", "SIZE", "BLOBS", right=("RECORDS", "SIZE", "BLOBS"))
        for share in shown.participants:
            cells = [share.participant, str(share.records), amount(share.bytes), str(share.blobs)]
            table.add_row(*map(_cell, cells))
        yield table
    for dropped in shown.dropped[:_MANY]:
        yield _text(f"left out: {dropped.life}: {dropped.reason}", "yellow")


def _facts(shown: Shown) -> Iterable[tuple[str, str]]:
    yield (
        "a restore",
        (
            f"continues {count(len(shown.scope), 'rollout')}, starts {len(shown.restarts)} over from its input, "
            f"leaves out {len(shown.dropped)}"
        ),
    )
    yield (
        "is",
        " ".join(("the head," if shown.head else "not the head,", "imported" if shown.imported else "published")),
    )
    yield "chain entry", str(shown.entry)
    yield "epoch", str(shown.epoch)
    yield "parent", str(shown.parent or "-")
    yield "age", f"{age(shown.created_at, datetime.now(UTC))} ({shown.created_at or 'no date'})"
    yield "tags", names(shown.tags)
    yield "run", shown.run_id
    yield (
        "holds",
        (
            f"{count(shown.records, 'record')} in {amount(shown.bytes)}, "
            f"{count(shown.blobs, 'blob')} of {amount(shown.blob_bytes)}"
        ),
    )
    yield "own state", "yes" if shown.has_state else "none"
    yield from (("output", f"{segment.name}: {amount(segment.bytes)}") for segment in shown.output)
    yield from (("outside file", f"{file.url}: {amount(file.bytes)}") for file in shown.externals)
    yield from (("fingerprint", f"{name} = {value}") for name, value in sorted(shown.fingerprint.items()))
    yield "written by", names(f"{name} {version}" for name, version in shown.software.items())


def _rollout(rollout: ShownRollout) -> Iterable[RenderableType]:
    reason = f" ({rollout.reason})" if rollout.reason else ""
    yield _text(
        f"rollout {rollout.rollout} of checkpoint {rollout.checkpoint} {rollout.becomes}{reason}: {rollout.life}"
    )
    for record in rollout.records:
        yield _text(f"{record.participant}:", "bold")
        pretty = orjson.dumps(record.record, option=orjson.OPT_INDENT_2).decode()
        yield Text("\n".join(safe(line) for line in pretty.split("\n")))
    if not rollout.records:
        yield _text("no participant keeps a record of it")


def _verified(verified: Verified) -> Iterable[RenderableType]:
    for finding in verified.findings:
        yield _text(f"{finding.severity}: {finding.object}: {finding.message}", _COLOURS[finding.severity])
    looked = (
        f"{count(verified.entries, 'chain entry')}, "
        f"{count(len(verified.checkpoints), 'checkpoint')}, {count(verified.records, 'record')}, "
        f"{count(verified.parts, 'part')}, {count(verified.blobs, 'blob')}, {amount(verified.bytes)} read"
    )
    depth = "every record parsed and blob read" if verified.deep else "records not parsed, blobs by size"
    yield _text(f"{'sound' if verified.sound else 'NOT SOUND'}: {looked}; {depth}", "" if verified.sound else "red")


def _compared(compared: Compared) -> Iterable[RenderableType]:
    found = compared.difference
    yield _text(f"from checkpoint {found.a} to {found.b} of {compared.store}")
    rollouts, blobs = found.rollouts, found.blobs
    rows = [
        (f"only in {found.a}", rollouts.only_a),
        (f"only in {found.b}", rollouts.only_b),
        ("went on", rollouts.changed),
        ("new life", rollouts.new_life),
        ("unchanged", rollouts.same),
    ]
    yield _grid((label, f"{count(len(ids), 'rollout')}: {names(ids)}") for label, ids in rows)
    table = _table("PARTICIPANT", "RECORDS", "", "SIZE", " ", right=("RECORDS", "SIZE"))
    for one in found.participants:
        sides = [(side.count, amount(side.bytes)) if side else ("-", "-") for side in (one.a, one.b)]
        table.add_row(*map(_cell, [one.name, str(sides[0][0]), f"-> {sides[1][0]}", sides[0][1], f"-> {sides[1][1]}"]))
    yield table
    yield _grid(
        [
            ("own state", "changed" if found.state_changed else "the same"),
            (
                "blobs",
                f"{blobs.shared.count} shared ({amount(blobs.shared.bytes)}), {blobs.only_a.count} gone "
                f"({amount(blobs.only_a.bytes)}), {blobs.only_b.count} new ({amount(blobs.only_b.bytes)})",
            ),
            *(("fingerprint", f"{field.name}: {field.a or '-'} -> {field.b or '-'}") for field in found.fingerprint),
            *(("output", f"{field.name}: {field.a or 0} -> {field.b or 0} bytes") for field in found.output),
        ]
    )


def _pruned(pruned: Pruned) -> Iterable[RenderableType]:
    table = _table("CHECKPOINT", "", "WHY")
    for one in pruned.checkpoints:
        table.add_row(*map(_cell, [str(one.checkpoint), "keep" if one.keep else "drop", one.reason]))
    if pruned.checkpoints:
        yield table
    if pruned.leftovers:
        yield _text(f"old leftovers of no checkpoint: {names(pruned.leftovers)}")
    for entry in pruned.resumed:
        yield _text(f"the deletion that entry {entry} planned was not finished")
    size = f"{count(pruned.objects, 'object')}, {amount(pruned.bytes)}"
    yield _text(
        f"would delete {size}; nothing was changed" if pruned.dry_run else f"deleted {pruned.deleted} of {size}"
    )
    for message in pruned.failures:
        yield _text(f"failed: {message}", "red")
    if pruned.failures:
        yield _text("The plan stays on the chain: run the same command again")


def _copied(copied: Copied) -> Iterable[RenderableType]:
    yield _text(f"checkpoint {copied.checkpoint} of run {copied.run_id} is at {copied.destination}, verified")
    yield _text(f"restore it there by its name; it is not the head. digest {copied.digest}")


_RENDERERS: dict[type, Callable[[Any], Iterable[RenderableType]]] = {
    Listing: _listing,
    Shown: _shown,
    ShownRollout: _rollout,
    Verified: _verified,
    Compared: _compared,
    Pruned: _pruned,
    Copied: _copied,
}
