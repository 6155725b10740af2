"""The ledger's benchmark runs and cleans up; how fast it was is nobody's business here."""

from pathlib import Path

import pytest

from bench.ledger_rows import measure_ledger

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("rows", "lives"), [(8, 1), (24, 6)])
def test_all_rows_are_measured(tmp_path: Path, rows: int, lives: int) -> None:
    """Every row of every life is appended and exported, each figure is a number above zero, and no file is left."""
    figures = measure_ledger(rows, lives, str(tmp_path))
    assert (figures.rows, figures.lives) == (rows, lives)
    assert min(figures.rows_per_s, figures.limit_rows_per_s, figures.export_us_per_row, figures.bytes_per_row) > 0
    assert list(tmp_path.iterdir()) == []
