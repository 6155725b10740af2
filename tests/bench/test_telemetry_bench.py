"""The picture of a trace, and the measuring of what telemetry costs."""

import argparse
import json
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from bench import telemetry as bench
from bench import telemetry_instructions as instructions
from bench.endpoint import endpoint
from bench.otlp_sink import SeenSpan
from bench.timeline import LEFT, RIGHT, WIDTH, Panel, draw, lanes, short
from participants.telemetry import names as n

SVG = "{http://www.w3.org/2000/svg}"


def span(number: int, start_ms: float, end_ms: float, parent: int | None = None, name: str = n.COMMIT) -> SeenSpan:
    """One of agent.main w0."""
    parent_id = None if parent is None else str(parent)
    resource = {"midflight.participant": "agent.main", "midflight.process": "w0"}
    start_ns, end_ns = int(start_ms * 1e6), int(end_ms * 1e6)
    return SeenSpan(name, "t", str(number), parent_id, start_ns, end_ns, {"records": number}, None, resource)


@pytest.mark.unit
def test_no_two_spans_of_a_lane_are_over_each_other() -> None:
    """What runs at once has lanes of its own, and each span is below the one that it is in."""
    spans = [span(1, 0, 100), span(2, 10, 60, 1), span(3, 20, 80, 1), span(4, 85, 95, 1), span(5, 30, 40, 3)]
    placed = {bar.span.span_id: bar.lane for bar in lanes(spans)}
    assert placed == {"1": 0, "2": 1, "3": 2, "4": 1, "5": 3}


@pytest.mark.unit
def test_a_picture_has_every_span_within_its_bounds() -> None:
    """Well-formed, each span with its name and length to point at, however short it is."""
    spans = [span(1, 0, 100), span(2, 10, 10.001, 1, n.RENEW), span(3, 99, 100, 1, n.PUBLISH_CHAIN)]
    picture = ET.fromstring(draw([Panel("one & two", spans), Panel("again", spans)], ["controller main"]))
    titles = [title.text or "" for title in picture.iter(f"{SVG}title")]
    assert len(titles) == 2 * len(spans)
    assert titles[0] == f"{n.COMMIT}, 100.00 ms\nrecords = 1"
    bars = [group.find(f"{SVG}rect") for group in picture.iter(f"{SVG}g")]
    for bar in bars:
        assert bar is not None
        assert float(bar.attrib["width"]) >= 1
        assert LEFT <= float(bar.attrib["x"]) <= LEFT + WIDTH
        assert float(bar.attrib["x"]) + float(bar.attrib["width"]) <= LEFT + WIDTH + RIGHT
    assert "one & two" in [text.text for text in picture.iter(f"{SVG}text")]


@pytest.mark.unit
def test_names_in_the_picture_are_short_and_not_mistaken() -> None:
    """What a process does is called by its last word; what a collection run does keeps its first."""
    assert [short(name) for name in (n.PUBLISH_CHAIN, n.PARK, n.COLLECT_CHECKPOINT, n.CHECKPOINT)] == [
        "chain",
        "park",
        "collect.checkpoint",
        "checkpoint",
    ]


@pytest.mark.process
@pytest.mark.timeout(120)
def test_the_bench_measures_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small run has figures of all kinds, and telemetry was on where it says so."""
    monkeypatch.chdir(tmp_path)
    small = ["--rollouts", "8", "--pairs", "1", "--interval", "0.2", "--scrape", "0.1", "--calls", "200", "--json"]
    bench.main(small)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["calls"]["span"] > 0
    assert found["threads_ms"] > 0
    assert found["pages_ms"] > 0
    assert len(found["overheads"]) == 1
    assert found["off_ns"].keys() == found["on_ns"].keys() == {"span", "add", "observe"}


@pytest.mark.process
@pytest.mark.timeout(120)
def test_instructions_are_counted_of_runs_in_which_telemetry_is_on(tmp_path: Path) -> None:
    """With it on, a child minds where it is to go; valgrind's count is read."""
    page, parsed = bench.free_address(), argparse.Namespace(turns=1, concurrency=4, interval=1.0)
    with endpoint(tmp_path) as served, bench.sink(f"http://{page}/metrics", 0.1) as url:
        runs = instructions.Bench(tmp_path, served.base_url, {"otlp": url, "prometheus": page}, parsed)
        assert instructions.run(runs.order("on", 4, 1.0))[0] > 0
        wrong = replace(runs, told={"otlp": "nowhere"})
        with pytest.raises(RuntimeError, match="http:// or https://"):
            instructions.run(wrong.order("on", 4, 1.0))
        assert instructions.run(wrong.order("off", 4, 1.0))[0] > 0
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    told = subprocess.run([*instructions.VALGRIND, "true"], check=True, capture_output=True, text=True).stderr
    assert 10_000 < instructions.count_in(told) < 10_000_000
