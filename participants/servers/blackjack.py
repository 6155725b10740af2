"""Blackjack against a dealer: a game with chance in it, whose generator is part of the state.

The player has two cards, and sees one of the dealer's two. Hit: one more card; above 21 the game is lost. Stand: the
dealer draws up to 17 or more, and the higher hand wins. The reward is 1 for a win, 0 for a draw, -1 for a loss. Cards
are drawn from 13 ranks, and put back; an ace counts 11, or 1 where the hand would be above 21.

A row may have `seed`, a whole number: the same cards each time. Without one the seed is drawn afresh, and stands in the
state. The state has the generator as `random.Random.getstate` gives it, so that a continued game draws the same cards.

Over `/step` the action is what stands in the last `<action>hit</action>` or `<action>stand</action>`; without either it
is stand. The tools `look`, `hit` and `stand` are the same for an agent that calls tools.
"""

import random
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from ..cases import Case, Conformance, ToolCall
from ..errors import Code, ParticipantError
from ..gymnasium import GymnasiumServer, Turn
from ..sessions import ResourcesSession
from ..tools import ToolError, tool

RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
BEST, DEALER_STANDS_AT = 21, 17
INSTRUCTIONS = (
    "You play blackjack against a dealer. Each turn you see your hand and one card of the dealer's. "
    "Answer <action>hit</action> for another card, or <action>stand</action> to stop. "
    f"Above {BEST} you lose; the dealer draws to {DEALER_STANDS_AT}."
)
_ACTION = re.compile(r"<action>\s*(hit|stand)\s*</action>", re.IGNORECASE)


class BlackjackServer(GymnasiumServer):
    """Deals."""

    checkpoint_mode = "exported"
    checkpoint_verify = "replay"

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        """Deal the first cards."""
        seed = row.get("seed")
        if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
            raise ParticipantError(Code.INVALID_REQUEST, f"the row's seed is {seed!r:.80}, not a number below 2**63")
        session.state.update(new_game(secrets.randbits(63) if seed is None else seed))

    @tool
    async def look(self, session: ResourcesSession) -> str:
        """Your hand, and the dealer's first card."""
        return told(session.state, over=self.is_over(session))

    @tool
    async def hit(self, session: ResourcesSession) -> dict[str, Any]:
        """Take one more card."""
        return await self.take(session, "hit")

    @tool
    async def stand(self, session: ResourcesSession) -> dict[str, Any]:
        """Take no more cards: the dealer plays, and the game is over."""
        return await self.take(session, "stand")

    def action_of(self, text: str) -> str:
        """The last one that is named; else stand."""
        found = _ACTION.findall(text)
        return str(found[-1]).lower() if found else "stand"

    async def act(self, session: ResourcesSession, action: str) -> Turn:
        """Hit or stand."""
        if action not in ("hit", "stand"):
            raise ToolError(f"{action!r:.80} is neither hit nor stand", 422)
        reward = play(session.state, action)
        over = reward is not None
        return Turn(told(session.state, over=over), float(reward or 0), terminated=over)

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        """The game again. Raises where there is no generator, or are no hands."""
        check_game(exported)
        await super().import_session(session, exported)

    @classmethod
    def conformance(cls) -> Conformance:
        """Games that are played to their ends; the player hits up to a number of his own."""
        chance = random.Random(0)
        cases = [
            Case(row={"seed": seed}, calls=list(_calls(seed, chance.randint(12, 20))), said="That was it.")
            for seed in range(60)
        ]
        return Conformance(cases=cases)


def new_game(seed: int) -> dict[str, Any]:
    """The state of a game after the deal: first the player's two cards, then the dealer's."""
    generator = random.Random(seed)
    cards = [generator.choice(RANKS) for _ in range(4)]
    return {"seed": seed, "generator": saved(generator), "player": cards[:2], "dealer": cards[2:]}


def play(game: dict[str, Any], action: str) -> int | None:
    """Carry out `hit` or `stand`; gives the reward where the game is over, else None."""
    generator = loaded(game["generator"])
    player, dealer = game["player"], game["dealer"]
    if action == "hit":
        player.append(generator.choice(RANKS))
    else:
        while value(dealer) < DEALER_STANDS_AT:
            dealer.append(generator.choice(RANKS))
    game["generator"] = saved(generator)
    if action == "hit":
        return -1 if value(player) > BEST else None
    ours, theirs = value(player), value(dealer)
    return 1 if theirs > BEST or ours > theirs else -1 if ours < theirs else 0


def value(hand: Sequence[str]) -> int:
    """What a hand counts: its aces 11, and 1 as far as needed."""
    total = sum(11 if rank == "A" else 10 if rank in ("J", "Q", "K") else int(rank) for rank in hand)
    aces = hand.count("A")
    while total > BEST and aces:
        total, aces = total - 10, aces - 1
    return total


def told(game: dict[str, Any], *, over: bool = False) -> str:
    """What the player sees; at the end all of the dealer's cards."""
    own = f"Your hand: {', '.join(game['player'])}, which is {value(game['player'])}."
    if not over:
        return f"{own} The dealer shows {game['dealer'][0]}."
    return f"{own} The dealer's hand: {', '.join(game['dealer'])}, which is {value(game['dealer'])}. The game is over."


def check_game(game: Any) -> None:
    """Raises KeyError, TypeError or ValueError for what is no game."""
    loaded(game["generator"])
    if type(game["seed"]) is not int:
        raise TypeError("the seed is no whole number")
    for hand in (game["player"], game["dealer"]):
        if type(hand) is not list or len(hand) < 2 or not set(hand) <= set(RANKS):
            raise ValueError(f"{hand!r:.80} is no hand")


def saved(generator: random.Random) -> list[Any]:
    """A generator's state as JSON."""
    version, numbers, gauss = generator.getstate()
    return [version, list(numbers), gauss]


def loaded(state: Sequence[Any]) -> random.Random:
    """The generator again. Raises TypeError or ValueError where the state is malformed."""
    version, numbers, gauss = state
    generator = random.Random()
    generator.setstate((version, tuple(numbers), gauss))
    return generator


def _calls(seed: int, stands_at: int) -> Iterator[ToolCall]:
    yield ToolCall(name="look")
    game = new_game(seed)
    while value(game["player"]) < stands_at:
        yield ToolCall(name="hit")
        if play(game, "hit") is not None:
            return
    yield ToolCall(name="stand")
