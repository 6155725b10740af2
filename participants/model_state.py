"""What the model server holds of one life: replies that nobody has had, beginnings, and generations on their way."""

from collections import Counter
from dataclasses import dataclass, field

from .capturing import Captured
from .cuts import Prefix
from .data import Reply, Request
from .flights import Cut, Flight
from .streams import PassingStream

MAX_UNNAMED_CUTS = 16
"""Of one life: beginnings of calls without an id whose clients have gone, and may never ask again."""


@dataclass(slots=True, eq=False)
class Undelivered:
    """A finished reply that its client has not had yet."""

    reply: Reply
    waiting: bool = False
    """The call that it was made for is still there, and nobody else is given it."""


@dataclass(slots=True)
class ModelState:
    """What the model server holds of one life, beside the kept replies."""

    counts: Counter[str] = field(default_factory=Counter)
    """`calls`; of them `generated`, and `served` from what was kept or held."""
    undelivered: dict[str, list[Undelivered]] = field(default_factory=dict)
    """Of calls without an id, by the digest of the request."""
    cuts: list[Cut] = field(default_factory=list)
    """Beginnings of generations that nobody is making any more, for whoever asks again."""
    flights: set[Flight] = field(default_factory=set)
    streams: set[PassingStream] = field(default_factory=set)
    captured: Captured = field(default_factory=Captured)

    def hold(self, digest: str, reply: Reply, *, waiting: bool = False) -> Undelivered:
        """It is finished, and nobody has it yet."""
        item = Undelivered(reply, waiting)
        self.undelivered.setdefault(digest, []).append(item)
        return item

    def drop(self, digest: str, item: Undelivered) -> None:
        """It is delivered."""
        items = self.undelivered.get(digest, [])
        if item in items:
            items.remove(item)
        if not items:
            self.undelivered.pop(digest, None)

    def take(self, digest: str) -> Reply | None:
        """A reply to such a request that nobody has had and nobody waits for, once."""
        item = next((each for each in self.undelivered.get(digest, ()) if not each.waiting), None)
        if item is None:
            return None
        self.drop(digest, item)
        return item.reply

    def take_cut(self, request: Request) -> Prefix | None:
        """The beginning of the answer to such a request, once; forgets what its caller has moved past."""
        if not self.cuts:
            return None
        call = request.call
        self.cuts = [cut for cut in self.cuts if call is None or not cut.is_before(call)]
        cut = next((cut for cut in self.cuts if cut.answers(request)), None)
        if cut is None:
            return None
        self.cuts.remove(cut)
        return cut.prefix

    def keep_cut(self, request: Request, prefix: Prefix | None) -> None:
        """A generation has ended before it was whole. Of calls without an id only the newest beginnings are kept."""
        if prefix is None or not (prefix.ids or prefix.staged):
            return
        self.cuts.append(cut_of(request, prefix))
        unnamed = [cut for cut in self.cuts if not cut.call]
        if len(unnamed) > MAX_UNNAMED_CUTS:
            self.cuts.remove(unnamed[0])


def cut_of(request: Request, prefix: Prefix) -> Cut:
    """The beginning of the answer to a request."""
    return Cut(str(request.call) if request.call else "", request.digest, prefix)
