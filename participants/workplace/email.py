"""Tools of the mailbox."""

from typing import Any

from ..sessions import ResourcesSession
from ..tools import tool
from .arguments import PAGE_SIZE, Address, Day, Id, Page, PageSize
from .data import NOW
from .tables import check_address, check_date, has_words, table_of


class EmailTools:
    """Reads, sends and deletes."""

    @tool
    async def email_get_email_information_by_id(
        self, session: ResourcesSession, email_id: Id, field: str
    ) -> dict[str, Any]:
        """One field of a mail: email_id, inbox/outbox, sender/recipient, subject, sent_datetime or body."""
        return {"output": table_of(session, "emails").field(email_id, field)}

    @tool
    async def email_search_emails(
        self,
        session: ResourcesSession,
        query: str = "",
        date_min: Day = "",
        date_max: Day = "",
        page: Page = 1,
        page_size: PageSize = PAGE_SIZE,
    ) -> dict[str, Any]:
        """Mails with all words of the query in subject, body or sender/recipient, sent between two days."""
        first, last = (day and check_date(day) for day in (date_min, date_max))

        def wanted(row: dict[str, str]) -> bool:
            day = row["sent_datetime"][:10]
            inside = (not first or first <= day) and (not last or day <= last)
            return inside and has_words(query, row["subject"], row["body"], row["sender/recipient"])

        return table_of(session, "emails").page(wanted, page, page_size)

    @tool
    async def email_send_email(
        self, session: ResourcesSession, recipient: Address, subject: str, body: str
    ) -> dict[str, Any]:
        """Send a mail."""
        return {"output": _send(session, recipient, subject, body)}

    @tool
    async def email_delete_email(self, session: ResourcesSession, email_id: Id) -> dict[str, Any]:
        """Delete a mail."""
        table_of(session, "emails").remove(email_id)
        return {"output": "the mail is deleted"}

    @tool
    async def email_forward_email(self, session: ResourcesSession, email_id: Id, recipient: Address) -> dict[str, Any]:
        """Forward a mail to somebody."""
        mail = table_of(session, "emails").find(email_id)
        return {"output": _send(session, recipient, f"FW: {mail['subject']}", mail["body"])}

    @tool
    async def email_reply_email(self, session: ResourcesSession, email_id: Id, body: str) -> dict[str, Any]:
        """Reply to a mail: to whom it came from, or was sent to."""
        mail = table_of(session, "emails").find(email_id)
        return {"output": _send(session, mail["sender/recipient"], f"RE: {mail['subject']}", body)}


def _send(session: ResourcesSession, recipient: str, subject: str, body: str) -> str:
    mail = {
        "inbox/outbox": "outbox",
        "sender/recipient": check_address(recipient),
        "subject": subject,
        "sent_datetime": NOW,
        "body": body,
    }
    return f"the mail is sent, as {table_of(session, 'emails').add(mail)}"
