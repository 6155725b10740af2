"""The same episodes made durable with midflight and with what people would use instead, in one run.

    python -m bench.peers --json

Standing: `--episodes` make `--turns` turns each, of `--record-bytes` of text, and are then all held in their next model
call. What a turn costs is what being durable adds to the same run with nothing durable. Then SIGKILL, and a new process
goes on until all are held again.

Killed: episodes of many short turns, and others of a few long ones, before a backend that generates token by token,
killed `--kills` times after the same seeded times, then run to their end; the backend says what was done twice.

A peer that is not installed is named with what it misses. Peers are in the extra `peers`; PostgreSQL is Debian's.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .. import command_line
from ..command_line import above_zero, count, count_or_none, names
from . import killed, report, standing
from .killed import LOADS, Load, Needed
from .peers import PEERS
from .postgres import Server, postgres
from .protocol import Missing
from .report import Row
from .standing import ChildFailed, Size

SIZE, LOAD = Size(), Load()
"""What is measured unless options say otherwise."""


def row(name: str) -> Row:
    """A peer with its versions, or with what is missing."""
    peer = PEERS[name]()
    about = (name, peer.title, peer.saves, peer.by_checkpoint)
    try:
        return Row(*about, peer.versions())
    except ImportError as error:
        return Row(*about, {}, f"{error}; install the extra peers")


@contextmanager
def server_for(name: str, folder: Path) -> Iterator[Server | None]:
    """A server of its own for a peer that needs one. Raises Missing."""
    if not PEERS[name]().database:
        yield None
        return
    with postgres(folder / "postgres") as server:
        yield server


def measured(name: str, size: Size, loads: Mapping[str, tuple[Load, Needed]], folder: Path) -> Row:
    """One peer, with all its figures, or with why it has none."""
    found = row(name)
    if found.missing:
        return found
    folder.mkdir()
    folder.chmod(0o711)
    try:
        with server_for(name, folder) as server:
            versions = {**found.versions, **({"postgresql": server.version} if server else {})}
            stood = standing.measure(name, size, folder / "standing", server) if size.episodes else None
            redone = {
                which: killed.measure(name, load, needed, folder / which, server)
                for which, (load, needed) in loads.items()
            }
    except (Missing, ChildFailed) as error:
        return replace(found, missing=str(error))
    return replace(found, versions=versions, stood=stood, redone=redone, load=round(os.getloadavg()[1], 1))


def figures_of(text: str) -> dict[str, Any]:
    """The figures that `--figures` wrote. Raises ArgumentTypeError."""
    try:
        return report.load_figures(command_line.to_read(text))
    except (ValueError, KeyError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"{text} has no figures that --figures wrote: {error}") from error


def parsed_from(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line.Command("bench.peers", __doc__)
    parser.add_list("--peers", names(PEERS), list(PEERS), "which of them")
    parser.add_argument(
        "--episodes", type=count_or_none, default=SIZE.episodes, help="in flight at once; 0 leaves this out"
    )
    parser.add_argument("--turns", type=count, default=SIZE.turns, help="of an episode")
    parser.add_argument("--record-bytes", type=count, default=SIZE.record_bytes, help="of text in a turn")
    parser.add_argument(
        "--longest", type=above_zero, default=SIZE.longest_s, help="seconds that each run of a peer in flight may take"
    )
    parser.add_list("--loads", names(LOADS), list(LOADS), "which of the runs that are killed")
    parser.add_argument("--kill-episodes", type=count, help="of each run that is killed; default: of each its own")
    parser.add_argument(
        "--at-once", type=count, default=LOAD.at_once, help="episodes in flight in a run that is killed"
    )
    parser.add_argument(
        "--kills", type=count_or_none, default=LOAD.kills, help="of each of these runs; 0 leaves them out"
    )
    parser.add_argument(
        "--interval", type=above_zero, default=LOAD.interval_s, help="seconds between midflight's checkpoints"
    )
    parser.add_argument("--seed", type=int, default=LOAD.seed, help="of the times of the kills")
    parser.add_argument(
        "--folder", type=command_line.folder, help="where to work, and what is left there; default: a temporary folder"
    )
    parser.add_argument("--figures", type=command_line.to_write, help="write all figures to this file")
    parser.add_argument("--plot", type=command_line.to_write, help="draw them to this SVG file")
    parser.add_argument(
        "--from",
        dest="earlier",
        metavar="FILE",
        type=figures_of,
        help="measure nothing: show a file that --figures wrote",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    if not parsed.earlier and not parsed.episodes and not parsed.kills:
        parser.error("--episodes and --kills are both 0: that measures nothing")
    if parsed.plot is not None:
        command_line.can_draw(parser, "--plot")
    return parsed


def loads_from(parsed: argparse.Namespace) -> dict[str, Load]:
    """The runs that are killed."""
    if not parsed.kills:
        return {}
    wishes = {"at_once": parsed.at_once, "kills": parsed.kills, "interval_s": parsed.interval, "seed": parsed.seed}
    wishes |= {"episodes": parsed.kill_episodes} if parsed.kill_episodes else {}
    return {name: replace(LOADS[name], **wishes) for name in parsed.loads}


def measure(parsed: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All that the command line asks for, one after the other."""
    size, loads = Size(parsed.episodes, parsed.turns, parsed.record_bytes, parsed.longest), loads_from(parsed)
    folder.chmod(0o711)  # Another user's server has a folder in it.
    needed = {name: (load, killed.need(load, folder / f"needed-{name}")) for name, load in loads.items()}
    rows, found = [], dict[str, Any]()
    for name in parsed.peers:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(measured(name, size, needed, folder / name))
        where = {"python": platform.python_version(), "cores": os.cpu_count()}
        found = report.summary(rows, size, loads, where)
        if parsed.figures:  # After each, since a run may take an hour.
            parsed.figures.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parsed = parsed_from(arguments)
    if parsed.earlier:
        found = parsed.earlier
    else:
        with nullcontext(parsed.folder) if parsed.folder else TemporaryDirectory(prefix=".bench-", dir=".") as name:
            found = measure(parsed, Path(name).resolve())
    print(report.tables(found))
    if parsed.plot:
        report.draw(found, parsed.plot)
    if parsed.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
