"""The task: a vowel is shown, and two words that end in it are wanted; four vowels, one after the other.

Chance gives a reward of about 0.2, and 1.0 is the most. Every turn is a call of the model and one of the environment,
with a boundary after each. The module is imported by the resources server too, so it needs nothing but midflight.
"""

import random
from typing import Any

from midflight import GymnasiumServer, ResourcesSession, ToolError, Turn

VOWELS = "aeiou"
TURNS = 4
WORDS = 2
"""In a reply; each is one token."""
GROUP_SIZE = 8
"""Rollouts of a group: the same vowels, other random numbers."""
SCORES = "message.output_text.logprobs"


class VowelServer(GymnasiumServer):
    """Shows the vowels of a row, and scores the words."""

    checkpoint_mode = "exported"
    checkpoint_verify = "replay"

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        """Begin with the row's vowels."""
        session.state.update(vowels=list(row["vowels"]), scores=[])

    async def look(self, session: ResourcesSession) -> str:
        """The vowel whose turn it is; nothing at the end."""
        vowels, turn = session.state["vowels"], len(session.state["scores"])
        return str(vowels[turn]) if turn < len(vowels) else ""

    async def act(self, session: ResourcesSession, action: str) -> Turn:
        """Score a reply: the share of the words that end in the vowel."""
        vowels, scores = session.state["vowels"], session.state["scores"]
        if len(scores) == len(vowels):
            raise ToolError("every vowel has been shown", 409)
        right = sum(word.endswith(vowels[len(scores)]) for word in action.split()[:WORDS])
        scores = session.state["scores"] = [*scores, right / WORDS]
        reward, over = scores[-1] / len(vowels), len(scores) == len(vowels)
        return Turn(await self.look(session), reward=reward, terminated=over)

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """The reward, and the score of each turn."""
        return {**await super().verify(session, row), "scores": session.state["scores"]}


def group_rows(group: int) -> dict[str, dict[str, Any]]:
    """The rows of a group by rollout id: a function of its number alone, so that a cursor is a number."""
    vowels = random.Random(group).choices(VOWELS, k=TURNS)
    return {f"group-{group:04}-{n}": _row(vowels, group * GROUP_SIZE + n) for n in range(GROUP_SIZE)}


def _row(vowels: list[str], seed: int) -> dict[str, Any]:
    """The worker draws by seed and position, so one seed gives every call of a rollout random numbers of its own."""
    asked = {"input": [], "temperature": 1.0, "seed": seed, "max_output_tokens": WORDS, "ignore_eos": True}
    return {"responses_create_params": {**asked, "include": [SCORES]}, "vowels": vowels}
