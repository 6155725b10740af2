"""The agent over `/reset` and `/step`: what it says, what ends it, and games killed at every boundary.

The rewards that are expected come from the game played by hand of Python's own generator, or from `Countdown`, whose
rewards are 0.5 a step.
"""

import random
from functools import partial
from typing import Any

import anyio
import pytest

from participants import GymnasiumAgent, GymnasiumServer, LocalPeer, ModelServer, Request, ResourcesSession, Turn
from participants.servers import BlackjackServer
from participants.servers.blackjack import RANKS, value
from participants.tools import ToolError
from store import Life
from tests.support.continuing import killed_at, killed_while_at, uninterrupted
from tests.support.journal import Journal
from tests.support.scripted import ScriptedUpstream, scripted_row
from tests.support.world import Journaled, world

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

HIT, STAND = "<action>hit</action>", "So <action>stand</action>."


class JournalBlackjack(Journaled, BlackjackServer):
    """Writes down what it runs."""


class Countdown(Journaled, GymnasiumServer):
    """Rewards each step with 0.5, ends after two, and refuses the word `no`."""

    checkpoint_mode = "exported"
    checkpoint_verify = "replay"

    async def look(self, session: ResourcesSession) -> Any:
        """How many are left; no text."""
        return {"left": session.state.get("left", 2)}

    async def act(self, session: ResourcesSession, action: str) -> Turn:
        """One less."""
        if action == "no":
            raise ToolError("the word is no action")
        session.state["left"] = left = session.state.get("left", 2) - 1
        return Turn({"left": left} if left else None, 0.5, terminated=left == 0, info={"said": action})


GAME: dict[str, Any] = {"counter": JournalBlackjack, "make_agent": GymnasiumAgent}


def game_row(name: str, seed: int, *turns: str) -> dict[str, Any]:
    """A row of a game with what the model says turn by turn."""
    return {**scripted_row(name, list(turns)), "seed": seed}


def played(seed: int, hits: int) -> tuple[list[str], list[str], float]:
    """Both hands and the reward of so many hits and a stand, with Python's own generator; by the rules."""
    generator = random.Random(seed)
    drawn = [generator.choice(RANKS) for _ in range(30)]
    own, dealer, rest = [*drawn[:2], *drawn[4 : 4 + hits]], drawn[2:4], iter(drawn[4 + hits :])
    if value(own) > 21:
        return own, dealer, -1.0
    while value(dealer) < 17:
        dealer.append(next(rest))
    ours, theirs = value(own), value(dealer)
    return own, dealer, 1.0 if theirs > 21 or ours > theirs else -1.0 if ours < theirs else 0.0


SEED = next(s for s in range(1000) if value(played(s, 1)[0]) < 21 and played(s, 1)[2] == 1.0)
"""Won by a hit and a stand."""
ROWS = {"r0": game_row("r0", SEED, HIT, STAND)}
SESSION = "resources-r0"
WHOLE = [
    f"seed {SESSION}",
    f"tool {SESSION} reset 0",
    "model r0 0",
    f"tool {SESSION} step 1",
    "model r0 1",
    f"tool {SESSION} step 2",
    f"verify {SESSION}",
]
"""All that an uninterrupted game makes happen."""
MODEL = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}


