"""From what a probe saw to what a backend can do: seen is used, declared and unseen is taken away, each with a note."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .capabilities import Capabilities, Feature
from .kinds import CHAT, COMPLETIONS, ROUTES
from .observing import Generated
from .questions import MAX_BEGUN_TOKENS

SEEN = ("token_ids_out", "token_ids_in", "logprobs", "tokenize", "detokenize", "continue_final_message", "staging")
"""Capabilities that a probe decides; `bit_equal` needs the declaration too, for one cut proves little."""


@dataclass(slots=True)
class Findings:
    """What was seen; it starts with nothing."""

    context_length: int | None = None
    routes: set[str] = field(default_factory=set)
    streamed: set[str] = field(default_factory=set)
    """The routes whose reply came in events."""
    ids_routes: set[str] = field(default_factory=set)
    token_ids_in: bool = False
    logprobs: bool = False
    tokenize: bool = False
    detokenize: bool = False
    continue_final_message: bool = False
    staging: bool = False
    bit_equal: bool | None = None
    """None where it could not be seen."""
    weights: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def token_ids_out(self) -> bool:
        """Chat and completions both, as far as they are there, and one of them at least."""
        both = self.routes & {CHAT, COMPLETIONS}
        return bool(both) and both <= self.ids_routes

    def take(self, route: str, found: Generated) -> None:
        """A generating route has answered."""
        self.routes.add(route)
        if found.events:
            self.streamed.add(route)
        if found.ids and found.prompt:
            self.ids_routes.add(route)
        self.weights = found.weights or self.weights


def conclude(declared: Capabilities, seen: Findings) -> tuple[Capabilities, tuple[str, ...]]:
    """The capabilities, and a line for each difference from what was declared."""
    notes = list(seen.notes)
    different = (name for name in SEEN if getattr(declared, name) != getattr(seen, name))
    notes += [f"{'seen' if getattr(seen, name) else 'declared and not seen'}: {name}" for name in different]
    notes += [f"declared and not seen: route {route}" for route in sorted(declared.routes - seen.routes)]
    for route in sorted(ROUTES & (declared.ids_routes ^ seen.ids_routes) & seen.routes):
        how = "seen" if route in seen.ids_routes else "declared and not seen"
        notes.append(f"{how}: token ids in streams of {route}")
    if declared.bit_equal and not seen.bit_equal:
        why = "nothing could be compared" if seen.bit_equal is None else "the rest after a cut differed"
        notes.append(f"declared and not seen: bit_equal, {why}")
    features = declared.declared - (frozenset() if seen.logprobs else {Feature.LOGPROBS})
    found = replace(
        declared,
        streams=bool(seen.streamed),
        routes=frozenset(seen.routes),
        ids_routes=frozenset(seen.ids_routes),
        bit_equal=declared.bit_equal and seen.bit_equal is True,
        tool_calls=declared.tool_calls and bool(seen.routes),
        abort_on_disconnect=declared.abort_on_disconnect and bool(seen.routes),
        declared=features,
        context_length=seen.context_length,
        **{name: getattr(seen, name) for name in SEEN},
    )
    return found, tuple(notes)


def took_ids(sent: Sequence[int], answer: Generated) -> bool:
    """Whether a prompt of ids was taken as these ids: named again, or at least so many."""
    return answer.prompt == tuple(sent) if answer.prompt else answer.prompt_tokens == len(sent)


def is_same_rest(uncut: Generated, rest: Generated, cut: int) -> bool | None:
    """Whether a continuation is what the uncut generation has after the cut; None where ids are missing."""
    if len(uncut.ids) <= cut or not rest.ids:
        return None
    return uncut.ids[cut:] == rest.ids


def is_continued(turn: Generated, continued: Generated) -> bool:
    """Whether a begun turn was left open: its prompt is the other one's and the beginning, with nothing after it.

    With an end mark and a new turn there would be more tokens than the beginning can have.
    """
    if turn.prompt and continued.prompt:
        same = continued.prompt[: len(turn.prompt)] == turn.prompt
        return same and 0 < len(continued.prompt) - len(turn.prompt) <= MAX_BEGUN_TOKENS
    if turn.prompt_tokens is None or continued.prompt_tokens is None:
        return False
    return 0 < continued.prompt_tokens - turn.prompt_tokens <= MAX_BEGUN_TOKENS
