"""The exactness suite passes on the deterministic backend, and finds a server that is not exact."""

import json
from typing import Any

import anyio
import anyio.to_thread
import pytest

from bench import exactness
from bench.comparing import Comparison, ids_in
from bench.exact_cuts import cuts_of
from bench.exactness import Result, Sizes, run
from participants.inference import Backend, Settings, serving
from tests.support.wires import LlamaCpp, Vllm, drifting, served

pytestmark = [pytest.mark.scale, pytest.mark.anyio]

SIZES = Sizes(prompts=1, calls=1, tokens=10, cuts=3, call_cuts=2, at_once=4)
ARGUMENTS = ["--prompts", "1", "--calls", "1", "--tokens", "10", "--cuts", "3", "--call-cuts", "2", "--json"]


def unequal(result: Result) -> set[str]:
    """The ways in which something differed."""
    return {way for way, figures in result.figures.items() if figures.equal != figures.total}


async def test_the_deterministic_backend_is_exact_in_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    """By the command itself: its last line says of each way that all is equal, kept, and asked for as the rest."""
    backend = await anyio.to_thread.run_sync(Backend, Settings())
    async with serving(backend) as url:
        await anyio.to_thread.run_sync(exactness.main, ["--base-url", f"{url}/v1", *ARGUMENTS])
    backend.close()
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found) == {"model", "capabilities", "notes", "ways", "passed"}
    assert found["passed"] is True
    assert found["capabilities"]["bit_equal"] is True
    ways = found["ways"]
    assert {way.split(",")[0] for way in ways} == {"ids", "chat", "completions", "responses"}
    assert {(way["equal"], way["kept"], way["continued"]) for way in ways.values()} == {(2, 2, 2), (3, 3, 3)}


async def test_a_server_whose_rest_differs_is_found() -> None:
    """It is no longer held to be bit-equal, its prefixes are kept, and what differs is counted and shown."""
    async with served(Vllm, change=drifting) as (url, _, _):
        result = await run(url, SIZES)
    assert not result.capabilities.bit_equal
    assert result.figures["ids, 1 at once"].differences
    assert unequal(result) >= {"ids, 1 at once", "ids, 4 at once"}
    assert all(figures.kept == figures.continued for figures in result.figures.values())


async def test_a_server_without_ids_has_every_call_made_anew() -> None:
    """Nothing is asked for the rest, and what is made anew by a deterministic server is the same."""
    async with served(LlamaCpp) as (url, _, _):
        result = await run(url, SIZES)
    assert {figures.continued for figures in result.figures.values()} == {0}
    assert unequal(result) == set()


def test_a_difference_in_any_field_is_found() -> None:
    """But for ids and times, and floats within the tolerance."""
    one = {"id": "a", "usage": {"n": 1}, "choices": [{"text": "x", "scores": [-1.0, None]}]}
    two = {"id": "b", "usage": {"n": 1}, "choices": [{"text": "x", "scores": [-1.00001, None]}]}
    assert Comparison(one, two).differences == []
    assert Comparison(one, two).largest == pytest.approx(1e-5)
    for other in (
        {**one, "usage": {"n": 2}},
        {**one, "more": 0},
        {**one, "choices": []},
        {**one, "choices": [{"text": "x", "scores": [-1.001, None]}]},
    ):
        assert len(Comparison(one, other).differences) == 1
    assert ids_in({"choices": [{"token_ids": [1]}]}) == [1]
    assert ids_in(one) is None


def test_cuts_are_everywhere_or_spread() -> None:
    """Always after the first token and before the last."""
    assert cuts_of(5, 0) == [1, 2, 3, 4]
    assert cuts_of(5, 9) == [1, 2, 3, 4]
    assert cuts_of(33, 3) == [1, 16, 32]
    assert cuts_of(1, 0) == []
