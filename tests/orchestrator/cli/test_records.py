"""What `show --rollout` prints is made of parsed records: a line that only claims to be one is damage."""

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from orchestrator.cli.compose import shown_record
from store import CorruptCheckpoint, ProcessName, RawRecord, claim, open_store
from tests.support.checkpoints import AGENT, life, publish

from .conftest import Run

pytestmark = pytest.mark.unit

LIFE = life("r1")
HEAD = f'{{"life":"{LIFE}","payload":'.encode()
DEEP = HEAD + b"[" * 480 + b"]" * 480 + b"}"
BAD = {
    "no JSON": HEAD + b"\x1b[31mred}",
    "two values": HEAD + b'1}\x1b[31m{"x":2}',
    "too deep": DEEP,
    "a key twice": HEAD + b'1,"payload":2}',
    "an integer that would be lost": HEAD + b"123456789012345678901234567890}",
}


async def fill(root: Path, line: bytes) -> None:
    async with open_store(root, "write") as store, claim(store) as controller:
        await publish(store, controller, {AGENT: [RawRecord(LIFE, line)]})


@pytest.mark.enumerated(2)
@pytest.mark.parametrize("line", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_line_that_is_no_record_is_damage(tmp_path: Path, run: Run, line: bytes, flags: tuple[str, ...]) -> None:
    """Although every digest fits: exit code 1, one line without control characters, no part of the line on stdout."""
    anyio.run(partial(fill, tmp_path, line))
    ran = run("show", tmp_path, "--rollout", "r1", *flags)
    assert ran.code == 1
    assert "is damaged" in ran.err
    assert len(ran.err.splitlines()) == 1
    assert "\x1b" not in ran.out + ran.err
    assert ran.document["exit_code"] == 1 if flags else ran.out == ""


def test_a_line_of_another_life_is_not_shown_as_the_one_asked_for() -> None:
    """It may be any rollout's, and would be taken for this one's."""
    other = f'{{"life":"{life("r2")}","payload":1}}'.encode()
    with pytest.raises(CorruptCheckpoint, match="r2"):
        shown_record(ProcessName("agent", "solver", "p0"), RawRecord(LIFE, other))


def nested(depth: int) -> Any:
    value: Any = "\x9b\x7f\u202e"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [0, 250])
def test_control_characters_in_a_record_are_shown_as_escapes(tmp_path: Path, run: Run, depth: int) -> None:
    """At any depth that a record may have; for programs the value is the same."""
    anyio.run(partial(fill, tmp_path, HEAD + orjson.dumps(nested(depth)) + b"}"))
    human, machine = run("show", tmp_path, "--rollout", "r1"), run("show", tmp_path, "--rollout", "r1", "--json")
    assert (human.code, machine.code) == (0, 0)
    assert all(text.replace("\n", "").isprintable() for text in (human.out, machine.out))
    assert machine.document["records"][0]["record"] == {"life": str(LIFE), "payload": nested(depth)}
