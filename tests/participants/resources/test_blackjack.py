"""Blackjack: its rules by hand, its generator against Python's own, and what a client of Gymnasium's shape sees.

The rewards are worked out by hand from the rules in the module's docstring. Cards to come are put there by a generator
of Python's own that is known to draw them.
"""

import random
from typing import Any

import pytest

from participants.data import Reply, Request
from participants.errors import Code, ParticipantError
from participants.gymnasium import GymnasiumServer, Turn
from participants.servers import BlackjackServer
from participants.servers.blackjack import RANKS, play, saved, value
from participants.sessions import ResourcesSession

from .harness import LIFE, NEXT, RESPONSE, Caller, checkpoint, restore

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


def drawing(*ranks: str) -> random.Random:
    """A generator that draws these next."""
    for seed in range(10**5):
        generator = random.Random(seed)
        if all(generator.choice(RANKS) == rank for rank in ranks):
            return random.Random(seed)
    raise AssertionError(ranks)


def cards_of(seed: int, count: int) -> list[str]:
    """What Python's own generator draws."""
    generator = random.Random(seed)
    return [generator.choice(RANKS) for _ in range(count)]


def said(text: str) -> dict[str, Any]:
    """A Responses object with one message."""
    content = [{"type": "output_text", "text": text}]
    return {"output": [{"type": "message", "role": "assistant", "content": content}]}


@pytest.mark.parametrize(
    ("hand", "counts"),
    [
        ("10 6", 16),
        ("J Q", 20),
        ("A K", 21),
        ("A A", 12),
        ("A A 9", 21),
        ("A A A 8", 21),
        ("A 6 9", 16),
        ("10 J A", 21),
        ("5 6 A 10", 22),
        ("K Q 2", 22),
    ],
)
def test_an_ace_counts_eleven_unless_that_is_too_much(hand: str, counts: int) -> None:
    """Worked out by hand."""
    assert value(hand.split()) == counts


@pytest.mark.parametrize(
    ("player", "dealer", "action", "drawn", "reward"),
    [
        ("10 6", "9 2", "hit", "K", -1),
        ("10 6", "9 2", "hit", "5", None),
        ("A 6", "9 2", "hit", "9", None),
        ("10 10", "10 7", "stand", "", 1),
        ("10 7", "10 7", "stand", "", 0),
        ("10 8", "10 9", "stand", "", -1),
        ("10 8", "A 6", "stand", "", 1),
        ("5 5", "10 6", "stand", "10", 1),
        ("10 9", "2 4", "stand", "10 5", -1),
        ("A K", "9 2", "stand", "A 9", 0),
        ("2 2", "A 5", "stand", "K A", -1),
    ],
)
def test_a_game_goes_by_the_rules(player: str, dealer: str, action: str, drawn: str, reward: int | None) -> None:
    """A hand above 21 loses; the dealer draws up to 17, a soft one too, and the higher hand wins."""
    ranks = drawn.split()
    game = {"player": player.split(), "dealer": dealer.split(), "generator": saved(drawing(*ranks))}
    assert play(game, action) == reward
    grown = {"hit": "player", "stand": "dealer"}[action]
    assert game[grown] == [*{"player": player, "dealer": dealer}[grown].split(), *ranks]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<action>hit</action>", "hit"),
        ("I think <action> HIT </action>.", "hit"),
        ("<action>stand</action>", "stand"),
        ("<action>hit</action> no, <action>stand</action>", "stand"),
        ("hit me", "stand"),
        ("<action>double</action>", "stand"),
        ("", "stand"),
    ],
)
def test_the_action_is_the_last_one_that_is_named_and_else_stand(text: str, action: str) -> None:
    """Whatever else the model says."""
    assert BlackjackServer().action_of(text) == action


LONG = next(s for s in range(1000) if value((c := cards_of(s, 7))[:2] + c[4:]) <= 21 and value(c[2:4]) < 17)
"""A seed with which three hits are not above 21 and the dealer has to draw, by Python's own generator."""


async def test_an_exported_generator_draws_the_same_cards_as_pythons_own() -> None:
    """Dealt in one process, continued in another: each card is the next of the one sequence of the seed."""
    cards = cards_of(LONG, 30)
    old = BlackjackServer()
    call = Caller(old)
    await call("/seed_session", {"seed": LONG})
    before = (await call("/hit")).body["observation"]
    new = BlackjackServer()
    await restore(new, await checkpoint(old, {LIFE}))
    continued = Caller(new, NEXT, boundary=call.boundary)
    observations = [before, *[(await continued("/hit")).body["observation"] for _ in range(2)]]
    for number, observation in enumerate(observations, 1):
        assert f"Your hand: {', '.join([*cards[:2], *cards[4 : 4 + number]])}, which" in observation
    end = (await continued("/stand")).body["observation"]
    dealt = cards[2:4]
    while value(dealt) < 17:
        dealt.append(cards[7 + len(dealt) - 2])
    assert f"The dealer's hand: {', '.join(dealt)}, which" in end


