"""Tasks for the office: what is asked, and the calls that do it, made from the generated tables.

A task that names a row names it so that no other row fits; the calls that are expected have its id.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from .data import BOARDS, LISTS, NOW, PRODUCTS, STATUSES, Row, base, people

INSTRUCTIONS = (
    f"You are the assistant of an office. It is {NOW}. Do what you are asked with the tools, and nothing else. "
    "Find out ids and addresses that you are not given."
)
Call = tuple[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Task:
    """One task."""

    category: str
    asked: str
    calls: Sequence[Call]
    """What is expected, in order."""
    looked: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """What a good assistant looks up before."""

    def row(self, number: int, tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """The row of a data set."""
        messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": self.asked}]
        truth = [{"name": name, "arguments": orjson.dumps(dict(given)).decode()} for name, given in self.calls]
        return {
            "responses_create_params": {"input": messages, "tools": list(tools)},
            "ground_truth": truth,
            "id": number,
            "category": self.category,
            "environment_name": "workplace",
        }


def make_rows(size: int, seed: int, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `size` tasks, the same for the same seed; `tools` are the schemas that the model is shown."""
    return [task.row(number, tools) for number, task in enumerate(make_tasks(size, seed))]


def make_tasks(size: int, seed: int) -> list[Task]:
    """`size` tasks, of all kinds in turn."""
    chance = random.Random(seed)
    return [_KINDS[number % len(_KINDS)](chance) for number in range(size)]


def _send(chance: random.Random) -> Task:
    address, name = _person(chance)
    subject, body = f"Meeting {chance.randrange(1, 99)}", "Can we meet tomorrow?"
    given = {"recipient": address, "subject": subject, "body": body}
    asked = f"Send {name} a mail with the subject '{subject}' that says '{body}'"
    return Task("email", asked, [("email_send_email", given)], [_lookup(name)])


def _reply(chance: random.Random) -> Task:
    key, mail = _only(chance, "emails", ("subject", "sender/recipient", "inbox/outbox"), inbox="inbox")
    asked = f"Reply 'Thank you.' to the mail '{mail['subject']}' from {people()[mail['sender/recipient']]}."
    search = ("email_search_emails", {"query": f"{mail['subject']} {mail['sender/recipient']}"})
    return Task("email", asked, [("email_reply_email", {"email_id": key, "body": "Thank you."})], [search])


def _cancel(chance: random.Random) -> Task:
    key, event = _only(chance, "events", ("event_name", "participant_email"))
    asked = f"Cancel the event '{event['event_name']}' with {people()[event['participant_email']]}."
    search = ("calendar_search_events", {"query": f"{event['event_name']} {event['participant_email']}"})
    return Task("calendar", asked, [("calendar_delete_event", {"event_id": key})], [search])


def _invite(chance: random.Random) -> Task:
    address, name = _person(chance)
    start, title = f"2024-06-{chance.randrange(1, 29):02d} 10:00:00", f"Talk {chance.randrange(1, 99)}"
    asked = f"Create an event '{title}' with {name}, beginning at {start}, for 45 minutes."
    given = {"event_name": title, "participant_email": address, "event_start": start, "duration": "45"}
    return Task("calendar", asked, [("calendar_create_event", given)], [_lookup(name)])


def _finish(chance: random.Random) -> Task:
    """Of one person all tasks on one list of one board: several calls, or none."""
    address, name = _person(chance)
    board, after = chance.choice(BOARDS), chance.choice(LISTS)
    found = [
        key
        for key, row in base()["tasks"].items()
        if (row["assigned_to_email"], row["board"]) == (address, board) and row["list_name"] != after
    ]
    asked = f"Move all tasks of {name} on the board {board} to the list {after}."
    search = ("project_management_search_tasks", {"assigned_to_email": address, "board": board, "page_size": 50})
    update = "project_management_update_task"
    calls = [(update, {"task_id": key, "field": "list_name", "new_value": after}) for key in found]
    return Task("project_management", asked, calls, [_lookup(name), search])


def _assign(chance: random.Random) -> Task:
    address, name = _person(chance)
    title, board = f"Check list {chance.randrange(1, 99)}", chance.choice(BOARDS)
    asked = f"Create the task '{title}' for {name} in the Backlog of the board {board}, due on 2024-06-28."
    given = {"task_name": title, "assigned_to_email": address, "list_name": "Backlog", "due_date": "2024-06-28"}
    calls = [("project_management_create_task", {**given, "board": board})]
    return Task("project_management", asked, calls, [_lookup(name)])


def _promote(chance: random.Random) -> Task:
    key, customer = _only(chance, "customers", ("customer_name",))
    status = chance.choice([each for each in STATUSES if each != customer["status"]])
    asked = f"The customer {customer['customer_name']} now has the status {status}: note that."
    search = ("customer_relationship_manager_search_customers", {"customer_name": customer["customer_name"]})
    update = "customer_relationship_manager_update_customer"
    given = {"customer_id": key, "field": "status", "new_value": status}
    return Task("customer_relationship_manager", asked, [(update, given)], [search])


def _acquire(chance: random.Random) -> Task:
    address, name = _person(chance)
    product, title = chance.choice(PRODUCTS), f"Firma {chance.randrange(1, 99)}"
    asked = f"Add '{title}' as a lead of {name}, interested in {product}."
    given = {"customer_name": title, "assigned_to_email": address, "status": "Lead", "product_interest": product}
    add = "customer_relationship_manager_add_customer"
    return Task("customer_relationship_manager", asked, [(add, given)], [_lookup(name)])


def _follow(chance: random.Random) -> Task:
    """Two tables: an event, and a mail that tells of it."""
    address, name = _person(chance)
    start = f"2024-06-{chance.randrange(1, 29):02d} 14:00:00"
    asked = (
        f"Create an event 'Follow up' with {name}, beginning at {start}, for 30 minutes, "
        f"and send a mail about it with the subject 'Follow up' that says '{start}'"
    )
    event = {"event_name": "Follow up", "participant_email": address, "event_start": start, "duration": "30"}
    mail = {"recipient": address, "subject": "Follow up", "body": start}
    calls = [("calendar_create_event", event), ("email_send_email", mail)]
    return Task("multi_domain", asked, calls, [_lookup(name)])


_KINDS: Sequence[Callable[[random.Random], Task]] = (
    _send, _reply, _cancel, _invite, _finish, _assign, _promote, _acquire, _follow,
)  # fmt: skip


def _person(chance: random.Random) -> tuple[str, str]:
    return chance.choice(list(people().items()))


def _lookup(name: str) -> Call:
    return "company_directory_find_email_address", {"name": name}


def _only(chance: random.Random, table: str, columns: Sequence[str], inbox: str = "") -> tuple[str, Row]:
    """A row that these columns tell from all others."""
    rows = base()[table]
    told = {key: tuple(row[column] for column in columns) for key, row in rows.items()}
    counts = Counter(told.values())
    found = [key for key, each in told.items() if counts[each] == 1 and rows[key].get("inbox/outbox", "") == inbox]
    key = chance.choice(found)
    return key, rows[key]
