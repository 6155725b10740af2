"""Real processes: a run is killed, one byte of its head is flipped, and it goes on from the checkpoint before."""

import signal
from pathlib import Path

import anyio
import pytest

from store import CheckpointId, open_checkpoint, open_store
from tests.support.damage import flipped
from tests.support.waiting import until

from .harness import Run, read_rows
from .oracle import Boundary, boundaries, check, seen_of
from .test_stopping import hold_second_calls, wait_held

pytestmark = pytest.mark.process


def flip_head(folder: Path, checkpoint: str) -> None:
    """One bit in what an agent has written for it."""
    path = next((folder / checkpoint / "agent.main").rglob("00000-*"))
    data = path.read_bytes()
    path.write_bytes(flipped(data, len(data) * 4))


async def has(run: Run, checkpoint: str) -> dict[str, Boundary]:
    """How far each rollout is there."""
    async with open_store(str(run.folder / "checkpoints")) as store:
        return await boundaries(await open_checkpoint(store, CheckpointId.parse(checkpoint)))


@pytest.mark.timeout(240)
def test_a_killed_run_with_a_damaged_head_goes_on_from_the_checkpoint_that_is_named(run: Run, tmp_path: Path) -> None:
    """All rows once, as of an undisturbed run; nothing that the older one has behind it is done again."""
    alone = Run(tmp_path / "alone", run.backend, run.rows, checkpoint_url=None)
    alone.folder.mkdir()
    alone.finish()
    undisturbed, calls = seen_of(alone), len(run.seen_calls())
    hold_second_calls(run)
    with run.start() as start:
        wait_held(run, start, 4)
        start.signal(signal.SIGUSR1)
        until(lambda: start.events("checkpoint"), told=start.told)
        run.backend.control.release()
        run.backend.control.hold(substring="Task 3")
        until(lambda: len(start.events("row")) == 3, told=start.told)
        start.signal(signal.SIGUSR1)
        until(lambda: len(start.events("checkpoint")) == 2, told=start.told)
        older, head = (event["checkpoint"] for event in start.events("checkpoint"))
        start.kill()
    run.backend.control.release()
    behind = anyio.run(has, run, older)
    flip_head(run.folder / "checkpoints" / "checkpoints", head)
    refused = run.finish(code=1)
    assert (
        f"continue from an older checkpoint with --from {older} (older than {head} there is {older}" in refused.told()
    )
    assert "checkpoint id 'newest' is refused" in run.finish("--from", "newest", code=2).told()
    found = run.finish("--from", older)
    counted = found.summary
    assert (counted["found_done"], counted["continued"], counted["restarted"], counted["rows"]) == (3, 1, 0, 1)
    assert read_rows(run.folder / "out.jsonl") == read_rows(alone.folder / "out.jsonl")
    seen = seen_of(run)
    for life, _ in run.seen_calls()[:calls]:
        seen.model.pop(life, None)  # Of the undisturbed run, at the same backend.
    check(seen, undisturbed, {found.events("started")[0]["epoch"]: behind})
