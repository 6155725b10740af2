"""Tools of the customer relationship manager."""

from typing import Any

from ..sessions import ResourcesSession
from ..tools import tool
from .arguments import PAGE_SIZE, Address, Day, Id, Page, PageSize
from .data import PRODUCTS, STATUSES
from .directory import check_colleague
from .tables import check_address, check_date, check_one_of, has_words, table_of


class CustomerTools:
    """Reads and changes customers."""

    @tool
    async def customer_relationship_manager_search_customers(
        self,
        session: ResourcesSession,
        customer_name: str = "",
        customer_email: str = "",
        product_interest: str = "",
        status: str = "",
        assigned_to_email: str = "",
        last_contact_date_min: Day = "",
        last_contact_date_max: Day = "",
        follow_up_by_min: Day = "",
        follow_up_by_max: Day = "",
        page: Page = 1,
        page_size: PageSize = PAGE_SIZE,
    ) -> dict[str, Any]:
        """Customers that match all that is given."""
        asked = {
            "customer_name": customer_name,
            "customer_email": customer_email,
            "product_interest": product_interest,
            "status": status,
            "assigned_to_email": assigned_to_email,
        }
        days = (last_contact_date_min, last_contact_date_max, follow_up_by_min, follow_up_by_max)
        contact_min, contact_max, follow_min, follow_max = (day and check_date(day) for day in days)

        def wanted(row: dict[str, str]) -> bool:
            return (
                all(has_words(text, row[column]) for column, text in asked.items())
                and _is_between(row["last_contact_date"], contact_min, contact_max)
                and _is_between(row["follow_up_by"], follow_min, follow_max)
            )

        return table_of(session, "customers").page(wanted, page, page_size)

    @tool
    async def customer_relationship_manager_update_customer(
        self, session: ResourcesSession, customer_id: Id, field: str, new_value: str
    ) -> dict[str, Any]:
        """Set one field of a customer.

        customer_name, assigned_to_email, customer_email, customer_phone, last_contact_date, product_interest (Software,
        Hardware, Services, Consulting, Training), status (Lead, Qualified, Proposal, Won, Lost), notes or follow_up_by.
        """
        table_of(session, "customers").change(customer_id, field, _checked(field, new_value))
        return {"output": "the customer is updated"}

    @tool
    async def customer_relationship_manager_add_customer(
        self,
        session: ResourcesSession,
        customer_name: str,
        assigned_to_email: Address,
        status: str,
        customer_email: str = "",
        customer_phone: str = "",
        last_contact_date: Day = "",
        product_interest: str = "",
        notes: str = "",
        follow_up_by: Day = "",
    ) -> dict[str, Any]:
        """Add a customer; a status is Lead, Qualified, Proposal, Won or Lost."""
        customer = {
            "assigned_to_email": assigned_to_email,
            "customer_name": customer_name,
            "customer_email": customer_email,
            "customer_phone": customer_phone,
            "last_contact_date": last_contact_date,
            "product_interest": product_interest,
            "status": status,
            "follow_up_by": follow_up_by,
            "notes": notes,
        }
        needed = ("assigned_to_email", "status")
        checked = {field: _checked(field, text) if text or field in needed else "" for field, text in customer.items()}
        return {"output": f"the customer is added, as {table_of(session, 'customers').add(checked)}"}

    @tool
    async def customer_relationship_manager_delete_customer(
        self, session: ResourcesSession, customer_id: Id
    ) -> dict[str, Any]:
        """Delete a customer."""
        table_of(session, "customers").remove(customer_id)
        return {"output": "the customer is deleted"}


def _is_between(day: str, first: str, last: str) -> bool:
    """A day that is not known is between no others."""
    return (not first or first <= day) and (not last or ("" < day <= last))


def _checked(field: str, text: str) -> str:
    match field:
        case "assigned_to_email":
            return check_colleague(text)
        case "customer_email":
            return check_address(text)
        case "last_contact_date" | "follow_up_by":
            return check_date(text)
        case "product_interest":
            return check_one_of(text, PRODUCTS, "a product")
        case "status":
            return check_one_of(text, STATUSES, "a status")
    return text
