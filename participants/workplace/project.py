"""Tools of the project boards."""

from typing import Any

from ..sessions import ResourcesSession
from ..tools import tool
from .arguments import PAGE_SIZE, Address, Day, Id, Page, PageSize
from .data import BOARDS, LISTS
from .directory import check_colleague
from .tables import check_date, check_one_of, has_words, table_of


class ProjectTools:
    """Reads and changes tasks."""

    @tool
    async def project_management_get_task_information_by_id(
        self, session: ResourcesSession, task_id: Id, field: str
    ) -> dict[str, Any]:
        """One field of a task: task_id, task_name, assigned_to_email, list_name, due_date or board."""
        return {"output": table_of(session, "tasks").field(task_id, field)}

    @tool
    async def project_management_search_tasks(
        self,
        session: ResourcesSession,
        task_name: str = "",
        assigned_to_email: str = "",
        list_name: str = "",
        due_date: Day = "",
        board: str = "",
        page: Page = 1,
        page_size: PageSize = PAGE_SIZE,
    ) -> dict[str, Any]:
        """Tasks that match all that is given."""
        asked = {
            "task_name": task_name,
            "assigned_to_email": assigned_to_email,
            "list_name": list_name,
            "due_date": due_date,
            "board": board,
        }

        def wanted(row: dict[str, str]) -> bool:
            return all(has_words(text, row[column]) for column, text in asked.items())

        return table_of(session, "tasks").page(wanted, page, page_size)

    @tool
    async def project_management_create_task(
        self,
        session: ResourcesSession,
        task_name: str,
        assigned_to_email: Address,
        list_name: str,
        due_date: Day,
        board: str,
    ) -> dict[str, Any]:
        """Create a task on a board, one of Back end, Front end and Design.

        Its list is Backlog, In Progress, In Review or Completed.
        """
        task = {
            "task_name": task_name,
            "assigned_to_email": assigned_to_email,
            "list_name": list_name,
            "due_date": due_date,
            "board": board,
        }
        checked = {field: _checked(field, text) for field, text in task.items()}
        return {"output": f"the task is created, as {table_of(session, 'tasks').add(checked)}"}

    @tool
    async def project_management_delete_task(self, session: ResourcesSession, task_id: Id) -> dict[str, Any]:
        """Delete a task."""
        table_of(session, "tasks").remove(task_id)
        return {"output": "the task is deleted"}

    @tool
    async def project_management_update_task(
        self, session: ResourcesSession, task_id: Id, field: str, new_value: str
    ) -> dict[str, Any]:
        """Set one field of a task: task_name, assigned_to_email, list_name, due_date or board."""
        table_of(session, "tasks").change(task_id, field, _checked(field, new_value))
        return {"output": "the task is updated"}


def _checked(field: str, text: str) -> str:
    match field:
        case "assigned_to_email":
            return check_colleague(text)
        case "list_name":
            return check_one_of(text, LISTS, "a list")
        case "board":
            return check_one_of(text, BOARDS, "a board")
        case "due_date":
            return check_date(text)
    return text
