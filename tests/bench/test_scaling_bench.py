"""The benchmark of scale fits what is known exactly, says which form fits better, and has the figures it promises."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench import scaling, scaling_controller
from bench.scaling_fit import fit

SIZES = (1_000.0, 4_000.0, 16_000.0, 64_000.0)


@pytest.mark.unit
def test_a_power_is_found_again_with_no_error() -> None:
    """Of times that are a power of the number, a and b come out, and the standard error of b is nothing."""
    found = fit([(n, 2e-6 * n**1.5) for n in SIZES])
    assert found.power.a == pytest.approx(2e-6)
    assert found.power.b == pytest.approx(1.5)
    assert found.power.b_error == pytest.approx(0, abs=1e-7)
    assert found.power.at(2_000) == pytest.approx(2e-6 * 2_000**1.5)
    assert found.better == "power"


@pytest.mark.unit
def test_a_line_with_a_fixed_part_is_found_again_and_fits_better() -> None:
    """A fixed part makes the exponent look smaller than one; the line says it exactly, and is named."""
    found = fit([(n, 0.1 + 5e-5 * n) for n in SIZES])
    assert found.line.fixed == pytest.approx(0.1)
    assert found.line.each == pytest.approx(5e-5)
    assert found.line.at(2_000) == pytest.approx(0.2)
    assert found.power.b < 0.9
    assert found.better == "line"


@pytest.mark.unit
def test_the_standard_error_is_that_of_a_textbook() -> None:
    """Logarithms (0, 0), (1, 1), (2, 1), (3, 3) have the slope 0.9, and sqrt(0.7 / 2 / 5) as its standard error."""
    found = fit([(math.exp(x), math.exp(y)) for x, y in ((0, 0), (1, 1), (2, 1), (3, 3))])
    assert found.power.b == pytest.approx(0.9)
    assert found.power.b_error == pytest.approx(math.sqrt(0.7 / 2 / 5))


@pytest.mark.unit
def test_no_part_of_a_line_is_below_nothing() -> None:
    """What grows faster than its number has no fixed part below nothing, and what falls has no part for each."""
    above, falling = fit([(1, 1), (2, 4), (4, 16)]), fit([(1, 3), (2, 2), (4, 1)])
    assert above.line.fixed == 0
    assert falling.line.each == 0
    assert above.better == falling.better == "power"


@pytest.mark.unit
def test_two_sizes_leave_the_error_open() -> None:
    """Two points have an exponent, and nothing to judge it by: no standard error is printed as a number."""
    runs = [_run(1_000, 0.1), _run(4_000, 0.4)]
    told = scaling.summary(runs)["fits"]["embedded"]["seconds"]["commit"]
    assert (told["b"], told["b_error"]) == (1.0, None)


@pytest.mark.unit
@pytest.mark.parametrize("points", [[(1_000, 1.0), (1_000, 2.0)], [(1_000, 1.0), (4_000, 0.0)]])
def test_what_cannot_be_fitted_is_refused(points: list[tuple[float, float]]) -> None:
    """One size alone, or a time of nothing, has no exponent: the error says what to do."""
    with pytest.raises(ValueError, match="a fit needs"):
        fit(points)


@pytest.mark.unit
def test_every_run_of_a_size_counts() -> None:
    """The fit goes through all runs, each way by itself, and one size of a way alone has none."""
    runs = [_run(1_000, 0.1), _run(1_000, 0.3), _run(4_000, 0.8), _run(1_000, 9.0, way="servers")]
    assert scaling.points(runs, "embedded", "seconds", "commit") == [(1_000, 0.1), (1_000, 0.3), (4_000, 0.8)]
    assert set(scaling.fits(runs)) == {"embedded"}


@pytest.mark.process
@pytest.mark.timeout(120)
def test_runs_are_fitted_and_those_of_a_file_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two real runs in processes of their own give a fit of each stage; a second call fits the same without running."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(scaling.__file__).parents[1]))
    arguments = ["--embedded", "4,16", "--server-repeat", "0", "--repeat", "1", "--runs", "runs.jsonl", "--json"]
    scaling.main(arguments)
    first = _last(capsys)
    assert [run["rollouts"] for run in first["runs"]] == [4, 16]
    assert set(first["fits"]["embedded"]["cpu"]) == {"prepare", "commit", "restore"}
    monkeypatch.setattr(scaling, "RUN_TIMEOUT_S", 0)  # Another run would fail at once.
    scaling.main(arguments)
    assert _last(capsys) == first
    assert [path.name for path in tmp_path.iterdir()] == ["runs.jsonl"]


@pytest.mark.process
def test_requests_of_the_controller_go_with_the_processes_and_bytes_with_the_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice the processes ask for two more objects each, whatever they hold; a call and a chain entry stay as long."""
    monkeypatch.chdir(tmp_path)
    scaling_controller.main(["--rollouts", "16", "--processes", "4,8", "--json"])
    four, eight = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (eight["open_requests"] - four["open_requests"], four["open_requests"]) == (8, 9)
    assert four["call_bytes"] == eight["call_bytes"] > 16 * len("rollout-")
    assert four["entry_bytes"] == eight["entry_bytes"]
    assert min(four[key] for key in ("scope_write_s", "call_send_s", "call_parse_s")) > 0
    assert list(tmp_path.iterdir()) == []


def _run(rollouts: int, commit_s: float, way: str = "embedded") -> scaling.Run:
    times = {"prepare": 0.01, "commit": commit_s, "restore": 0.2}
    return scaling.Run(way, rollouts, times, times, bytes=1_000, peak_mb=50.0, load=0.0)


def _last(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found
