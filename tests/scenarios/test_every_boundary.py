"""Every server that ships: at least 50 episodes, saved and killed by SIGKILL at each of their boundaries, one by one.

One store goes through all these lives, so that each is continued from the checkpoint that the one before it has made.
"""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from participants import ResourcesServer
from participants.serving.loading import find_class
from tests.support.shipped import SHIPPED
from tests.support.sweep import DONE, VERIFY, Order, cases_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

COUNT = 50
LIFE_S = 120
RUNS = {name: (name, "simple") for name in SHIPPED} | {
    "BlackjackServer, played by GymnasiumAgent": ("BlackjackServer", "gymnasium")
}
FORGETFUL = "tests.support.forgetful:ForgetfulCounter"
Found = Mapping[str, Any]


def lived(order: Order) -> bytes:
    """What a life says that comes to its end; a life with a stop is killed there."""
    said = subprocess.run(
        [sys.executable, "-m", "tests.support.sweep", orjson.dumps(order).decode()], capture_output=True, timeout=LIFE_S
    )
    expected = 0 if order.stop is None else -signal.SIGKILL
    assert said.returncode == expected, said.stderr.decode()[-3000:]
    return said.stdout


def finished(order: Order) -> Found:
    """What became of each rollout of a life that nothing stops: its reward, and what its model said and was told."""
    found = orjson.loads(lived(replace(order, stop=None)))
    failures = [each["failure"] for each in found.values() if each["failure"] is not None]
    assert not failures, failures[:3]
    return {name: (each["row"]["reward"], each["row"]["response"]["output"]) for name, each in found.items()}


def order_of(server: str, agent: str, folder: Path) -> Order:
    """A run that begins in a folder of its own."""
    folder.mkdir()
    return Order(
        server=server, agent=agent, count=COUNT, store=str(folder / "store"), log=str(folder / "log"), stop=None
    )


def boundaries_of(server: type[ResourcesServer]) -> list[int | str]:
    """Every boundary that any of the episodes has, and the one past them all."""
    calls = max(len(case.calls) for case in cases_of(server, COUNT))
    return [*range(2 * calls + 1), DONE]


def events(order: Order) -> Counter[str]:
    """What was called, and how often."""
    return Counter(Path(order.log).read_text().splitlines())


def killed_at(stops: Sequence[int | str], order: Order) -> tuple[Found, Counter[str]]:
    """What becomes of a run that is killed at all of these, and what it has called."""
    for stop in stops:
        lived(replace(order, stop=stop))
    return finished(order), events(order)


@pytest.mark.parametrize("name", RUNS)
def test_killed_at_every_boundary_the_rewards_are_those_of_an_uninterrupted_run(name: str, tmp_path: Path) -> None:
    """So is all that the model said and was told, and nothing is called twice; but a verify in flight is, once."""
    shipped, agent = RUNS[name]
    server = find_class("resources.main", SHIPPED[shipped], ResourcesServer)
    orders = [order_of(SHIPPED[shipped], agent, tmp_path / folder) for folder in ("whole", "boundaries", "verify")]
    whole, called = killed_at([], orders[0])
    assert len(whole) >= COUNT
    assert len({reward for reward, _ in whole.values()}) > 1, "all rewards are the same, so that nothing is shown"
    assert killed_at(boundaries_of(server), orders[1]) == (whole, called)
    if server.checkpoint_verify == "replay":
        again = Counter(f"verify {rollout}" for rollout in whole)
        assert killed_at([VERIFY], orders[2]) == (whole, called + again)


def test_a_server_that_keeps_its_state_elsewhere_does_not_pass(tmp_path: Path) -> None:
    """A counter that exports only half of what it counts gives other rewards than in an uninterrupted run."""
    server = find_class("resources.main", FORGETFUL, ResourcesServer)
    whole, _ = killed_at([], order_of(FORGETFUL, "simple", tmp_path / "whole"))
    killed, _ = killed_at(boundaries_of(server), order_of(FORGETFUL, "simple", tmp_path / "killed"))
    assert any(killed[rollout][0] != whole[rollout][0] for rollout in whole)
