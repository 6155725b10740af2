"""The matrix as one table of Markdown, and its reading back: pure."""

from collections.abc import Iterable, Sequence

from .cell import Result
from .phases import PHASES
from .victims import VICTIMS

HEAD = "victim"


def table(results: Iterable[Result]) -> str:
    """A row for each victim and a column for each phase; a cell that was not run is empty."""
    cells = {(result.victim, result.phase): str(result) for result in results}
    columns = [phase.name for phase in PHASES]
    lines = [_line([HEAD, *columns]), _line(["---"] * (len(columns) + 1))]
    for victim in VICTIMS:
        row = [cells.get((victim.name, column), "") for column in columns]
        if any(row):
            lines.append(_line([victim.name, *row]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"


def read(markdown: str) -> dict[tuple[str, str], str]:
    """The cells of the first such table in a page, by victim and phase."""
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    start = next((k for k, row in enumerate(rows) if row[0] == HEAD), len(rows))
    columns = rows[start][1:] if start < len(rows) else []
    return {
        (victim, column): cell
        for victim, *cells in rows[start + 2 :]
        for column, cell in zip(columns, cells, strict=False)
    }
