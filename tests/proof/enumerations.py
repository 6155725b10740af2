"""The parts of the proof that enumerate, and the one that really kills, with the code of the tests of the store.

crash states   what a power loss after each file operation may leave on the disk    tests/crash
schedules      every order of what writers and pruners ask of one store              tests/simulation
kills          processes that commit for ever, ended by SIGKILL                      tests/crash
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import anyio

from tests.crash import scenes
from tests.crash.explore import Tried
from tests.crash.killing import Witness, kill_again_and_again
from tests.crash.stage import plain_backend, wide_backend
from tests.simulation.exploration import Violation
from tests.simulation.scenarios import LARGE, SCENES, SMALL
from tests.simulation.worlds import explore
from tests.support.crash_states import QUICK, THOROUGH
from tests.support.file_ops import RecordingOps
from tests.support.oplog import SerialRecordingOps

from .part import Report, Task

OPENING = "opening"
WORK = ("seal", OPENING, "claim", "commit", "prune")
"""What is crashed, the shortest first."""
KILLS = 10
"""In one store; then another one is begun."""


# Crash states


def crash_states(first: int, seeds: int) -> Iterator[Task]:
    """Of each piece of work a sample first, then more of calls made one by one, then of many at a time."""
    for in_flight in (0, 1, 16):
        yield from (partial(crashed, name, in_flight) for name in WORK if name != OPENING or not in_flight)


def crashed(name: str, in_flight: int, until: float, ops: RecordingOps | None = None) -> Report:
    """The crash states of one piece of work; `in_flight` of 0 is for a sample of them."""
    tried = anyio.run(_explored, name, in_flight, until, ops)
    report = Report(violations=[f"crash states of {name}: {problem}" for problem in tried.problems])
    report.counts.update({"crash points": tried.points, "crash states": tried.states, "went on": tried.went_on})
    if tried.complete:
        report.reached[f"all of {name}"] += 1
    return report


async def _explored(name: str, in_flight: int, until: float, ops: RecordingOps | None) -> Tried:
    with tempfile.TemporaryDirectory(prefix="midflight-proof-") as folder:
        if name == OPENING:
            return await scenes.explore_opening(Path(folder), ops, until=until)
        recorder = ops or (SerialRecordingOps() if in_flight else RecordingOps())
        make, effort = (wide_backend, THOROUGH) if in_flight else (plain_backend, QUICK)
        return await scenes.explore_scene(
            name, Path(folder), recorder, make, effort, in_flight=max(1, in_flight), until=until
        )


def crashes_told(report: Report) -> str:
    """Their words in the sentence."""
    c = report.counts
    return (
        f"{c['crash points']:,} crash points of opening, claim, commit, publish, seal and prune with "
        f"{c['crash states']:,} states that a disk may be left in"
    )


# Schedules


def schedules(first: int, seeds: int) -> Iterator[Task]:
    """With few faults, then with more."""
    yield from (partial(scheduled, scene, faults) for scene, faults in SMALL.items())
    yield from (partial(scheduled, scene, faults) for scene, faults in LARGE.items() if SMALL.get(scene) != faults)


def scheduled(scene: str, faults: int, until: float) -> Report:
    """Every schedule of one scene with up to so many faults; nothing is counted of what had to stop before its end."""
    report, chosen = Report(), SCENES[scene]()
    try:
        tally = explore(chosen.world, chosen.plays, faults=faults, until=until).tally
    except Violation as violation:
        report.violations.append(f"{scene}, up to {faults} faults: {violation}")
        return report
    if tally.complete:
        report.counts.update({"explorations": 1, "schedules": tally.schedules, "states": tally.states})
        report.reached[f"every schedule of {scene}"] += 1
    return report


def schedules_told(report: Report) -> str:
    """Their words in the sentence."""
    c = report.counts
    return (
        f"{c['schedules']:,} interleavings of writers and pruners, all that {c['explorations']} scenes have, through "
        f"{c['states']:,} states"
    )


# Kills


def kills(first: int, seeds: int) -> Iterator[Task]:
    """A store after the other."""
    yield from (partial(killed, seed) for seed in count(1))


def killed(seed: int, until: float) -> Report:
    """Processes that commit for ever, killed at moments that a seed draws."""
    report = Report()
    with tempfile.TemporaryDirectory(prefix="midflight-proof-") as folder:
        witness = Witness(str(Path(folder) / "store"), {})
        try:
            anyio.run(kill_again_and_again, KILLS, witness, seed, until)
        except AssertionError as error:
            report.violations.append(str(error))
    report.counts.update({"kills": sum(witness.killed.values()), "checkpoints": witness.cursor})
    report.reached.update({f"killed after: {word}": number for word, number in witness.killed.items()})
    return report


def kills_told(report: Report) -> str:
    """Their words in the sentence."""
    c = report.counts
    return f"{c['kills']:,} processes ended by SIGKILL in the middle of {c['checkpoints']:,} checkpoints"
