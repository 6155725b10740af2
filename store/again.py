"""Looking twice: what seems damaged is read once more, for a reply that was cut on its way is whole the next time."""

import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from .errors import CorruptChain, CorruptCheckpoint

P = ParamSpec("P")
Result = TypeVar("Result")
_log = logging.getLogger(__name__)


def damage_seen_twice(read: Callable[P, Awaitable[Result]]) -> Callable[P, Awaitable[Result]]:
    """Let `read`, which checks what it reads, find damage two times before it raises it."""

    @wraps(read)
    async def look(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            return await read(*args, **kwargs)
        except (CorruptCheckpoint, CorruptChain) as error:
            _log.warning("%s; it is read once more", error.message)
        return await read(*args, **kwargs)

    return look
