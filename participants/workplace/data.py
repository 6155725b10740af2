"""The office as every session finds it: the same generated tables each time. All names are invented, all values text.

Whoever continues a session must have the same tables; `base_digest` tells them apart.
"""

import hashlib
import random
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache

import orjson

Row = Mapping[str, str]
Tables = Mapping[str, Mapping[str, Row]]
"""By table, then by id."""

NOW = "2024-05-15 09:00:00"
"""What time it is in the office, always."""
DOMAIN = "example.com"
LISTS = ("Backlog", "In Progress", "In Review", "Completed")
BOARDS = ("Back end", "Front end", "Design")
STATUSES = ("Lead", "Qualified", "Proposal", "Won", "Lost")
PRODUCTS = ("Software", "Hardware", "Services", "Consulting", "Training")

_FIRST = (
    "Adela", "Bruno", "Carla", "Dimas", "Edda", "Falk", "Greta", "Hugo", "Ilka", "Jonas",
    "Kaisa", "Lorin", "Mirko", "Nadja", "Orell", "Petra", "Quirin", "Rosa", "Sandor", "Thea",
)  # fmt: skip
_LAST = (
    "Abendrot", "Birkner", "Castell", "Dornau", "Eschbach", "Fernau", "Grunwald", "Hallstein", "Imhof", "Jankow",
)  # fmt: skip
_THINGS = (
    "budget",
    "launch",
    "audit",
    "release",
    "newsletter",
    "contract",
    "survey",
    "server move",
    "handbook",
    "demo",
)
_DOINGS = ("Plan", "Review", "Discuss", "Finish", "Prepare", "Update")
_SENTENCES = (
    "could you look at this before the end of the week?",
    "the numbers are in the shared folder.",
    "I have two questions, let us talk about them.",
    "thank you for your help with this.",
    "we are a little late, but nothing is lost.",
)
_SIZES = {"emails": 160, "events": 120, "tasks": 120, "customers": 80}
Make = Callable[[random.Random], dict[str, str]]


@lru_cache(maxsize=1)
def base() -> Tables:
    """The tables; nobody may change them."""
    chance = random.Random(0)
    makers: Mapping[str, Make] = {"emails": _email, "events": _event, "tasks": _task, "customers": _customer}
    return {name: _table(chance, makers[name], size) for name, size in _SIZES.items()}


@lru_cache(maxsize=1)
def base_digest() -> str:
    """The first 16 hexadecimal digits of the tables' sha256."""
    return hashlib.sha256(orjson.dumps(base(), option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


@lru_cache(maxsize=1)
def people() -> Mapping[str, str]:
    """The company's directory: name by address."""
    names = [f"{first} {_LAST[number % len(_LAST)]}" for number, first in enumerate(_FIRST)]
    return {_address(name): name for name in names}


def row_id(number: int) -> str:
    """As ids are written."""
    return f"{number:08d}"


def _address(name: str, company: str = "") -> str:
    return f"{name.lower().replace(' ', '.')}@{company}{DOMAIN}"


def _table(chance: random.Random, make: Make, size: int) -> Mapping[str, Row]:
    return {row_id(number): make(chance) for number in range(size)}


def _day(chance: random.Random, first: int, last: int) -> str:
    return (datetime.fromisoformat(NOW) + timedelta(days=chance.randrange(first, last))).strftime("%Y-%m-%d")


def _email(chance: random.Random) -> dict[str, str]:
    other = chance.choice(sorted(people()))
    thing, sentence = chance.choice(_THINGS), chance.choice(_SENTENCES)
    return {
        "inbox/outbox": chance.choice(("inbox", "inbox", "outbox")),
        "sender/recipient": other,
        "subject": f"{chance.choice(_DOINGS)} the {thing}",
        "sent_datetime": f"{_day(chance, -45, 0)} {chance.randrange(8, 18):02d}:{chance.randrange(60):02d}:00",
        "body": f"Hello, about the {thing}: {sentence}",
    }


def _event(chance: random.Random) -> dict[str, str]:
    return {
        "event_name": f"{chance.choice(_DOINGS)} the {chance.choice(_THINGS)}",
        "participant_email": chance.choice(sorted(people())),
        "event_start": f"{_day(chance, -20, 30)} {chance.randrange(8, 17):02d}:{chance.choice(('00', '30'))}:00",
        "duration": chance.choice(("30", "60", "90")),
    }


def _task(chance: random.Random) -> dict[str, str]:
    return {
        "task_name": f"{chance.choice(_DOINGS)} the {chance.choice(_THINGS)}",
        "assigned_to_email": chance.choice(sorted(people())),
        "list_name": chance.choice(LISTS),
        "due_date": _day(chance, -10, 40),
        "board": chance.choice(BOARDS),
    }


def _customer(chance: random.Random) -> dict[str, str]:
    name = f"{chance.choice(_FIRST)} {chance.choice(_LAST)}"
    return {
        "assigned_to_email": chance.choice(sorted(people())),
        "customer_name": name,
        "customer_email": _address(name, f"{chance.choice(('north', 'south', 'east', 'west'))}wind."),
        "customer_phone": f"555-{chance.randrange(10_000):04d}",
        "last_contact_date": _day(chance, -60, 0),
        "product_interest": chance.choice(PRODUCTS),
        "status": chance.choice(STATUSES),
        "follow_up_by": _day(chance, 1, 30),
        "notes": "",
    }
