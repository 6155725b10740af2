"""A process that begins lives and appends rows for ever is really killed, again and again; two share one root.

`MIDFLIGHT_KILLS` sets how many kills there are, `MIDFLIGHT_SEED` where they begin.
"""

import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from participants.ledger import CaptureKey, Ledger, check
from store import Life
from tests.support.children import nursery
from tests.support.ledgers import entry, life

from .child import ROLLOUTS, lives_of

pytestmark = [pytest.mark.process, pytest.mark.anyio]

SEED = int(os.environ.get("MIDFLIGHT_SEED", "1"))
KILLS = int(os.environ.get("MIDFLIGHT_KILLS", "15"))
LONGEST_LIFE_S = 0.4


@dataclass(slots=True)
class Witness:
    """Believes what workers say, and holds the ledgers to it."""

    rows: dict[str, dict[int, str]] = field(default_factory=dict)
    """Of each rollout: index to chain."""
    begun: dict[str, Life] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)

    def hear(self, said: list[str]) -> None:
        for line in said:
            word, _, rest = line.partition(" ")
            if word == "failed":
                raise AssertionError(f"a worker failed: {rest}")
            if word == "begun":
                began = Life.parse(rest.split()[0])
                self.begun[began.rollout_id] = began
            elif word == "row":
                text, index, chain = rest.split()
                self.rows.setdefault(Life.parse(text).rollout_id, {})[int(index)] = chain
            elif word == "deleted":
                self.deleted.add(rest)

    async def look(self, root: Path) -> None:
        """Every row that was said is there, in one right chain, with its records."""
        ledger = Ledger(str(root))
        for rollout in ROLLOUTS:
            lives = await lives_of(str(root), rollout)
            if rollout not in self.begun and not lives:
                continue
            assert (lives[-1].epoch, lives[-1].n) >= (self.begun.get(rollout, lives[-1]).epoch, 0)
            assert not {str(each) for each in lives} & self.deleted
            key = str(CaptureKey.of(lives[-1]))
            rows = await ledger.rows(key)
            for index, chain in self.rows.get(rollout, {}).items():
                assert rows[index].chain == chain
            manifest = await ledger.manifest(key)
            assert check([row.to_json() for row in rows], count=manifest.rows, last=manifest.last) == []
            assert len(await ledger.records(key)) == manifest.records
            assert len(lives) <= 4


async def test_no_kill_loses_a_row_that_was_acknowledged(tmp_path: Path) -> None:
    """After each kill every acknowledged row is in the newest life's chain, and the next life goes on from there."""
    witness, randomness = Witness(), random.Random(SEED)
    root = tmp_path / "ledgers"
    with nursery("tests.participants.ledger.child", str(root), {}) as children:
        for _ in range(KILLS):
            delay_s = randomness.random() * LONGEST_LIFE_S
            said = await anyio.to_thread.run_sync(children.life, "begun", delay_s)
            witness.hear(said)
            await witness.look(root)
    assert sum(map(len, witness.rows.values())) > KILLS
    sys.stderr.write(f"{KILLS} kills, {sum(map(len, witness.rows.values()))} rows\n")


SHARE = """
import sys, anyio
from participants.ledger import Ledger
from tests.support.ledgers import entry, life
async def main():
    ledger = Ledger(sys.argv[1])
    for k in range(int(sys.argv[2]), 60, 2):
        await ledger.append(life(), entry(k, [k], [k]), {"k": k})
    print(sorted(ledger.counts().items()))
anyio.run(main)
"""


async def test_two_processes_append_to_one_ledger(tmp_path: Path) -> None:
    """Rows of two processes at once end in one chain, each row once, each record with its row."""
    ledger = Ledger(str(tmp_path))
    await ledger.begin(life())
    commands = [[sys.executable, "-c", SHARE, str(tmp_path), str(which)] for which in range(2)]
    async with anyio.create_task_group() as group:
        for command in commands:
            group.start_soon(_run, command)
    rows = await ledger.rows("r")
    assert sorted(row.call for row in rows) == sorted(entry(k).call for k in range(60))
    assert check([row.to_json() for row in rows], count=60) == []
    records = await ledger.records("r")
    assert [f"agent.main:{each['k']}.0" for each in records] == [row.call for row in rows]
    last = await ledger.append(life(), entry(60, [1], [2]))
    assert last.index == 60


async def _run(command: list[str]) -> None:
    result = await anyio.run_process(command, check=False, stderr=subprocess.PIPE)
    assert result.returncode == 0, result.stderr.decode()
