"""Peak memory of a process that commits a stream of records and restores them as one, for more and more records.

The process is a child of its own, which makes its records one at a time. Its peak is VmHWM: what `getrusage` says of a
child counts the memory of the parent that started it.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

from store import DEFAULT_LIMITS, StoreError, open_store

from . import command_line, ours, shape
from .command_line import count

_KIB_PER_MB = 1e6 / 1024


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak resident memory of one child, in MB."""

    records: int
    start_mb: float
    """Before the first record, with everything imported."""
    commit_mb: float
    restore_mb: float
    """After both."""


def measure(url: str, records: int, size: int, participants: int) -> Peak:
    """The peak of a child that works below `url`."""
    command = [sys.executable, "-m", __name__, url, str(records), str(size), str(participants)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Peak(**json.loads(result.stdout))


def peak_mb() -> float:
    """VmHWM of this process."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return round(int(line.split()[1]) / _KIB_PER_MB, 1)


async def _child(url: str, records: int, size: int, participants: int) -> Peak:
    each = -(-records // participants)
    spans = [(start, min(each, records - start)) for start in range(0, records, each)]
    async with open_store(url, "write", limits=DEFAULT_LIMITS) as store:
        start = peak_mb()
        await ours.commit(store, [shape.records(first, count, size) for first, count in spans])
        commit = peak_mb()
        if await ours.stream(store) != records:
            raise ValueError("not every record came back")
        return Peak(records, start, commit, peak_mb())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the child's peak as JSON."""
    parser = command_line.Command("bench.memory", __doc__)
    parser.add_argument("url", help="folder or s3:// URL of a store to write; a folder is made where there is none")
    parser.add_argument("records", type=count, help="of the checkpoint")
    parser.add_argument("size", type=count, help="bytes of a record, on average")
    parser.add_argument("participants", type=count, help="that share the records")
    options = parser.parse_args(arguments)
    try:
        peak = anyio.run(_child, options.url, options.records, options.size, options.participants)
    except StoreError as error:
        parser.error(f"no store below {options.url}: {error}")
    print(json.dumps(asdict(peak)))


if __name__ == "__main__":
    main()
