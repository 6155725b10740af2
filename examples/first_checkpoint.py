"""Writes a checkpoint of a few rollouts, opens it again, and prints what a restore would continue.

Run it with a path to choose the folder: python examples/first_checkpoint.py ./runs/mine
"""

import sys

import anyio

import midflight


def rollouts() -> list[midflight.Record]:
    """Three rollouts in mid-flight: each is kept at its last boundary, with all that its next step needs."""
    return [
        midflight.Record(
            midflight.Life(f"task-{number}", epoch=1, attempt=0, n=number),
            {
                "next_step": "call the model",
                "messages": [
                    {"role": "user", "content": f"How many prime numbers are below {10**number}?"},
                    {"role": "assistant", "content": "Let me count them with the tool."},
                ],
                "sandbox": b"any bytes, kept exactly",
            },
        )
        for number in range(1, 4)
    ]


async def write(root: str) -> midflight.Ref:
    """Claim the run, commit one participant's records, and publish them together with the controller's own state."""
    records = rollouts()
    async with midflight.open_store(root, "write") as opened, midflight.claim(opened) as controller:
        checkpoint = controller.next_round()
        process = midflight.ProcessName("agent", "solver", "p0")
        head = controller.head
        parent = await midflight.load_parent(opened, head, process.kind, process.name) if head else None
        receipt = await midflight.ParticipantCommit(opened, checkpoint, process, parent=parent).run(records)
        draft = midflight.Draft(
            checkpoint=checkpoint,
            parent=head.checkpoint if head else None,
            participants=[receipt.ref],
            scope=[record.life for record in records],
            state={"input_rows_read": len(records)},
            tags=["first"],
        )
        return await controller.publish(draft, timeout_s=30)


async def read(root: str) -> None:
    """What the next process does after a crash: verify the head, then take its rollouts up."""
    async with midflight.open_store(root) as opened:
        checkpoint = await midflight.open_checkpoint(opened, "head")
        await checkpoint.verify()
        print(f"checkpoint {checkpoint.ref.checkpoint}, controller state {await checkpoint.state()}")
        async with checkpoint.records() as records:
            async for record in records:
                payload = record.payload
                print(f"  continue {record.life}: {payload['next_step']}, {len(payload['messages'])} messages")


def main() -> None:
    """Write, read, and say what to try next."""
    root = sys.argv[1] if len(sys.argv) > 1 else "runs/first"
    anyio.run(write, root)
    anyio.run(read, root)
    print(f"\nNow look at it:\n  midflight checkpoints list {root}\n  midflight checkpoints show {root}")
    print(f"  midflight checkpoints show {root} --rollout task-2\n  midflight checkpoints verify --deep {root}")
    print("Run this again, and then:")
    print(f"  midflight checkpoints prune {root} --keep-last 1 --no-keep-tagged --dry-run")


if __name__ == "__main__":
    main()
