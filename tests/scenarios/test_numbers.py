"""Every scenario has a test, in the variants that it must hold in; this page says which are still to come."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

pytestmark = pytest.mark.unit

NUMBERS = frozenset(range(1, 41)) - {13}
"""All but 13, which waits for the cohort verifiers."""
TO_COME = NUMBERS - set(range(1, 8)) - set(range(15, 33)) - {38}
"""Not written yet; emptied by and by, and must be empty in a release."""
WITH_COUNTS = frozenset({1, 2, 3, 4, 5, 15, 16, 17})
"""(W): with several worker counts."""
ON_S3 = frozenset({1, 33, 35})
"""(S): on a local path and on S3."""
_NAME = re.compile(r"test_(\d\d)_\w+")


def numbered(root: Path) -> Iterator[tuple[int, str, str]]:
    """Number, name and text of the decorators of each numbered test below `tests/`."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (match := _NAME.fullmatch(node.name)):
                yield int(match[1]), node.name, " ".join(map(ast.unparse, node.decorator_list))


def missing(root: Path) -> list[str]:
    """What has no test, or none in a variant that it must hold in."""
    found = list(numbered(root))
    numbers = {number for number, _, _ in found}
    counted = {number for number, _, decorators in found if "counts" in decorators}
    on_s3 = {number for number, _, decorators in found if "s3" in decorators}
    problems = [f"scenario {number} has no test" for number in sorted(NUMBERS - numbers)]
    problems += [f"scenario {number} has no test with worker counts" for number in sorted(WITH_COUNTS - counted)]
    return problems + [f"scenario {number} has no test on S3" for number in sorted(ON_S3 - on_s3)]


def test_every_scenario_has_a_test_in_its_variants() -> None:
    """But for those that are still to come; and none is among these that is there."""
    expected = {f"scenario {number} has no test" for number in TO_COME}
    expected |= {f"scenario {number} has no test on S3" for number in ON_S3 & TO_COME}
    assert sorted(missing(ROOT)) == sorted(expected)


def test_a_scenario_without_a_test_or_a_variant_is_found(tmp_path: Path) -> None:
    """A number that nobody tests, one without worker counts, and one without S3 are each found."""
    folder = tmp_path / "tests" / "scenarios"
    folder.mkdir(parents=True)
    names = [f"test_{number:02}_claim" for number in NUMBERS - {8}]
    (folder / "test_all.py").write_text("\n".join(f"@counts_and_s3\ndef {name}(): ..." for name in names))
    assert missing(tmp_path) == ["scenario 8 has no test"]
    (folder / "test_all.py").write_text("\n".join(f"@one\ndef {name}(): ..." for name in names))
    said = missing(tmp_path)
    assert "scenario 1 has no test with worker counts" in said
    assert "scenario 35 has no test on S3" in said
