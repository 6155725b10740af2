"""Words, numbers and cells for people: escaped, and cut where one value is huge.

Whatever comes out of a store or a ledger is untrusted: control characters are shown as escapes, and nothing is markup.
"""

from collections.abc import Iterable
from datetime import datetime

from rich.table import Table
from rich.text import Text

MANY = 10
"""Names that are shown one by one; of more it is said how many there are."""
_LONGEST_CELL = 200
"""Characters of one value in a table."""
_LONGEST_FACT = 1000
"""Characters of one line in a list of facts, which may name several things."""
_LONGEST_LINE = 4000
"""Characters of anything else that is one line, but for records, which are shown whole."""


def safe(text: str) -> str:
    """The text with every character that a terminal could act on shown as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def clip(text: str, limit: int) -> str:
    """At most so many characters, and how many there were."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def sentence(text: str, style: str = "") -> Text:
    """One line."""
    return Text(safe(clip(text, _LONGEST_LINE)), style=style)


def cell(text: str) -> Text:
    """One value in a table."""
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
    more = f" and {len(shown) - MANY} more" if len(shown) > MANY else ""
    return ", ".join(shown[:MANY]) + more if shown else "-"


def table_of(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table without rows yet."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def grid(rows: Iterable[tuple[str, str]]) -> Table:
    """Facts, one below the other."""
    table = Table.grid(padding=(0, 2))
    for label, value in rows:
        table.add_row(Text(label, style="bold"), Text(safe(clip(value, _LONGEST_FACT))))
    return table
