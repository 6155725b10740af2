"""The office: what each tool does to its table, what it refuses, rewards worked out by hand, and what an export holds.

Expected tables are the generated ones with the change written out here; nothing of the code under test makes them.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pytest

from participants.errors import Code, ParticipantError
from participants.servers import WorkplaceServer
from participants.workplace import COLUMNS, base, make_rows, same_tables
from participants.workplace.data import people

from .harness import LIFE, NEXT, RESPONSE, Caller, checkpoint, restore

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

Plain = dict[str, dict[str, str]]
"""Rows by id."""
ADELA, BRUNO = list(people())[:2]
NEW = {"emails": "00000160", "events": "00000120", "tasks": "00000120", "customers": "00000080"}
"""The id after the last one, by the number of generated rows."""
TASK = {"assigned_to_email": ADELA, "list_name": "Backlog", "due_date": "2024-06-01", "board": "Design"}
EVENT = {"participant_email": ADELA, "event_start": "2024-06-01 10:00:00", "duration": "45"}
CUSTOMER = {"assigned_to_email": ADELA, "status": "Lead", "product_interest": "Training"}
UNKNOWN = {"customer_email": "", "customer_phone": "", "last_contact_date": "", "follow_up_by": "", "notes": ""}


def mail(recipient: str, subject: str, body: str) -> dict[str, str]:
    """A mail that was just sent."""
    sent = {"inbox/outbox": "outbox", "sent_datetime": "2024-05-15 09:00:00"}
    return {**sent, "sender/recipient": recipient, "subject": subject, "body": body}


async def opened(life: Any = LIFE) -> Caller:
    """A session that has begun."""
    call = Caller(WorkplaceServer(), life)
    await call("/seed_session", {"ground_truth": []})
    return call


async def tables(call: Caller) -> dict[str, Plain]:
    """All of a session, read through its searches."""
    searches = {
        "emails": "email_search_emails",
        "events": "calendar_search_events",
        "tasks": "project_management_search_tasks",
        "customers": "customer_relationship_manager_search_customers",
    }
    found: dict[str, Plain] = {}
    for name, search in searches.items():
        pages = [(await call(f"/{search}", {"page": page, "page_size": 50})).body["output"] for page in range(1, 6)]
        rows = [row for page in pages for row in page]
        found[name] = {row[COLUMNS[name][0]]: {c: row[c] for c in COLUMNS[name][1:]} for row in rows}
        assert [row[COLUMNS[name][0]] for row in rows] == sorted(found[name])
    return found


def with_row(table: str, key: str, **row: str) -> Callable[[dict[str, Plain]], None]:
    """An edit: this row is there."""
    return lambda all_rows: all_rows[table].update({key: row})


def with_value(table: str, key: str, column: str, text: str) -> Callable[[dict[str, Plain]], None]:
    """An edit: this value is another one."""
    return lambda all_rows: all_rows[table][key].update({column: text})


def without(table: str, key: str) -> Callable[[dict[str, Plain]], None]:
    """An edit: this row is gone."""
    return lambda all_rows: all_rows[table].__delitem__(key)


SECOND = base()["emails"]["00000002"]
EDITS: list[tuple[str, dict[str, str], Callable[[dict[str, Plain]], None]]] = [
    (
        "email_send_email",
        {"recipient": "Guest@Example.com", "subject": "Hello", "body": "Hi!"},
        with_row("emails", NEW["emails"], **mail("guest@example.com", "Hello", "Hi!")),
    ),
    ("email_delete_email", {"email_id": "00000002"}, without("emails", "00000002")),
    (
        "email_forward_email",
        {"email_id": "00000002", "recipient": BRUNO},
        with_row("emails", NEW["emails"], **mail(BRUNO, f"FW: {SECOND['subject']}", SECOND["body"])),
    ),
    (
        "email_reply_email",
        {"email_id": "00000002", "body": "Yes."},
        with_row("emails", NEW["emails"], **mail(SECOND["sender/recipient"], f"RE: {SECOND['subject']}", "Yes.")),
    ),
    (
        "calendar_create_event",
        {"event_name": "Lunch", **EVENT},
        with_row("events", NEW["events"], event_name="Lunch", **EVENT),
    ),
    ("calendar_delete_event", {"event_id": "00000119"}, without("events", "00000119")),
    (
        "calendar_update_event",
        {"event_id": "00000003", "field": "duration", "new_value": "5"},
        with_value("events", "00000003", "duration", "5"),
    ),
    (
        "project_management_create_task",
        {"task_name": "Sweep", **TASK},
        with_row("tasks", NEW["tasks"], task_name="Sweep", **TASK),
    ),
    ("project_management_delete_task", {"task_id": "00000000"}, without("tasks", "00000000")),
    (
        "project_management_update_task",
        {"task_id": "00000004", "field": "task_name", "new_value": "Sweep"},
        with_value("tasks", "00000004", "task_name", "Sweep"),
    ),
    (
        "customer_relationship_manager_add_customer",
        {"customer_name": "Nobody", **CUSTOMER},
        with_row("customers", NEW["customers"], customer_name="Nobody", **CUSTOMER, **UNKNOWN),
    ),
    ("customer_relationship_manager_delete_customer", {"customer_id": "00000005"}, without("customers", "00000005")),
    (
        "customer_relationship_manager_update_customer",
        {"customer_id": "00000006", "field": "notes", "new_value": "Likes tea."},
        with_value("customers", "00000006", "notes", "Likes tea."),
    ),
]


@pytest.mark.parametrize(("name", "given", "edit"), EDITS, ids=[each[0] for each in EDITS])
async def test_a_tool_changes_its_table_and_nothing_else(name: str, given: dict[str, str], edit: Any) -> None:
    """The tables are the generated ones with one change, here as after a restore into another process."""
    expected: dict[str, Plain] = json.loads(json.dumps(base()))
    edit(expected)
    call = await opened()
    assert (await call(f"/{name}", given)).status == 200
    assert await tables(call) == expected
    other = WorkplaceServer()
    await restore(other, await checkpoint(call.server, {LIFE}))
    assert await tables(Caller(other, NEXT, boundary=call.boundary)) == expected


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("email_delete_email", {"email_id": "99999999"}, 400, "there is no email with the email_id '99999999'"),
    ("email_get_email_information_by_id", {"email_id": "00000001", "field": "size"}, 400, "none of the fields"),
    ("email_send_email", {"recipient": "Bruno", "subject": "", "body": ""}, 400, "no e-mail address"),
    ("email_send_email", {"recipient": BRUNO}, 422, "subject"),
    ("email_search_emails", {"date_min": "yesterday"}, 400, "not a date such as"),
    ("email_search_emails", {"page": 0}, 400, "page begins at 1"),
    ("calendar_create_event", {"event_name": "x", **EVENT, "event_start": "noon"}, 400, "not a time such as"),
    ("calendar_create_event", {"event_name": "x", **EVENT, "duration": "long"}, 400, "number of minutes"),
    ("calendar_update_event", {"event_id": "00000001", "field": "event_id", "new_value": "1"}, 400, "can be changed"),
    ("project_management_create_task", {"task_name": "x", **TASK, "list_name": "backlog"}, 400, "a list is one of"),
    ("project_management_create_task", {"task_name": "x", **TASK, "board": "Kitchen"}, 400, "a board is one of"),
    ("project_management_update_task", {"task_id": "00000001", "field": "assigned_to_email",
                                        "new_value": "guest@example.com"}, 400, "nobody of the company"),
    ("customer_relationship_manager_add_customer", {"customer_name": "x", **CUSTOMER, "status": ""}, 400, "a status"),
    ("customer_relationship_manager_update_customer", {"customer_id": "00000001", "field": "product_interest",
                                                       "new_value": "Tea"}, 400, "a product is"),
    ("company_directory_find_email_address", {"name": " "}, 400, "a name is needed"),
    ("analytics_create_plot", {}, 404, "there is no tool named 'analytics_create_plot'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given", "status", "told"), REFUSED, ids=[f"{n}-{e[0]}" for n, e in enumerate(REFUSED)]
)
async def test_a_tool_that_refuses_says_why_and_changes_nothing(
    name: str, given: dict[str, Any], status: int, told: str
) -> None:
    """The message is for the model; a tool that there is not has status 404."""
    call = await opened()
    reply = await call(f"/{name}", given)
    assert (reply.status, told in reply.body["error"]) == (status, True), reply.body
    assert await tables(call) == base()


async def test_searches_find_by_words_and_times_and_give_pages() -> None:
    """All words, in any case, in any of the texts; both ends of a span belong to it."""
    call = await opened()
    for number in range(3):
        event = {**EVENT, "event_name": f"Unusual Tea {number}", "event_start": f"2024-07-0{number + 1} 10:00:00"}
        await call("/calendar_create_event", event)

    async def found(**given: Any) -> list[str]:
        reply = (await call("/calendar_search_events", given)).body
        assert len(reply["output"]) <= reply["found"]
        return [row["event_id"] for row in reply["output"]]

    ids = ["00000120", "00000121", "00000122"]
    assert await found(query="tea UNUSUAL") == ids
    assert await found(query=f"{ADELA} unusual 1") == ids[1:2]
    assert await found(query="unusual coffee") == []
    assert await found(time_min="2024-07-02 10:00:00", time_max="2024-07-03 10:00:00") == ids[1:]
    assert await found(query="unusual", page=2, page_size=2) == ids[2:]
    assert (await call("/calendar_search_events", {"query": "unusual", "page_size": 1})).body["found"] == 3


async def test_a_field_is_read_and_an_address_is_found() -> None:
    """Of one row, under its name; of everybody whose name fits."""
    call = await opened()
    read = await call("/email_get_email_information_by_id", {"email_id": "00000002", "field": "subject"})
    assert read.body == {"output": {"subject": SECOND["subject"]}}
    assert (await call("/company_directory_find_email_address", {"name": "bruno"})).body == {"output": [BRUNO]}


async def test_ids_follow_the_highest_one_that_is_there() -> None:
    """Also after the newest row is gone again: the next one takes its place."""
    call = await opened()
    for _ in range(2):
        created = await call("/calendar_create_event", {"event_name": "Lunch", **EVENT})
        assert created.body == {"output": "the event is created, as 00000120"}
        await call("/calendar_delete_event", {"event_id": "00000120"})
    assert await tables(call) == base()


def calls_of(*calls: tuple[str, Any]) -> list[dict[str, Any]]:
    """Items of a response."""
    return [{"type": "function_call", "call_id": "c", "name": n, "arguments": json.dumps(given)} for n, given in calls]


def truth_of(*calls: tuple[str, Any]) -> list[dict[str, Any]]:
    """A ground truth."""
    return [{"name": name, "arguments": json.dumps(given)} for name, given in calls]


async def reward_of(truth: Any, output: list[dict[str, Any]]) -> float:
    """What verify says of these calls."""
    call = await opened()
    verified = await call("/verify", {"ground_truth": truth, "response": {"output": output}})
    reward: float = verified.body["reward"]
    return reward


SEND = ("email_send_email", {"recipient": BRUNO, "subject": "Tea", "body": "At four?"})
TO_ADELA = ("email_send_email", {"recipient": ADELA, "subject": "Tea", "body": "At four?"})
SHOUTED = ("email_send_email", {"recipient": BRUNO.upper(), "subject": "TEA", "body": "at FOUR?"})
LOOK = ("email_search_emails", {"query": "tea"})
MOVE = ("project_management_update_task", {"task_id": "00000001", "field": "due_date", "new_value": "2031-01-01"})
BACK = ("project_management_update_task", {**MOVE[1], "new_value": base()["tasks"]["00000001"]["due_date"]})
BROKEN = {"type": "function_call", "name": "email_send_email", "arguments": "{broken"}


@pytest.mark.parametrize(
    ("truth", "output", "reward"),
    [
        ([SEND], calls_of(SEND), 1.0),
        ([SEND], calls_of(LOOK, SEND, LOOK), 1.0),
        ([SEND], calls_of(SHOUTED), 1.0),
        ([SEND], calls_of(), 0.0),
        ([SEND], calls_of(TO_ADELA), 0.0),
        ([SEND], calls_of(SEND, SEND), 0.0),
        ([SEND, TO_ADELA], calls_of(TO_ADELA, SEND), 0.0),
        ([SEND, MOVE], calls_of(MOVE, SEND), 1.0),
        ([SEND], calls_of(SEND, ("email_delete_email", {"email_id": "99999999"}), ("no_tool", {})), 1.0),
        ([SEND], [BROKEN, *calls_of(SEND)], 1.0),
        ([SEND], [BROKEN], 0.0),
        ([], calls_of(), 1.0),
        ([], calls_of(LOOK), 1.0),
        ([], calls_of(MOVE), 0.0),
        ([], calls_of(MOVE, BACK), 1.0),
    ],
    ids=[
        "same", "looked", "case", "nothing", "another", "twice", "ids", "order-of-tables", "refused",
        "broken-and-right", "broken", "nothing-asked", "only-looked", "too-much", "undone",
    ],
)  # fmt: skip
async def test_the_reward_is_for_tables_that_are_equal(truth: Any, output: Any, reward: float) -> None:
    """By hand: what the calls of the response leave, against what those of the ground truth leave."""
    assert await reward_of(truth_of(*truth), output) == reward


@pytest.mark.parametrize(("column", "same"), [("status", False), ("customer_name", True)])
def test_case_counts_in_columns_of_fixed_values_alone(column: str, same: bool) -> None:
    """The status `won` is not `Won`, and the name `won` is."""
    row = {**base()["customers"]["00000001"], column: "Won"}
    other = {**row, column: "won"}
    empty: dict[str, Any] = {"emails": {}, "events": {}, "tasks": {}}
    one, two = ({**empty, "customers": {"00000001": each}} for each in (row, other))
    assert same_tables(one, two) is same


@pytest.mark.parametrize(
    "truth",
    [None, "x", ["x"], [{"name": "no_tool", "arguments": "{}"}], [{"name": "email_delete_email", "arguments": "{"}],
     truth_of(("email_delete_email", {"email_id": "99999999"})), [{"arguments": "{}"}]],
    ids=["none", "text", "no-call", "no-tool", "no-json", "refused", "no-name"],
)  # fmt: skip
async def test_a_ground_truth_that_cannot_be_carried_out_is_a_failure_and_no_reward(truth: Any) -> None:
    """The row is faulty, and nobody is told 0.0."""
    with pytest.raises(ParticipantError, match="ground_truth") as caught:
        await reward_of(truth, [])
    assert caught.value.code is Code.INVALID_REQUEST


async def test_verify_neither_reads_nor_changes_the_session() -> None:
    """The reward follows from the response; the tables of the session stay."""
    call = await opened()
    await call("/email_send_email", TO_ADELA[1])
    before = await tables(call)
    row = {"ground_truth": truth_of(SEND), "response": {"output": calls_of(SEND)}}
    assert (await call("/verify", row)).body["reward"] == 1.0
    assert await tables(call) == before


async def test_500_sessions_are_exported_as_their_changes_alone() -> None:
    """Two changes each: under 1,500 bytes a session, where the tables are more than 80 kB."""
    server = WorkplaceServer()
    call = Caller(server, session="")
    for number in range(500):
        call.session = f"s{number}"
        await call("/seed_session", {"ground_truth": [], "resources_session_id": call.session})
        await call("/email_send_email", SEND[1])
        await call("/project_management_update_task", MOVE[1])
    await server.freeze({LIFE})
    exported = [session.exported for session in server.held()[0].state.open.values()]
    size = sum(len(json.dumps(each["state"])) for each in exported) / len(exported)
    assert (len(exported), size < 1500, len(json.dumps(base())) > 80_000) == (500, True, True), size


async def test_a_session_of_other_tables_or_of_no_rows_is_refused_when_it_is_restored() -> None:
    """Changes against tables that are not these mean nothing; nothing of it becomes active."""
    call = await opened()
    [session] = call.server.held()[0].state.open.values()
    was = session.state
    damages: list[Mapping[str, Any]] = [
        {"base": "0" * 16},
        {"changes": {}},
        {"changes": {**was["changes"], "emails": {"00000001": {"subject": "Tea"}}}},
        {"changes": {**was["changes"], "emails": {"00000001": {**SECOND, "subject": 1}}}},
    ]
    for damage in damages:
        session.state, session.exported, session.frozen = {**was, **damage}, None, None
        records = await checkpoint(call.server, {LIFE})
        with pytest.raises(ParticipantError) as caught:
            await restore(WorkplaceServer(), records)
        assert caught.value.code is Code.CORRUPT_CHECKPOINT


def test_the_tables_are_text_about_invented_people() -> None:
    """Every value is text, every address is of example.com, every assignee is in the directory, every time is one."""
    for name, rows in base().items():
        for row in rows.values():
            assert set(row) == set(COLUMNS[name][1:])
            assert all(type(text) is str for text in row.values())
            assert all(text.endswith("example.com") for text in row.values() if "@" in text)
            assert row.get("assigned_to_email", ADELA) in people()
            for column in ("event_start", "sent_datetime", "due_date", "last_contact_date", "follow_up_by"):
                datetime.fromisoformat(row.get(column, "2024-01-01"))


def test_the_tools_are_those_of_five_kits() -> None:
    """Named `<kit>_<verb>`, each told of in words."""
    tools = WorkplaceServer().tools
    kits = ("email", "calendar", "project_management", "customer_relationship_manager", "company_directory")
    counts = {kit: sum(name.startswith(f"{kit}_") for name in tools) for kit in kits}
    assert (counts, len(tools)) == (dict(zip(kits, (6, 5, 5, 4, 1), strict=True)), 21)
    assert all(each.description.endswith(".") for each in tools.values())


async def test_tasks_are_the_same_for_a_seed_and_their_own_calls_solve_them() -> None:
    """The ground truth gets 1.0; without its calls a task that asks for a change gets 0.0."""
    schemas = [each.schema for each in WorkplaceServer().tools.values()]
    rows = make_rows(27, 5, schemas)
    assert rows == make_rows(27, 5, schemas) != make_rows(27, 6, schemas)
    for row in rows:
        truth = row["ground_truth"]
        done = [{"type": "function_call", "call_id": "c", **call} for call in truth]
        assert await reward_of(truth, done) == 1.0
        assert await reward_of(truth, []) == float(not truth)


async def test_the_cases_of_the_office_have_both_rewards_and_no_refusals() -> None:
    """At least fifty; wrong ones leave out a call or make one too many."""
    rewards = []
    for case in WorkplaceServer.conformance().cases:
        call = await opened()
        assert all([(await call(f"/{each.name}", dict(each.arguments))).ok for each in case.calls])
        output = calls_of(*((each.name, dict(each.arguments)) for each in case.calls))
        rewards.append((await call("/verify", {**case.row, "response": {**RESPONSE, "output": output}})).body["reward"])
    assert (len(rewards) >= 50, rewards.count(0.0) >= 15, rewards.count(1.0) >= 25) == (True, True, True)