@pytest.mark.parametrize("dialect", MODEL)
async def test_a_game_is_played_by_reset_and_step(dialect: str) -> None:
    """Each observation becomes a message of the user; the response has the sum of rewards and how it ended."""
    journal = Journal()
    row = (await uninterrupted(ROWS, journal, dialect=dialect, **GAME))["r0"]
    assert journal.order == WHOLE
    response, (own, dealer, _) = row["response"], played(SEED, 1)
    assert (row["reward"], response["reward"]) == (1.0, 1.0)
    assert (response["terminated"], response["truncated"], response["status"]) == (True, False, "completed")
    roles = [item["role"] for item in response["output"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    told = response["output"][-1]["content"]
    assert all(f"{', '.join(hand)}, which is {value(hand)}." in told for hand in (own, dealer))
    assert (response["usage"]["output_tokens"], response["metadata"]["midflight_steps"]) == (6, "2")


POINTS = [
    "before /seed_session 0", WHOLE[0], "after /seed_session 0",
    "before /v1/agent_sessions 0", "after /v1/agent_sessions 0", "before /v1/responses 0",
    "before /reset 0", WHOLE[1], "after /reset 0",
    "before /v1/responses 1", WHOLE[2], "after /v1/responses 0",
    "before /step 0", WHOLE[3], "after /step 0",
    "before /v1/responses 2", WHOLE[4], "after /v1/responses 1",
    "before /step 1", WHOLE[5], "after /step 1", "after /v1/responses 2",
    "before /verify 0", WHOLE[6], "after /verify 0",
    "before /v1/agent_sessions/close 0", "after /v1/agent_sessions/close 0",
    "before /close_session 0", "after /close_session 0",
]  # fmt: skip
"""Every call, before, in the middle and after."""


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """The rows of a run that is never killed."""
    return anyio.run(partial(uninterrupted, ROWS, **GAME))


@pytest.mark.enumerated(4)
@pytest.mark.parametrize("point", POINTS)
async def test_a_game_killed_at_any_boundary_goes_on_with_the_same_cards(
    point: str, undisturbed: dict[str, Any]
) -> None:
    """Row and reward are those of the undisturbed game; only what was in flight at the checkpoint is done again."""
    rows, journal = await killed_at(point, ROWS, **GAME)
    assert rows == undisturbed
    assert set(journal.begun) == set(WHOLE)


async def test_fifty_games_killed_at_different_turns_end_as_undisturbed_ones() -> None:
    """Each is at another model call; rewards are those that Python's own generator gives."""
    hits = {seed: next((n for n in range(1, 9) if value(played(seed, n)[0]) > 16), 1) for seed in range(50)}
    rows = {f"r{seed}": game_row(f"r{seed}", seed, *[HIT] * n, STAND) for seed, n in hits.items()}
    turns = {seed: n if value(played(seed, n)[0]) > 21 else n + 1 for seed, n in hits.items()}
    points = [f"model r{seed} {seed % turns[seed]}" for seed in hits]
    options: dict[str, Any] = {**GAME, "max_steps": 10}
    found = await killed_while_at(points, rows, **options)
    assert found == await uninterrupted(rows, **options)
    rewards = {seed: found[f"r{seed}"]["reward"] for seed in hits}
    assert rewards == {seed: played(seed, n)[2] for seed, n in hits.items()}
    assert set(rewards.values()) == {-1.0, 0.0, 1.0}


async def test_an_agent_that_calls_tools_can_play_too() -> None:
    """Simple Agent with look, hit and stand: killed in the middle, the same game goes on."""
    turns: list[Any] = [["look"], ["hit"], ["stand"], "done"]
    tools = [each.schema for each in BlackjackServer().tools.values()]
    rows = {"r0": {**scripted_row("r0", turns, tools=tools), "seed": SEED}}
    found, _ = await killed_at("after /hit 0", rows, counter=JournalBlackjack)
    assert found == await uninterrupted(rows, counter=JournalBlackjack)
    assert found["r0"]["reward"] == 1.0


async def response_of(turns: list[str], **options: Any) -> dict[str, Any]:
    """The response of a game of Countdown; the reward of its row is that of its response."""
    rows = {"r0": scripted_row("r0", turns)}
    row = (await uninterrupted(rows, counter=Countdown, make_agent=GymnasiumAgent, **options))["r0"]
    assert row["reward"] == row["response"]["reward"]
    response: dict[str, Any] = row["response"]
    return response


async def test_rewards_are_summed_and_observations_need_not_be_text() -> None:
    """JSON is written as such, and an observation of nothing adds no message."""
    response = await response_of(["one", "two"])
    assert (response["reward"], response["terminated"], response["info"]) == (1.0, True, {"said": "two"})
    assert [item["content"] for item in response["output"] if item["role"] == "user"] == ['{"left":2}', '{"left":1}']


async def test_after_max_steps_a_game_is_truncated() -> None:
    """The step of the last reply is taken, and the reward so far counts."""
    response = await response_of(["one", "two"], max_steps=1)
    assert (response["reward"], response["terminated"], response["truncated"]) == (0.5, False, True)
    assert response["metadata"]["ng_termination_reason"] == "max_steps"


async def test_an_empty_reply_is_for_the_environment_to_judge() -> None:
    """It is a step like any other."""
    response = await response_of(["", "two"])
    assert (response["reward"], response["terminated"], response["status"]) == (1.0, True, "completed")


async def test_what_the_environment_refuses_ends_the_episode_as_a_failure() -> None:
    """With its message, in the stage of the agent; there is no row."""
    async with world(counter=Countdown, make_agent=GymnasiumAgent) as one:
        await one.start({"r0": scripted_row("r0", ["no"])})
        [result] = (await one.results(1)).values()
    assert (result.row, result.failure and result.failure["class"]) == (None, "step_failed")
    assert result.failure is not None
    assert (result.failure["stage"], "the word is no action" in result.failure["message"]) == ("agent", True)


@pytest.mark.parametrize("lives", [False, True], ids=["no-life", "life"])
async def test_it_plays_under_its_own_run(lives: bool) -> None:
    """`POST /run` at the agent: seed, play, verify, close."""
    journal = Journal()
    server = JournalBlackjack(journal)
    agent = GymnasiumAgent(LocalPeer(ModelServer(ScriptedUpstream(journal))), {server.role: LocalPeer(server)})
    life = Life("r0", 1, 0, 0) if lives else None
    reply = await agent.handle(Request(route="/run", body=ROWS["r0"], life=life))
    assert (reply.body["reward"], reply.body["response"]["terminated"]) == (1.0, True)
    assert journal.begun["model r0 1"] == 1