async def test_what_is_no_game_is_refused_when_it_is_restored() -> None:
    """A record with a generator or hands that are none: nothing of it becomes active."""
    old = BlackjackServer()
    await Caller(old)("/seed_session", {"seed": 1})
    [session] = old.held()[0].state.open.values()
    damages: list[dict[str, Any]] = [
        {"generator": [3, [1, 2], None]},
        {"player": []},
        {"dealer": ["10", "X"]},
        {"seed": "1"},
        {"gymnasium": None},
        {"gymnasium": {"steps": "1"}},
        {"gymnasium": {"rewards": 1.0}},
    ]
    for broken in damages:
        session.exported = session.frozen = None
        was = session.state
        session.state = {**was, **broken}
        records = await checkpoint(old, {LIFE})
        session.state = was
        with pytest.raises(ParticipantError) as caught:
            await restore(BlackjackServer(), records)
        assert caught.value.code is Code.CORRUPT_CHECKPOINT


async def test_without_a_seed_the_cards_are_fresh_and_the_state_says_which() -> None:
    """Two sessions have two seeds, and each has the cards that its own one gives."""
    server, seeds = BlackjackServer(), []
    for name in ("a", "b"):
        await Caller(server, None, name)("/seed_session", {})
        state = server._without_life.open[name].state
        seeds.append(state["seed"])
        assert [*state["player"], *state["dealer"]] == cards_of(state["seed"], 4)
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("seed", ["7", -1, 2**63, 1.5, True])
async def test_a_seed_that_is_no_whole_number_is_refused(seed: Any) -> None:
    """Nobody plays with another seed than he thinks."""
    with pytest.raises(ParticipantError, match="seed") as caught:
        await Caller(BlackjackServer())("/seed_session", {"seed": seed})
    assert caught.value.code is Code.INVALID_REQUEST


async def gym(server: GymnasiumServer, route: str, body: Any, cookie: str = "") -> Reply:
    """A call of a plain client."""
    return await server.handle(Request(route=route, body=body, headers={"cookie": cookie} if cookie else {}))


ROW: dict[str, Any] = {
    "responses_create_params": {
        "input": [{"role": "system", "content": "Play."}, {"role": "user", "content": "Deal."}]
    },
    "agent_ref": {"name": "gymnasium_agent"},
    "seed": LONG,
}


async def test_a_plain_client_plays_by_reset_and_step_alone() -> None:
    """`/reset` with a row opens a session and gives its cookie; `/step` takes the row with a response."""
    server = BlackjackServer()
    begun = await gym(server, "/reset", ROW)
    cookie = begun.headers["set-cookie"].partition(";")[0]
    assert begun.body["observation"].startswith(f"Your hand: {', '.join(cards_of(LONG, 2))}, which is ")
    assert begun.body["info"] == {"supports_step_idempotency": True, "supports_explicit_close": False}
    hit = (await gym(server, "/step", {**ROW, "response": said("<action>hit</action>")}, cookie)).body
    assert (hit["reward"], hit["terminated"], hit["truncated"], hit["info"]) == (0.0, False, False, {})
    end = (await gym(server, "/step", {**ROW, "response": said("enough")}, cookie)).body
    assert (end["terminated"], end["reward"] in (-1.0, 0.0, 1.0)) == (True, True)
    verified = await gym(server, "/verify", {**ROW, "response": RESPONSE}, cookie)
    assert (verified.body["reward"], verified.body["terminated"]) == (end["reward"], True)


async def test_a_cookie_of_a_game_does_not_keep_a_row_from_a_new_one() -> None:
    """One cookie jar plays row after row; a reset without a row looks at the game that there is."""
    server = BlackjackServer()
    cookies = set()
    cookie = ""
    for _ in range(2):
        begun = await gym(server, "/reset", ROW, cookie)
        cookie = begun.headers["set-cookie"].partition(";")[0]
        cookies.add(cookie)
    assert len(cookies) == 2
    assert (await gym(server, "/reset", {}, cookie)).body == begun.body


