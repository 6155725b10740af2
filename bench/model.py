"""The model stage: cutting what is in flight, the cost of the proxy, the capture ledger, and what a kill costs.

    python -m bench.model --json

Four parts, each with its own limit and its own way of measuring, and a program of its own: `bench.flying` (generations
in flight; each size is a process), `bench.proxying` (overhead), `bench.ledger_rows` and `bench.model_kill`. The last
line has `prepare_s` by size; `overhead_us_per_token` and `overhead_ms_per_call` of a model server with cuts, medians by
the wall clock; `ledger_rows_per_s` with 64 lives at once; and the tokens that were continued and generated twice after
a kill.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import command_line, ledger_rows, model_kill, proxying
from .command_line import count, counts

SIZES = (1_000, 16_000, 64_000)
TOKENS, PROMPT = 64, 256
LIVES = 64


def _prepare_s(sizes: Sequence[int], tokens: int) -> dict[str, float]:
    """Seconds by size; prints each table."""
    found = {}
    for flights in sizes:
        command = [sys.executable, "-m", "bench.flying", "--flights", str(flights), "--json"]
        command += ["--tokens", str(tokens), "--prompt", str(PROMPT)]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
        print(*lines[:-1], sep="\n", end="\n\n", flush=True)
        found[str(flights)] = json.loads(lines[-1])["seconds"]["prepare"]
    return found


def _overhead(folder: Path, load: proxying.Load) -> dict[str, float]:
    costs = proxying.measure(folder, load)
    proxying.print_table(costs, load)
    cuts = costs["cuts"]
    return {
        "overhead_us_per_token": round(statistics.median(cuts.us_per_token), 2),
        "overhead_ms_per_call": round(statistics.median(cuts.ms_per_call), 3),
    }


def _ledger(folder: Path, rows: int) -> dict[str, float]:
    figures = ledger_rows.measure_ledger(rows, LIVES, str(folder))
    print(f"\nledger: {figures.rows_per_s} rows/s of {figures.lives} lives, {figures.cpu_us_per_row} µs of cpu a row")
    print(f"bare writes and fsyncs: {figures.limit_rows_per_s} rows/s")
    return {"ledger_rows_per_s": figures.rows_per_s}


def _kill(folder: Path, kill: model_kill.Kill) -> dict[str, int]:
    outcome = model_kill.measure(folder, kill)
    print(
        f"\n{kill.calls} calls cut at {kill.cut} tokens and more, killed {kill.lost} tokens each after the checkpoint:"
    )
    print(f"{outcome.continued} of {outcome.needed} tokens continued, {outcome.regenerated} generated twice")
    print(f"on paper {kill.calls * kill.lost} have to be; {outcome.restored_s:.1f} s from start to the last reply")
    return {"tokens_continued": outcome.continued, "tokens_regenerated": outcome.regenerated}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    load, kill = proxying.Load(), model_kill.Kill()
    parser = command_line.Command("bench.model", __doc__)
    parser.add_list("--flights", counts, SIZES, "numbers of generations in flight")
    parser.add_argument("--tokens", type=count, default=TOKENS, help="that each generation has when it is cut")
    parser.add_argument("--rounds", type=count, default=load.rounds, help="of calls through the proxies")
    parser.add_argument("--calls", type=count, default=load.calls, help="of each length in a round")
    parser.add_argument("--rows", type=count, default=4096, help="of the ledger")
    parser.add_argument("--killed", type=count, default=kill.calls, help="calls in flight at the kill")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    load = proxying.Load(parsed.rounds, parsed.calls)
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as name:
        folders = [Path(name) / part for part in ("proxies", "ledger", "kill")]
        for folder in folders:
            folder.mkdir()
        found: dict[str, Any] = {"prepare_s": _prepare_s(parsed.flights, parsed.tokens)}
        found |= _overhead(folders[0], load)
        found |= _ledger(folders[1], parsed.rows)
        found |= _kill(folders[2], model_kill.Kill(calls=parsed.killed))
    if parsed.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
