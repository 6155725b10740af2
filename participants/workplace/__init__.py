"""A small office: tables of mails, events, tasks and customers, with the tools that change them."""

from .calendar import CalendarTools
from .customers import CustomerTools
from .data import NOW, base, base_digest
from .directory import DirectoryTools
from .email import EmailTools
from .project import ProjectTools
from .tables import COLUMNS, check_changes, no_changes, same_tables, table_of
from .tasks import make_rows, make_tasks

__all__ = [
    "COLUMNS",
    "NOW",
    "CalendarTools",
    "CustomerTools",
    "DirectoryTools",
    "EmailTools",
    "ProjectTools",
    "base",
    "base_digest",
    "check_changes",
    "make_rows",
    "make_tasks",
    "no_changes",
    "same_tables",
    "table_of",
]
