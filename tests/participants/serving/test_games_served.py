"""Blackjack as a server of several processes, played by a plain client over HTTP: one cookie jar, game after game."""

import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from participants.servers.blackjack import RANKS
from tests.support.fleet import Server

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


def test_a_client_with_one_cookie_jar_plays_game_after_game_at_three_workers(tmp_path: Path) -> None:
    """Each connection may reach any worker; cards are those of the row's seed, by Python's own generator."""
    spec = {"server": "participants.servers.blackjack:BlackjackServer", "workers": 3, "token_env": "TOKEN"}
    served = Server("resources.blackjack", spec, tmp_path, {"TOKEN": "a-token"})
    served.begin()
    cookies: dict[str, str] = {}

    def post(route: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"{served.url}{route}", json=body, cookies=cookies, timeout=20)
        assert answer.status_code == 200, answer.text
        cookies.update(answer.cookies)
        reply: dict[str, Any] = answer.json()
        return reply

    try:
        served.await_ready()
        for seed in range(9):
            generator = random.Random(seed)
            cards = [generator.choice(RANKS) for _ in range(5)]
            row = {"responses_create_params": {"input": []}, "seed": seed}
            hand = post("/reset", row)["observation"]
            assert hand.startswith(f"Your hand: {', '.join(cards[:2])}, which")
            hit = post("/step", {**row, "action": "hit"})
            assert hit["observation"].startswith(f"Your hand: {', '.join([*cards[:2], cards[4]])}, which")
            end = hit if hit["terminated"] else post("/step", {**row, "action": "stand"})
            verified = post("/verify", {**row, "response": {"output": []}})
            assert (verified["reward"], verified["terminated"]) == (end["reward"], True)
    finally:
        served.kill()
