"""The dashboard for Grafana asks for what there is: every metric and label of its queries is in the table of names."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from participants.telemetry.names import METRICS, Instrument

pytestmark = pytest.mark.unit

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana" / "midflight.json"
SERIES = re.compile(r"\b(midflight_\w+)\{([^}]*)\}")
BY = re.compile(r"by \(([^)]*)\)")
OF_THE_SCRAPE = {"job", "le"}


def endings(metric: Instrument) -> set[str]:
    """Every name that Prometheus has of a metric."""
    parts = ("_bucket", "_count", "_sum") if metric.shape == "histogram" else ("",)
    return {metric.prometheus + part for part in parts}


SERIES_OF = {name: metric for metric in METRICS for name in endings(metric)}


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: dict[str, Any]) -> Iterator[str]:
    """Of all panels."""
    for panel in panels(dashboard):
        yield from (target["expr"] for target in panel["targets"])


def problems(query: str) -> list[str]:
    """What a query asks for that there is not."""
    found = []
    series = SERIES.findall(query)
    for name, matchers in series:
        if name not in SERIES_OF:
            found.append(f"{name} is in no table")
            continue
        labels = {*SERIES_OF[name].labels, *OF_THE_SCRAPE}
        asked = {matcher.partition("=")[0].strip(" !") for matcher in matchers.split(",") if matcher.strip()}
        grouped = {label.strip() for group in BY.findall(query) for label in group.split(",")}
        found += [f"{name} has no label {label}" for label in (asked | grouped) - labels]
        if ("rate(" in query or "increase(" in query) == (SERIES_OF[name].shape == "gauge"):
            found.append(f"{name} is a {SERIES_OF[name].shape}: a gauge is shown as it is, everything else as a rate")
    return found or ([] if series else ["it asks for nothing of ours"])


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    """As Grafana imports it."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def test_the_dashboard_asks_only_for_what_there_is(dashboard: dict[str, Any]) -> None:
    """A metric that is renamed fails here, and not in front of an empty panel."""
    asked = list(queries(dashboard))
    assert len(asked) > 20
    assert [(query, problem) for query in asked for problem in problems(query)] == []


def test_the_dashboard_shows_every_metric(dashboard: dict[str, Any]) -> None:
    """But for how many workers there are, of which only the missing ones are of interest."""
    shown = {SERIES_OF[name].name for query in queries(dashboard) for name, _ in SERIES.findall(query)}
    assert {metric.name for metric in METRICS} - shown == {"midflight.server.workers"}


def test_panels_have_an_identity_a_text_and_a_place_of_their_own(dashboard: dict[str, Any]) -> None:
    """No two lie over each other, none is wider than the grid, and each asks the data source that is chosen."""
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels(dashboard):
        assert panel["description"].endswith(".")
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def test_prometheus_understands_each_query(dashboard: dict[str, Any], tmp_path: Path) -> None:
    """Its own checker reads them all, as rules, with a value for each variable."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")
    asked = [query.replace("$__rate_interval", "5m").replace("$job", ".+") for query in queries(dashboard)]
    rules = [{"record": f"query{number}", "expr": query} for number, query in enumerate(asked)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # YAML has all of JSON.
    checked = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("midflight_invented{}", "is in no table"),
        ("midflight_records{}", "is in no table"),
        ('rate(midflight_records_total{tool="x"}[5m])', "no label tool"),
        ("sum by (rollout) (midflight_gate_closed{})", "no label rollout"),
        ("midflight_records_total{}", "is a counter"),
        ("rate(midflight_gate_closed{}[5m])", "is a gauge"),
        ("up", "nothing of ours"),
    ],
)
def test_a_query_for_what_there_is_not_is_found(query: str, says: str) -> None:
    """An unknown name, a wrong ending, a label that it has not, and a counter that is shown as if it were a gauge."""
    [problem] = problems(query)
    assert says in problem
