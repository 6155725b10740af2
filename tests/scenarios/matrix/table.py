"""The matrix as one table of Markdown, and what is read from it and written to a page: pure."""

from collections.abc import Mapping, Sequence

from .phases import PHASES
from .victims import VICTIMS

HEAD = "victim"
Cells = Mapping[tuple[str, str], str]
"""By the names of victim and phase."""


def table(cells: Cells) -> str:
    """A row for each victim and a column for each phase; a cell that was not run is empty."""
    columns = [phase.name for phase in PHASES]
    lines = [_line([HEAD, *columns]), _line(["---"] * (len(columns) + 1))]
    for victim in VICTIMS:
        row = [cells.get((victim.name, column), "") for column in columns]
        if any(row):
            lines.append(_line([victim.name, *row]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"


def read(page: str) -> dict[tuple[str, str], str]:
    """The cells of the matrix in a page; none where there is no such table."""
    head, *rows = [_cells(line) for line in _lines(page)] or [[]]
    return {(row[0], column): cell for row in rows[1:] for column, cell in zip(head[1:], row[1:], strict=True) if cell}


def with_table(page: str, new: str) -> str:
    """The page with another table in place of its own. Raises ValueError where it has none."""
    if not (old := "\n".join(_lines(page))):
        raise ValueError(f"the page has no table that begins with | {HEAD} |")
    return page.replace(old, new)


def _lines(page: str) -> list[str]:
    _, found, rest = page.partition(f"| {HEAD} |")
    lines = (found + rest).splitlines()
    end = next((k for k, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return lines[:end]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split(" | ")]
