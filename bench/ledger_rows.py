"""Rows a second of the capture ledger, each durable with its complete record, against bare writes and fsyncs.

    python -m bench.ledger_rows --json

Each life makes calls one after the other, as an agent does: its next row waits for the one before. The limit is a bare
loop in as many threads: append and fsync a record, then append and fsync a row, of the same sizes, to files of its own.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from participants.ledger import Entry, Ledger
from participants.ledger.ledger import LANES
from store import Life

from . import command_line
from .command_line import count, counts

PROMPT, OUTPUT = 400, 120
"""Tokens of a first prompt, and of each output; each later prompt goes on from there with 3 more."""
CONTEXT = 4_000
"""Tokens after which a conversation starts over."""
RECORD_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """What came out."""

    lives: int
    """Lives at once."""
    rows: int
    rows_per_s: float
    cpu_us_per_row: float
    begun_per_s: float
    """Ledgers begun."""
    export_us_per_row: float
    bytes_per_row: float
    """In the ledger file; an export holds as much in memory."""
    limit_rows_per_s: float
    """Of the bare loop, right after."""


def _entry(k: int, prompt: list[int], output: list[int]) -> Entry:
    call = f"agent.main:{k}.0"
    return Entry(call=call, route="/v1/chat/completions", request_digest="0" * 64, prompt=prompt, output=output)


async def _live(ledger: Ledger, life: Life, calls: int, record: Any) -> None:
    prompt, output = [life.n * 7 % 50_000 + token for token in range(PROMPT)], list(range(OUTPUT))
    for k in range(calls):
        await ledger.append(life, _entry(k, prompt, output), record)
        prompt = [*prompt, *output, 1, 2, 3] if len(prompt) < CONTEXT else prompt[:PROMPT]


async def _measure(root: Path, rows: int, lives: int) -> LedgerFigures:
    ledger, calls = Ledger(str(root / "ledgers")), max(1, rows // lives)
    all_lives = [Life(f"rollout-{n}", 1, 0, n) for n in range(lives)]
    record = {"request": {"messages": "x" * RECORD_CHARS}, "response": {"text": "y" * 500}}
    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for life in all_lives:
            group.start_soon(ledger.begin, life)
    begun_s = time.perf_counter() - began
    began, cpu = time.perf_counter(), time.process_time()
    async with anyio.create_task_group() as group:
        for life in all_lives:
            group.start_soon(_live, ledger, life, calls, record)
    rows_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    began = time.perf_counter()
    count = sum(len(ledger.export(life)) for life in all_lives)
    export_s = time.perf_counter() - began
    size = (await ledger.manifest("rollout-0")).size / calls
    threads = min(LANES, lives)
    bare = await anyio.to_thread.run_sync(_bare, root / "bare", threads, count, int(size), RECORD_CHARS + 600)
    return LedgerFigures(
        lives, count, round(count / rows_s, 1), round(cpu_s / count * 1e6, 1), round(lives / begun_s, 1),
        round(export_s / count * 1e6, 1), round(size, 1), round(bare, 1),
    )  # fmt: skip


def _bare(root: Path, threads: int, rows: int, row_bytes: int, record_bytes: int) -> float:
    """Rows a second of the limit."""
    root.mkdir()

    def work(number: int) -> None:
        fds = [os.open(root / f"{number}.{part}", os.O_CREAT | os.O_WRONLY | os.O_APPEND) for part in range(2)]
        for _ in range(max(1, rows // threads)):
            for fd, size in zip(fds, (record_bytes, row_bytes), strict=True):
                os.write(fd, b"x" * size)
                os.fsync(fd)
        for fd in fds:
            os.close(fd)

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return max(1, rows // threads) * threads / (time.perf_counter() - began)


@contextmanager
def _folder(parent: str | None) -> Iterator[Path]:
    made = tempfile.mkdtemp(prefix="ledger-", dir=parent)
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made)


def measure_ledger(rows: int, lives: int, folder: str | None = None) -> LedgerFigures:
    """Append so many rows in all, of so many lives at once, below a folder on the disk in question."""
    with _folder(folder) as root:
        return anyio.run(_measure, root, rows, lives)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.ledger_rows", __doc__)
    parser.add_argument("--rows", type=count, default=4096, help="in all, of each case")
    parser.add_list("--lives", counts, [1, 64, 1024], "numbers of lives that write at once, each a case")
    parser.add_argument(
        "--folder", type=command_line.folder, help="below it the files are written; default: a temporary folder"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    options = parser.parse_args(arguments)
    cases = [(options.rows if lives > 1 else options.rows // 8, lives) for lives in options.lives]
    figures = [measure_ledger(rows, lives, options.folder) for rows, lives in cases]
    if options.json:
        print(json.dumps([asdict(each) for each in figures]))
        return
    print(f"{'lives':>6} {'rows/s':>8} {'bare':>8} {'cpu us/row':>11} {'begun/s':>8} {'export us':>10}")
    for f in figures:
        print(
            f"{f.lives:>6} {f.rows_per_s:>8} {f.limit_rows_per_s:>8} {f.cpu_us_per_row:>11} {f.begun_per_s:>8} "
            f"{f.export_us_per_row:>10}"
        )


if __name__ == "__main__":
    main()
