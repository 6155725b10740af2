"""Hosts' clocks differ: who reads one is known, and decides nothing by it."""

import re

import pytest

from .tree import ROOT

pytestmark = pytest.mark.unit

READS = re.compile(r"\b(?:time\.time(?:_ns)?\b|datetime\.(?:now|utcnow|today)\b|date\.today\b)")
READERS = {
    "store/publish.py": "when a checkpoint was made, for people: `created_at`",
    "orchestrator/cli/render.py": "ages, for people",
    "orchestrator/cli/up.py": "the date of an event, for people",
    "participants/harness_agent.py": "`created_at` of a response, which its API has",
    "participants/inference/jobs.py": "`created` of a reply, which its API has",
    "participants/telemetry/hook.py": "when a span began; how long it took is by the monotonic clock",
    "participants/telemetry/otel.py": "the interval that is sent",
    "participants/workfolder/reading.py": "against the times of files on a disk of this host, by the same clock",
}
"""Every file that reads a wall clock, and what for."""


def test_no_wall_clock_decides() -> None:
    """Time between hosts is relative, and deadlines are monotonic; a new reader has to say what for."""
    found = {
        str(path.relative_to(ROOT))
        for package in ("store", "participants", "orchestrator", "midflight")
        for path in (ROOT / package).rglob("*.py")
        if READS.search(path.read_text(encoding="utf-8"))
    }
    assert found == READERS.keys()
