"""The tables of one session: the generated ones, and what the session has changed in them.

The state holds the changes alone: a new or changed row by its id, and None for one that is gone; a row that is again as
it was is no change. So a session takes a few hundred bytes, whatever the size of the tables.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from ..sessions import ResourcesSession
from ..tools import ToolError
from .data import Row, base, row_id

Changes = dict[str, dict[str, dict[str, str] | None]]
"""By table, then by id."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "emails": ("email_id", "inbox/outbox", "sender/recipient", "subject", "sent_datetime", "body"),
    "events": ("event_id", "event_name", "participant_email", "event_start", "duration"),
    "tasks": ("task_id", "task_name", "assigned_to_email", "list_name", "due_date", "board"),
    "customers": (
        "customer_id", "assigned_to_email", "customer_name", "customer_email", "customer_phone", "last_contact_date",
        "product_interest", "status", "follow_up_by", "notes",
    ),
}  # fmt: skip
"""The first one is the id."""
EXACT = frozenset({"status", "list_name", "board"})
"""Columns whose case counts when tables are compared."""
MAX_ROWS = 50
"""Of one page of a search."""


def no_changes() -> Changes:
    """Of a session that begins."""
    return {name: {} for name in COLUMNS}


def check_changes(changes: Any) -> Changes:
    """What comes back from a checkpoint. Raises ValueError where that is no changes."""
    if not isinstance(changes, dict) or changes.keys() != COLUMNS.keys():
        raise ValueError(f"the tables are not {sorted(COLUMNS)}")
    for name, rows in changes.items():
        columns = set(COLUMNS[name][1:])
        for row in rows.values():
            if row is not None and not (row.keys() == columns and all(type(each) is str for each in row.values())):
                raise ValueError(f"a row of {name} is not text in the columns {sorted(columns)}")
    return changes


def same_tables(one: Changes, other: Changes) -> bool:
    """Whether both leave the same tables, upper and lower case aside where the column does not say otherwise."""
    return all(_same_table(name, one[name], other[name]) for name in COLUMNS)


def _same_table(name: str, one: Mapping[str, Row | None], other: Mapping[str, Row | None]) -> bool:
    rows = base()[name]
    ids = one.keys() | other.keys()
    return all(_folded(one.get(key, rows.get(key))) == _folded(other.get(key, rows.get(key))) for key in ids)


def _folded(row: Row | None) -> dict[str, str] | None:
    if row is None:
        return None
    return {column: text if column in EXACT else text.casefold() for column, text in row.items()}


def table_of(session: ResourcesSession, name: str) -> "Table":
    """One table of a session."""
    return Table(name, session.state["changes"][name])


class Table:
    """One table as a session sees it. A method that raises has changed nothing."""

    def __init__(self, name: str, changes: dict[str, dict[str, str] | None]) -> None:
        """`changes` are those of the session, and are changed."""
        self._name = name
        self._key, *self._columns = COLUMNS[name]
        self._base = base()[name]
        self._changes = changes

    def rows(self) -> Iterator[dict[str, str]]:
        """All of them, with their ids, in the order of these."""
        for key in sorted(self._base.keys() | self._changes.keys()):
            row = self._changes.get(key, self._base.get(key))
            if row is not None:
                yield {self._key: key, **row}

    def find(self, key: str) -> dict[str, str]:
        """One row, without its id. Raises ToolError."""
        row = self._changes.get(key, self._base.get(key))
        if row is None:
            raise ToolError(f"there is no {self._key.removesuffix('_id')} with the {self._key} {key!r:.80}")
        return dict(row)

    def field(self, key: str, column: str) -> dict[str, str]:
        """One value of a row, under its column. Raises ToolError."""
        row = {self._key: key, **self.find(key)}
        if column not in row:
            raise ToolError(f"{column!r:.80} is none of the fields {', '.join(row)}")
        return {column: row[column]}

    def add(self, row: dict[str, str]) -> str:
        """A new row, under the id after the highest one; gives that."""
        key = row_id(max((int(each[self._key]) for each in self.rows()), default=-1) + 1)
        self._put(key, row)
        return key

    def change(self, key: str, column: str, text: str) -> None:
        """Set one value. Raises ToolError."""
        row = self.find(key)
        if column not in row:
            raise ToolError(f"{column!r:.80} is none of the fields that can be changed: {', '.join(row)}")
        self._put(key, {**row, column: text})

    def remove(self, key: str) -> None:
        """Raises ToolError where it is not there."""
        self.find(key)
        self._put(key, None)

    def page(self, wanted: Any, page: int, size: int) -> dict[str, Any]:
        """The rows that `wanted` accepts, a page of them, the pages counted from 1."""
        if page < 1 or not 1 <= size <= MAX_ROWS:
            raise ToolError(f"page begins at 1, and page_size is 1 to {MAX_ROWS}")
        found = [row for row in self.rows() if wanted(row)]
        return {"output": found[(page - 1) * size : page * size], "found": len(found)}

    def _put(self, key: str, row: dict[str, str] | None) -> None:
        if row == self._base.get(key):
            self._changes.pop(key, None)
        else:
            self._changes[key] = row


def has_words(query: str, *texts: str) -> bool:
    """Whether each word of a query is in any of the texts."""
    within = "\n".join(texts).casefold()
    return all(word in within for word in query.casefold().split())


def check_address(text: str) -> str:
    """An e-mail address, in lower case. Raises ToolError."""
    name, at, domain = text.partition("@")
    if not (name and at and "." in domain) or " " in text:
        raise ToolError(f"{text!r:.80} is no e-mail address")
    return text.lower()


def check_one_of(text: str, values: tuple[str, ...], what: str) -> str:
    """One of these, as they are written. Raises ToolError."""
    if text not in values:
        raise ToolError(f"{what} is one of {', '.join(values)}, and not {text!r:.80}")
    return text


def check_date(text: str) -> str:
    """A day. Raises ToolError."""
    return _check_time(text, "%Y-%m-%d", "a date such as 2024-05-31")


def check_time(text: str) -> str:
    """A time. Raises ToolError."""
    return _check_time(text, "%Y-%m-%d %H:%M:%S", "a time such as 2024-05-31 14:30:00")


def _check_time(text: str, form: str, such: str) -> str:
    try:
        return datetime.strptime(text, form).strftime(form)
    except ValueError:
        raise ToolError(f"{text!r:.80} is not {such}") from None
