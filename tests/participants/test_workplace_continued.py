"""Whole rollouts in the office, killed at every boundary: the tables, the tool replies and the reward are the same."""

import json
from functools import partial
from typing import Any

import anyio
import pytest

from participants.servers import WorkplaceServer
from participants.workplace import make_tasks
from tests.support.continuing import killed_at, killed_while_at, uninterrupted
from tests.support.scripted import scripted_row
from tests.support.world import Journaled

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

SCHEMAS = [each.schema for each in WorkplaceServer().tools.values()]
GONE = {"type": "function", "name": "email_archive_email", "parameters": {"type": "object"}}
"""The row offers it, and the server does not have it."""


class JournalWorkplace(Journaled, WorkplaceServer):
    """Writes down what it runs."""


OFFICE: dict[str, Any] = {"counter": JournalWorkplace}


def office_row(name: str, calls: list[tuple[str, Any]], truth: Any) -> dict[str, Any]:
    """A row whose model makes these calls, one a turn."""
    row = scripted_row(name, [*([call, given] for call, given in calls), "done"], tools=[*SCHEMAS, GONE])
    return {**row, "ground_truth": truth}


SEND = {"recipient": "guest@example.com", "subject": "Tea", "body": "At four?"}
CALLS: list[tuple[str, Any]] = [
    ("email_send_email", SEND),
    ("email_archive_email", {"email_id": "00000160"}),
    ("email_reply_email", {"email_id": "00000160", "body": "Or at five?"}),
    ("email_search_emails", {"query": "tea guest"}),
]
REPLY = {**SEND, "subject": "RE: Tea", "body": "Or at five?"}
TRUTH = [{"name": "email_send_email", "arguments": json.dumps(given)} for given in (SEND, REPLY)]
ROWS = {"r0": office_row("r0", CALLS, TRUTH)}
NAMES = [name for name, _ in CALLS]
POINTS = [
    *(f"model r0 {turn}" for turn in range(5)),
    *(f"after /{name} 0" for name in NAMES),
    *(f"tool resources-r0 {name} {revision}" for name, revision in zip(NAMES, (0, 1, 1, 2), strict=True)),
    "before /verify 0", "verify resources-r0", "after /verify 0", "after /close_session 0",
]  # fmt: skip


async def test_what_a_session_has_done_is_what_its_tools_see() -> None:
    """By hand: the reply finds the mail that was just sent, the search finds both, and a missing tool is told of."""
    row = (await uninterrupted(ROWS, **OFFICE))["r0"]
    outputs = [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]
    assert outputs[:3] == [
        '{"output":"the mail is sent, as 00000160"}',
        '{"error":"there is no tool named \'email_archive_email\'"}',
        '{"output":"the mail is sent, as 00000161"}',
    ]
    assert '"found":2' in outputs[3]
    assert row["reward"] == 1.0


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """The rows of a run that is never killed."""
    return anyio.run(partial(uninterrupted, ROWS, **OFFICE))


@pytest.mark.enumerated(4)
@pytest.mark.parametrize("point", POINTS)
async def test_an_office_killed_at_any_boundary_goes_on_with_its_tables(
    point: str, undisturbed: dict[str, Any]
) -> None:
    """Row and reward are those of the undisturbed rollout; nothing is sent twice."""
    rows, _ = await killed_at(point, ROWS, **OFFICE)
    assert rows == undisturbed


async def test_54_tasks_killed_at_different_turns_end_as_undisturbed_ones() -> None:
    """Six of each kind, every third without its last call; each is at another model call."""
    rows: dict[str, Any] = {}
    points = []
    for number, task in enumerate(make_tasks(54, seed=1)):
        calls = [*task.looked, *(task.calls[:-1] if number % 3 == 2 else task.calls)]
        rows[f"r{number}"] = office_row(f"r{number}", [(n, dict(g)) for n, g in calls], task.row(0)["ground_truth"])
        points.append(f"model r{number} {number % (len(calls) + 1)}")
    found = await killed_while_at(points, rows, **OFFICE)
    assert found == await uninterrupted(rows, **OFFICE)
    expected = {f"r{n}": float(n % 3 != 2 or not task.calls) for n, task in enumerate(make_tasks(54, seed=1))}
    assert {name: row["reward"] for name, row in found.items()} == expected