async def test_nobody_steps_after_the_end_or_begins_a_game_again() -> None:
    """Both are refused, and the reward stays what it was."""
    call = Caller(BlackjackServer())
    await call("/seed_session", {"seed": LONG})
    await call("/reset")
    end = (await call("/step", {"action": "stand"})).body
    refused = [await call("/step", {"action": "hit"}), await call("/stand"), await call("/reset")]
    assert [reply.status for reply in refused] == [409, 409, 409]
    assert "over" in refused[0].body["error"]
    assert (await call("/verify", {"response": RESPONSE})).body["reward"] == end["reward"]
    assert (await call("/look")).body.endswith("The game is over.")


async def test_a_game_that_is_not_over_has_the_reward_so_far() -> None:
    """Nothing, before the end."""
    call = Caller(BlackjackServer())
    await call("/seed_session", {"seed": LONG})
    verified = (await call("/verify", {"response": RESPONSE})).body
    assert (verified["reward"], verified["terminated"]) == (0.0, False)


async def test_without_the_session_there_is_an_error_and_no_reward() -> None:
    """Neither a step nor a verify makes up a game."""
    call = Caller(BlackjackServer())
    await call("/seed_session", {"seed": LONG})
    for route, body in (("/step", {"action": "hit"}), ("/verify", {"response": RESPONSE})):
        with pytest.raises(ParticipantError) as caught:
            await call(route, body, session="other")
        assert caught.value.code is Code.LOST_SESSION


async def test_a_step_that_comes_again_under_its_key_gets_the_same_reply() -> None:
    """One card is drawn; the key with another action is refused, and the next key draws the next card."""
    server = BlackjackServer()
    cards = cards_of(LONG, 6)
    call = Caller(server, None)
    await call("/seed_session", {"seed": LONG})
    one = {"action": "hit", "_ng_step_request_id": "one"}
    first, again = await call("/step", one), await call("/step", one)
    assert first.body == again.body
    assert (await call("/step", {**one, "action": "stand"})).status == 409
    second = await call("/step", {**one, "_ng_step_request_id": "two"})
    assert f"Your hand: {', '.join([*cards[:2], *cards[4:6]])}, which" in second.body["observation"]


@pytest.mark.parametrize("body", [{}, [], {"action": 1}, {"action": "double"}, {"response": "hit"},
                                  {"action": "hit", "_ng_step_request_id": 1}])  # fmt: skip
async def test_a_step_without_an_action_is_refused_and_draws_nothing(body: Any) -> None:
    """What is no step is not taken for standing."""
    call = Caller(BlackjackServer())
    await call("/seed_session", {"seed": LONG})
    looked = (await call("/look")).body
    assert (await call("/step", body)).status == 422
    assert (await call("/look")).body == looked


class Countdown(GymnasiumServer):
    """Rewards each step with 0.5, and stops by itself after two."""

    checkpoint_mode = "exported"

    async def seed(self, session: ResourcesSession, row: dict[str, Any]) -> None:
        """Two are left."""
        session.state["left"] = 2

    async def look(self, session: ResourcesSession) -> Any:
        """No text."""
        return {"left": session.state["left"]}

    async def act(self, session: ResourcesSession, action: str) -> Turn:
        """One less."""
        session.state["left"] -= 1
        return Turn({"left": session.state["left"], "said": action}, 0.5, truncated=session.state["left"] == 0)


async def test_another_server_of_this_shape_needs_seed_look_and_act() -> None:
    """Its rewards are summed, all that the model says is the action, and a truncated one is over."""
    call = Caller(Countdown())
    await call("/seed_session", {})
    assert (await call("/reset")).body["observation"] == {"left": 2}
    steps = [(await call("/step", {"response": said(word)})).body for word in ("one", "two")]
    assert [step["observation"] for step in steps] == [{"left": 1, "said": "one"}, {"left": 0, "said": "two"}]
    assert [step["truncated"] for step in steps] == [False, True]
    assert (await call("/step", {"action": "three"})).status == 409
    verified = (await call("/verify", {"response": RESPONSE})).body
    assert (verified["reward"], verified["truncated"], verified["terminated"]) == (1.0, True, False)


async def test_the_cases_of_blackjack_end_in_every_way() -> None:
    """At least fifty games, won, drawn and lost."""
    rewards = []
    for case in BlackjackServer.conformance().cases:
        call = Caller(BlackjackServer())
        await call("/seed_session", dict(case.row))
        assert all([(await call(f"/{each.name}", dict(each.arguments))).ok for each in case.calls])
        rewards.append((await call("/verify", {"response": RESPONSE})).body["reward"])
    assert (len(rewards) >= 50, set(rewards)) == (True, {-1.0, 0.0, 1.0})
