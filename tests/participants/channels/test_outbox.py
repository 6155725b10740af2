"""Frames on their way out."""

import anyio
import pytest

from participants.channels.outbox import MAX_WAITING_BYTES, MESSAGE_BYTES, Outbox

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


class Reader:
    """Takes messages, one for each `allow`."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ready = anyio.Semaphore(0)

    async def __call__(self, message: bytes) -> None:
        await self.ready.acquire()
        self.messages.append(message)


async def test_what_is_ready_together_goes_together() -> None:
    """In the order in which it came; a frame that is larger than a message goes by itself, whole."""
    reader, large = Reader(), b"l" * (MESSAGE_BYTES + 1)
    outbox = Outbox(reader)
    async with anyio.create_task_group() as group:
        for frame in (b"a", b"b", large, b"c"):
            await outbox.put(frame)
        group.start_soon(outbox.run)
        for _ in range(3):
            reader.ready.release()
        await anyio.wait_all_tasks_blocked()
        outbox.close()
    assert reader.messages == [b"a\nb", large, b"c"]


async def test_a_slow_reader_holds_its_senders_back() -> None:
    """No more than the limit and one frame is kept, however many want to send; all arrives in the end."""
    reader, frame, count = Reader(), b"x" * MESSAGE_BYTES, 3 * MAX_WAITING_BYTES // MESSAGE_BYTES
    outbox, through = Outbox(reader), 0

    async def send() -> None:
        nonlocal through
        await outbox.put(frame)
        through += 1

    async with anyio.create_task_group() as group:
        group.start_soon(outbox.run)
        for _ in range(count):
            group.start_soon(send)
        await anyio.wait_all_tasks_blocked()
        assert through * MESSAGE_BYTES <= MAX_WAITING_BYTES + 2 * MESSAGE_BYTES
        for _ in range(count):
            reader.ready.release()
        await anyio.wait_all_tasks_blocked()
        outbox.close()
    assert (through, len(reader.messages)) == (count, count)


async def test_after_the_close_nobody_waits_and_nothing_is_kept() -> None:
    """Neither who waits for room nor who comes later."""
    outbox = Outbox(Reader())
    async with anyio.create_task_group() as group:
        await outbox.put(b"x" * (MAX_WAITING_BYTES + 1))
        group.start_soon(outbox.put, b"y")
        await anyio.wait_all_tasks_blocked()
        outbox.close()
    await outbox.put(b"z")
    assert repr(outbox) == "<Outbox of 0 frames, 0 bytes>"
