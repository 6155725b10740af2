"""Tools of the calendar."""

from typing import Any

from ..sessions import ResourcesSession
from ..tools import ToolError, tool
from .arguments import PAGE_SIZE, Address, Id, Page, PageSize, Time
from .tables import check_address, check_time, has_words, table_of


class CalendarTools:
    """Reads and changes events."""

    @tool
    async def calendar_get_event_information_by_id(
        self, session: ResourcesSession, event_id: Id, field: str
    ) -> dict[str, Any]:
        """One field of an event: event_id, event_name, participant_email, event_start or duration."""
        return {"output": table_of(session, "events").field(event_id, field)}

    @tool
    async def calendar_search_events(
        self,
        session: ResourcesSession,
        query: str = "",
        time_min: Time = "",
        time_max: Time = "",
        page: Page = 1,
        page_size: PageSize = PAGE_SIZE,
    ) -> dict[str, Any]:
        """Events with all words of the query in name or participant_email, beginning between two times."""
        first, last = (time and check_time(time) for time in (time_min, time_max))

        def wanted(row: dict[str, str]) -> bool:
            start = row["event_start"]
            inside = (not first or first <= start) and (not last or start <= last)
            return inside and has_words(query, row["event_name"], row["participant_email"])

        return table_of(session, "events").page(wanted, page, page_size)

    @tool
    async def calendar_create_event(
        self, session: ResourcesSession, event_name: str, participant_email: Address, event_start: Time, duration: str
    ) -> dict[str, Any]:
        """Create an event; its duration is in minutes."""
        event = {
            "event_name": event_name,
            "participant_email": participant_email,
            "event_start": event_start,
            "duration": duration,
        }
        checked = {field: _checked(field, text) for field, text in event.items()}
        return {"output": f"the event is created, as {table_of(session, 'events').add(checked)}"}

    @tool
    async def calendar_delete_event(self, session: ResourcesSession, event_id: Id) -> dict[str, Any]:
        """Delete an event."""
        table_of(session, "events").remove(event_id)
        return {"output": "the event is deleted"}

    @tool
    async def calendar_update_event(
        self, session: ResourcesSession, event_id: Id, field: str, new_value: str
    ) -> dict[str, Any]:
        """Set one field of an event: event_name, participant_email, event_start or duration."""
        table_of(session, "events").change(event_id, field, _checked(field, new_value))
        return {"output": "the event is updated"}


def _checked(field: str, text: str) -> str:
    if field == "duration" and not (text.isdecimal() and int(text)):
        raise ToolError(f"a duration is a number of minutes, and not {text!r:.80}")
    if field == "participant_email":
        return check_address(text)
    return check_time(text) if field == "event_start" else text
