"""Every row of the table of faults has a test, every public report too, and the pages say which."""

import re
from pathlib import Path

import pytest

from .faults import PAGE, ROWS, covered, gone, invented, names_in, page
from .tree import ROOT, expect_none, modules, plant

pytestmark = pytest.mark.unit

REPORTS = {*range(1, 21)}
REPORT_ROW = re.compile(r"^\| (\d+) \|.*\|(.*)\|$", re.MULTILINE)


def test_every_row_of_the_table_of_faults_has_a_test() -> None:
    """No row is without a test, none is invented, and no test that is listed has gone."""
    found = covered(ROOT)
    expect_none([f"row {row} ({title}) has no test" for row, title in ROWS.items() if not found[row]])
    expect_none(invented(ROOT))
    expect_none([f"{name} does not exist" for name in gone(ROOT)])


def test_the_page_of_faults_is_the_one_that_the_tests_give() -> None:
    """Write it anew with `python -m tests.tidy.faults`."""
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(ROOT)


def test_every_public_report_has_a_test_that_exists() -> None:
    """Each row of the page of reports names tests, and all of them are there."""
    tests = {name for module in modules(ROOT, "tests") for name, _ in names_in(module)}
    rows = REPORT_ROW.findall((ROOT / "docs/public-reports.md").read_text(encoding="utf-8"))
    named = {int(number): re.findall(r"`([^`]+::[^`]+)`", cell) for number, cell in rows}
    assert named.keys() >= REPORTS
    expect_none([f"report {number} names no test" for number, names in named.items() if not names])
    expect_none([f"{name} does not exist" for names in named.values() for name in names if name not in tests])


def test_a_mark_is_read_from_a_test(tmp_path: Path) -> None:
    """A marked test is listed under each of its rows, in a class or not, and a helper under none."""
    text = (
        '"""A."""\nimport pytest\n@pytest.mark.fault(4, 66)\ndef test_a(): ...\n@pytest.mark.fault(5)\ndef b(): ...\n'
    )
    found = covered(plant(tmp_path, {"tests/store/test_x.py": text}))
    assert {row: names for row, names in found.items() if names} == {
        4: ["store/test_x.py::test_a"],
        66: ["store/test_x.py::test_a"],
    }


def test_a_mark_of_a_module_is_one_of_each_of_its_tests(tmp_path: Path) -> None:
    """Alone or in a list, beside a test's own."""
    alone = '"""A."""\nimport pytest\npytestmark = pytest.mark.fault(57)\ndef test_a(): ...\ndef test_b(): ...\n'
    text = '"""A."""\nimport pytest\npytestmark = [pytest.mark.unit, pytest.mark.fault(50)]\n'
    listed = f"{text}@pytest.mark.fault(66)\ndef test_c(): ...\n"
    found = covered(plant(tmp_path, {"tests/store/test_x.py": alone, "tests/store/test_y.py": listed}))
    assert {row: names for row, names in found.items() if names} == {
        50: ["store/test_y.py::test_c"],
        57: ["store/test_x.py::test_a", "store/test_x.py::test_b"],
        66: ["store/test_y.py::test_c"],
    }


def test_a_row_that_is_in_no_table_is_found(tmp_path: Path) -> None:
    """A mark with a number that nothing has is a mistake."""
    text = '"""A."""\nimport pytest\n@pytest.mark.fault(67)\ndef test_a(): ...\n'
    [message] = invented(plant(tmp_path, {"tests/store/test_x.py": text}))
    assert message == "store/test_x.py::test_a: there is no row 67"
