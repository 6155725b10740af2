"""Every scenario has a test, in the variants that it must hold in."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, modules

pytestmark = pytest.mark.unit

NUMBERS = frozenset(range(1, 41))
WITH_COUNTS = frozenset({1, 2, 3, 4, 5, 13, 15, 16, 17})
"""(W): with several worker counts; 13 too, for a cohort is decided at one worker for rollouts of all."""
ON_S3 = frozenset({1, 33, 35})
"""(S): on a local path and on S3."""
ELSEWHERE: Mapping[str, int] = {
    "test_served::test_sigterm_checkpoints_and_stops_the_servers_and_the_same_command_continues": 33,
    "test_served::test_sigusr1_takes_a_checkpoint_and_the_run_goes_on": 34,
    "test_served_kill::test_whoever_is_killed_at_random_times_the_same_command_finishes_every_row_once": 35,
    "test_served_kill::test_whoever_is_killed_on_s3_the_same_command_finishes_every_row_once": 35,
    "test_served::test_a_second_collector_touches_no_server_of_a_live_one": 37,
    "test_served::test_a_collector_that_takes_over_waits_for_the_servers_of_the_first": 37,
    "test_real_model::test_rollouts_cut_in_mid_generation_end_as_if_never_cut": 40,
    "test_real_model::test_rollouts_cut_over_servers_end_as_if_never_cut": 40,
    "test_real_model::test_rollouts_of_any_other_model_continue": 40,
}
"""Tests of scenarios that have no number in their name, in tests/orchestrator/collect; each must be there."""
_NAME = re.compile(r"test_(\d\d)_\w+")


@dataclass(frozen=True, slots=True)
class Numbered:
    """A test of a scenario."""

    number: int
    has_counts: bool
    on_s3: bool


def all_tests(root: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every test below `tests/`, as `module::name`."""
    for module in modules(root, "tests"):
        for node in module.tree.body if module.path.name.startswith("test_") else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield f"{module.path.stem}::{node.name}", node


def numbered(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Numbered | None:
    """What scenario a test is of, and in which variants: by its decorators, and by the S3 server it asks for."""
    match = _NAME.fullmatch(node.name)
    number = int(match[1]) if match else ELSEWHERE.get(name)
    if number is None:
        return None
    decorators = " ".join(map(ast.unparse, node.decorator_list))
    on_s3 = "s3" in decorators or any(argument.arg == "seaweed" for argument in node.args.args)
    return Numbered(number, "counts" in decorators, on_s3)


def missing(root: Path, elsewhere: Mapping[str, int] = ELSEWHERE) -> list[str]:
    """What has no test, or none in a variant that it must hold in."""
    tests = dict(all_tests(root))
    found = [test for name, node in tests.items() if (test := numbered(name, node)) is not None]
    numbers = {test.number for test in found}
    local = {test.number for test in found if not test.on_s3 or test.has_counts}
    counted = {test.number for test in found if test.has_counts}
    on_s3 = {test.number for test in found if test.on_s3}
    problems = [f"{name} is not there" for name in sorted(elsewhere.keys() - tests.keys())]
    problems += [f"scenario {number} has no test" for number in sorted(NUMBERS - numbers)]
    problems += [f"scenario {number} has no test on a local path" for number in sorted((NUMBERS & numbers) - local)]
    problems += [f"scenario {number} has no test with worker counts" for number in sorted(WITH_COUNTS - counted)]
    return problems + [f"scenario {number} has no test on S3" for number in sorted(ON_S3 - on_s3)]


def test_every_scenario_has_a_test_in_its_variants() -> None:
    """With several worker counts and on S3 where it must hold there, and everything is there that is named here."""
    assert missing(ROOT) == []


def test_a_scenario_without_a_test_or_a_variant_is_found(tmp_path: Path) -> None:
    """A number that nobody tests, one without worker counts, without S3 or without a disk, and a test that has gone."""
    folder = tmp_path / "tests" / "scenarios"
    folder.mkdir(parents=True)
    names = [f"test_{number:02}_claim" for number in NUMBERS - {8}]
    (folder / "test_all.py").write_text("\n".join(f"@counts_and_s3\ndef {name}(): ..." for name in names))
    assert missing(tmp_path, {}) == ["scenario 8 has no test"]
    (folder / "test_all.py").write_text("\n".join(f"@one\ndef {name}(): ..." for name in names))
    said = missing(tmp_path, {"test_a::test_gone": 8})
    assert said[:2] == ["test_a::test_gone is not there", "scenario 8 has no test"]
    assert "scenario 1 has no test with worker counts" in said
    assert "scenario 35 has no test on S3" in said
    (folder / "test_all.py").write_text("\n".join(f"@one\ndef {name}(seaweed): ..." for name in names))
    said = missing(tmp_path, {})
    assert "scenario 35 has no test on S3" not in said
    assert "scenario 35 has no test on a local path" in said
