"""An office with mailbox, calendar, project boards and customers, whose tables belong to a session.

A row has `ground_truth`, a list of `{"name", "arguments"}` with the arguments as JSON text. The reward is 1.0 if the
tool calls in the response, carried out on fresh tables, leave the tables that those of the ground truth leave; upper
and lower case count in status, list_name and board alone. So the reward follows from the response, and what tools
answer from the session.

A call that a tool refuses changes nothing, live as in verify. A ground truth that a tool refuses is a faulty row, and
no reward. The state has the changes against the tables that every session begins with, and says which those are.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import orjson

from ..cases import Case, Conformance, ToolCall
from ..errors import Code, ParticipantError
from ..output_text import function_calls
from ..resources import ResourcesServer
from ..sessions import ResourcesSession
from ..tools import ToolError
from ..workplace import (
    CalendarTools,
    CustomerTools,
    DirectoryTools,
    EmailTools,
    ProjectTools,
    base_digest,
    check_changes,
    make_tasks,
    no_changes,
    same_tables,
)


class WorkplaceServer(EmailTools, CalendarTools, ProjectTools, CustomerTools, DirectoryTools, ResourcesServer):
    """Keeps the office."""

    checkpoint_mode = "exported"
    checkpoint_verify = "replay"

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        """The tables, unchanged."""
        session.state.update(_fresh())

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """Carry out both lists of calls, each on fresh tables, and compare."""
        truth = row.get("ground_truth")
        if not isinstance(truth, list):
            raise ParticipantError(Code.INVALID_REQUEST, "the row has no ground_truth, a list of calls")
        expected, made = _scratch(), _scratch()
        for call in truth:
            await self._expected(expected, call)
        for call in function_calls(row["response"]):
            await self._made(made, call)
        return {"reward": float(same_tables(expected.state["changes"], made.state["changes"]))}

    async def _expected(self, scratch: ResourcesSession, call: Any) -> None:
        try:
            await super().call_tool(scratch, str(call["name"]), _arguments_of(call))
        except (ToolError, ValueError, KeyError, TypeError) as error:
            problem = f"the row's ground_truth has a call that cannot be carried out: {call!r:.200}: {error}"
            raise ParticipantError(Code.INVALID_REQUEST, problem) from error

    async def _made(self, scratch: ResourcesSession, call: Mapping[str, Any]) -> None:
        with suppress(ToolError, ValueError):  # The model was told so, and nothing was changed.
            await super().call_tool(scratch, str(call.get("name")), _arguments_of(call))

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        """The changes again. Raises where they are none, or of other tables than these."""
        if exported["base"] != base_digest():
            raise ValueError(f"the session is of the tables {exported['base']!r:.40}, and these are {base_digest()}")
        check_changes(exported["changes"])
        session.state = exported

    @classmethod
    def conformance(cls) -> Conformance:
        """Tasks of all kinds; every third is done wrongly: a call is left out, or there is one too many."""
        return Conformance(cases=list(_cases(random.Random(0))))


def _fresh() -> dict[str, Any]:
    return {"base": base_digest(), "changes": no_changes()}


def _scratch() -> ResourcesSession:
    """Tables for a verify alone."""
    return ResourcesSession("verify", None, _fresh())


def _arguments_of(call: Mapping[str, Any]) -> Any:
    """Raises ValueError where they are not JSON."""
    given = call.get("arguments") or {}
    return orjson.loads(given) if isinstance(given, str) else given


def _cases(chance: random.Random) -> Iterator[Case]:
    for number, task in enumerate(make_tasks(63, seed=0)):
        calls = list(task.calls)
        if number % 3 == 2 and calls and chance.random() < 0.5:
            del calls[chance.randrange(len(calls))]
        elif number % 3 == 2:
            calls.append(("email_delete_email", {"email_id": f"{chance.randrange(100):08d}"}))
        made = [ToolCall(name=name, arguments=given) for name, given in (*task.looked, *calls)]
        row = task.row(number)
        del row["responses_create_params"]
        yield Case(row=row, calls=made, said="It is done.")
