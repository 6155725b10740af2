"""The stream of results that one controller reads: what has finished, in order, until a higher epoch is adopted.

A reader that comes again names the number up to which it has all, and is sent everything behind it that is not yet
released. So a line that was lost with its connection is sent again, and none is forgotten.
"""

from collections.abc import AsyncGenerator

import anyio

from .owner import Owner, Result
from .wire import BEAT_S, Beat, Began, Finished, Results


async def lines_of(owner: Owner, call: Results) -> AsyncGenerator[Began | Finished | Beat]:
    """The lines of one stream."""
    yield Began(incarnation=call.incarnation, epoch=call.epoch)
    after = call.after
    while True:
        with anyio.move_on_after(BEAT_S) as waiting:
            result = await owner.next_result(after, call.epoch)
        if waiting.cancelled_caught:
            yield Beat()
        elif result is None:
            return
        else:
            after = result.n
            yield _finished(result)


def _finished(result: Result) -> Finished:
    row, failure = (None if each is None else dict(each) for each in (result.row, result.failure))
    return Finished(n=result.n, life=result.life, row=row, failure=failure, active_s=result.active_s)
