"""The company's directory: who has which address. Nobody changes it."""

from typing import Any

from ..sessions import ResourcesSession
from ..tools import ToolError, tool
from .data import people
from .tables import check_address, has_words


class DirectoryTools:
    """Finds addresses."""

    @tool
    async def company_directory_find_email_address(self, session: ResourcesSession, name: str) -> dict[str, Any]:
        """The e-mail addresses of all people whose name has these words in it."""
        if not name.strip():
            raise ToolError("a name is needed")
        return {"output": [address for address, each in people().items() if has_words(name, each)]}


def check_colleague(text: str) -> str:
    """An address of the directory. Raises ToolError."""
    address = check_address(text)
    if address not in people():
        raise ToolError(f"{text!r:.80} is nobody of the company: company_directory_find_email_address finds addresses")
    return address
