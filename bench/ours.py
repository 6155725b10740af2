"""What is measured: a commit by participants that is then published, and a restore of it, through the public API."""

from collections.abc import Iterable, Sequence

import anyio

from store import Draft, ParticipantCommit, ProcessName, Receipt, Record, Ref, Store, claim, open_checkpoint

PUBLISH_TIMEOUT_S = 60.0


async def commit(store: Store, participants: Sequence[Iterable[Record]]) -> Ref:
    """Claim the run, commit each participant's records at the same time, publish."""
    async with claim(store, take_over=True) as controller:
        checkpoint = controller.next_round()
        receipts: dict[int, Receipt] = {}

        async def run(number: int, records: Iterable[Record]) -> None:
            process = ProcessName("environment", f"bench-{number}", "main")
            receipts[number] = await ParticipantCommit(store, checkpoint, process).run(_noting(records))

        lives = []

        def _noting(records: Iterable[Record]) -> Iterable[Record]:
            for record in records:
                lives.append(record.life)
                yield record

        async with anyio.create_task_group() as group:
            for number, records in enumerate(participants):
                group.start_soon(run, number, records)
        refs = [receipts[number].ref for number in sorted(receipts)]
        draft = Draft(checkpoint=checkpoint, parent=None, participants=refs, scope=lives)
        return await controller.publish(draft, timeout_s=PUBLISH_TIMEOUT_S)


async def restore(store: Store) -> list[Record]:
    """Open the head, verify all of it, then parse every record and keep it, as a restoring participant does."""
    checkpoint = await open_checkpoint(store)
    await checkpoint.verify()
    async with checkpoint.records() as records:
        return [record async for record in records]


async def stream(store: Store) -> int:
    """The same for somebody who keeps none; returns how many there were."""
    checkpoint = await open_checkpoint(store)
    await checkpoint.verify()
    count = 0
    async with checkpoint.records() as records:
        async for _ in records:
            count += 1
    return count
