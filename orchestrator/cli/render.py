"""Printing: tables for people, one JSON document for programs. Where a command says something, it says it here.

What is shown of a ledger is in `ledger_render`. Whatever comes out of a store is untrusted: see `words`.
"""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson
from rich.console import Console, RenderableType
from rich.text import Text

from .conformance_documents import CONFORMANCE_RENDERERS
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
from .jsonout import pieces
from .ledger_render import LEDGER_RENDERERS
from .words import MANY, age, amount, cell, count, grid, names, safe, sentence, table_of

_WIDE = 1000
"""Columns where the output is no terminal: lines are never broken for a program that reads them."""
_COLOURS = {"damage": "red", "secret": "magenta", "leftover": "yellow", "warning": "yellow"}


def print_document(document: Document, command: str, *, as_json: bool) -> None:
    """Print what a command has to say; an error goes to stderr, and with `--json` also to stdout."""
    if as_json:
        _write(pieces(document, command))
    if isinstance(document, Failure):
        print_failure(document)
    elif not as_json:
        _print(sys.stdout, _RENDERERS[type(document)](document))


def print_failure(failure: Failure) -> None:
    """One line of what happened and what to do; where stderr does not take it, nobody can be told."""
    hint = f". {failure.hint}" if failure.hint else ""
    try:
        _print(sys.stderr, [sentence(f"midflight: {failure.message}{hint}")])
    except OSError:
        silence(sys.stderr)


def print_text(text: str) -> None:
    """One plain line, unless its reader has gone away."""
    try:
        _print(sys.stdout, [sentence(text)])
    except BrokenPipeError:
        silence(sys.stdout)


def _write(parts: Iterable[bytes]) -> None:
    sys.stdout.flush()
    for data in parts:
        sys.stdout.buffer.write(data)
    sys.stdout.flush()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """A reader that went away is told of by the error, and not by an exit with the code of damage."""
        raise BrokenPipeError


def _print(stream: TextIO, parts: Iterable[RenderableType]) -> None:
    is_terminal = stream.isatty()
    console = _Console(
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


# One function a document


def _listing(listing: Listing) -> Iterable[RenderableType]:
    table = table_of(
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
        table.add_row(*map(cell, cells), style="red" if row.damage else "")
    yield sentence(
        f"{listing.store}: run {listing.run_id}, epoch {listing.epoch}, {count(listing.entries, 'chain entry')}"
    )
    if listing.checkpoints:
        yield table
    else:
        yield sentence("no checkpoint")
    for row in listing.checkpoints:
        if row.damage:
            yield sentence(f"damage: {row.damage}", "red")
    for plan in listing.deletions:
        ended = "ended" if plan.finished else "not finished: run prune again"
        yield sentence(f"deletion planned in entry {plan.entry}, {ended}: {names(plan.checkpoints)}")
    for warning in listing.warnings:
        yield sentence(f"warning: {warning}", "yellow")


def _or_unknown(number: int | None) -> str:
    return "?" if number is None else str(number)


def _marks(row: Row) -> str:
    marks = (("head", row.head), ("imported", row.imported), ("DAMAGED", row.damage is not None))
    return " ".join(mark for mark, holds in marks if holds)


def _shown(shown: Shown) -> Iterable[RenderableType]:
    yield sentence(f"checkpoint {shown.checkpoint} of {shown.store}")
    yield grid(_facts(shown))
    if shown.participants:
        table = table_of("PARTICIPANT", "RECORDS", "SIZE", "BLOBS", right=("RECORDS", "SIZE", "BLOBS"))
        for share in shown.participants:
            cells = [share.participant, str(share.records), amount(share.bytes), str(share.blobs)]
            table.add_row(*map(cell, cells))
        yield table
    for dropped in shown.dropped[:MANY]:
        yield sentence(f"left out: {dropped.life}: {dropped.reason}", "yellow")


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
    yield sentence(
        f"rollout {rollout.rollout} of checkpoint {rollout.checkpoint} {rollout.becomes}{reason}: {rollout.life}"
    )
    for record in rollout.records:
        yield sentence(f"{record.participant}:", "bold")
        pretty = orjson.dumps(record.record, option=orjson.OPT_INDENT_2).decode()
        yield Text("\n".join(safe(line) for line in pretty.split("\n")))
    if not rollout.records:
        yield sentence("no participant keeps a record of it")


def _verified(verified: Verified) -> Iterable[RenderableType]:
    for finding in verified.findings:
        yield sentence(f"{finding.severity}: {finding.object}: {finding.message}", _COLOURS[finding.severity])
    looked = (
        f"{count(verified.entries, 'chain entry')}, "
        f"{count(len(verified.checkpoints), 'checkpoint')}, {count(verified.records, 'record')}, "
        f"{count(verified.parts, 'part')}, {count(verified.blobs, 'blob')}, {amount(verified.bytes)} read"
    )
    depth = "every record parsed and blob read" if verified.deep else "records not parsed, blobs by size"
    yield sentence(f"{'sound' if verified.sound else 'NOT SOUND'}: {looked}; {depth}", "" if verified.sound else "red")


def _compared(compared: Compared) -> Iterable[RenderableType]:
    found = compared.difference
    yield sentence(f"from checkpoint {found.a} to {found.b} of {compared.store}")
    rollouts, blobs = found.rollouts, found.blobs
    rows = [
        (f"only in {found.a}", rollouts.only_a),
        (f"only in {found.b}", rollouts.only_b),
        ("went on", rollouts.changed),
        ("new life", rollouts.new_life),
        ("unchanged", rollouts.same),
    ]
    yield grid((label, f"{count(len(ids), 'rollout')}: {names(ids)}") for label, ids in rows)
    table = table_of("PARTICIPANT", "RECORDS", "", "SIZE", " ", right=("RECORDS", "SIZE"))
    for one in found.participants:
        sides = [(side.count, amount(side.bytes)) if side else ("-", "-") for side in (one.a, one.b)]
        table.add_row(*map(cell, [one.name, str(sides[0][0]), f"-> {sides[1][0]}", sides[0][1], f"-> {sides[1][1]}"]))
    yield table
    yield grid(
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
    table = table_of("CHECKPOINT", "", "WHY")
    for one in pruned.checkpoints:
        table.add_row(*map(cell, [str(one.checkpoint), "keep" if one.keep else "drop", one.reason]))
    if pruned.checkpoints:
        yield table
    if pruned.leftovers:
        yield sentence(f"old leftovers of no checkpoint: {names(pruned.leftovers)}")
    for entry in pruned.resumed:
        yield sentence(f"the deletion that entry {entry} planned was not finished")
    size = f"{count(pruned.objects, 'object')}, {amount(pruned.bytes)}"
    yield sentence(
        f"would delete {size}; nothing was changed" if pruned.dry_run else f"deleted {pruned.deleted} of {size}"
    )
    for message in pruned.failures:
        yield sentence(f"failed: {message}", "red")
    if pruned.failures:
        yield sentence("The plan stays on the chain: run the same command again")


def _copied(copied: Copied) -> Iterable[RenderableType]:
    yield sentence(f"checkpoint {copied.checkpoint} of run {copied.run_id} is at {copied.destination}, verified")
    yield sentence(f"restore it there by its name; it is not the head. digest {copied.digest}")


_RENDERERS: dict[type, Callable[[Any], Iterable[RenderableType]]] = {
    Listing: _listing,
    Shown: _shown,
    ShownRollout: _rollout,
    Verified: _verified,
    Compared: _compared,
    Pruned: _pruned,
    Copied: _copied,
    **LEDGER_RENDERERS,
    **CONFORMANCE_RENDERERS,
}
