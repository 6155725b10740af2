"""The shell's own cases at a real shell: their rewards, worked out in Python without one."""

import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread
import pytest

from participants.cases import response_of
from participants.servers import ShellServer
from store import DEFAULT_LIMITS, BlobRef, CheckpointId, Life, RawRecord, Record
from store.records import encode_line
from store.values import BlobPlan

from .harness import Caller

pytestmark = [pytest.mark.process, pytest.mark.anyio, pytest.mark.timeout(180)]


async def move(old: ShellServer, new: ShellServer, life: Life) -> None:
    """A session's checkpoint and restore, without a store."""
    await old.freeze([life])
    [record] = (await old.export([life])).records
    assert isinstance(record, Record)
    line = await anyio.to_thread.run_sync(encode_line, record, BlobPlan(CheckpointId(1, 1), (), DEFAULT_LIMITS))

    async def each() -> AsyncIterator[RawRecord]:
        yield RawRecord(life, line.data)

    async def read(blob: BlobRef) -> bytes:
        return await anyio.to_thread.run_sync(line.lazy[blob].load, "the case")

    await new.stage([life], each(), epoch=2, read_blob=read)
    new.activate()
    new.settle()


async def test_cases_come_out_as_their_own_account_says() -> None:
    """Thirty of them, each restored once on its way into another server; every third is wrong by its row."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o711)
        old, new = (ShellServer(root=str(Path(path, "root"))) for _ in range(2))
        rewards, cases = [], ShellServer.conformance().cases[:30]
        for number, case in enumerate(cases):
            life, later = Life(f"r{number}", 1, 0, number), Life(f"r{number}", 2, 1, number)
            call, outputs = Caller(old, life), []
            await call("/seed_session", dict(case.row))
            for at, each in enumerate(case.calls):
                if at == number % len(case.calls):
                    await move(old, new, life)
                    call = Caller(new, later, boundary=call.boundary)
                outputs.append((await call(f"/{each.name}", dict(each.arguments))).body)
            verified = await call("/verify", {**case.row, "response": response_of(case, outputs)})
            rewards.append(verified.body["reward"])
        assert rewards == [float(number % 3 != 2) for number in range(len(cases))]
        await old.aclose()
        await new.aclose()
