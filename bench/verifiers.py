"""Throughput of each verifier: verifies a second and processor time of one, beside a bare limit in the same run.

    python -m bench.verifiers --json

A verifier is tried with the cases and the peers of its own `conformance()`: each is seeded and verified in a life of
its own, those of one cohort at the same time. Its limit does the least work that does the job: the bare library, a bare
process. Rounds of both alternate, so that a noisy machine troubles both. Processor time is that of this process and
of all below it, which other processes disturb least; it has the resolution of the kernel's ticks, 10 ms over a round.
"""

import dataclasses
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import anyio

from participants import ResourcesServer
from participants.cases import Case, Conformance, response_of
from participants.data import Request
from participants.serving import find_class, make_resources
from store import Life

from . import command_line
from .bare_answers import bare_judge, bare_library
from .bare_programs import bare_contest, bare_tests
from .command_line import count, names

Work = Callable[[Case], Coroutine[Any, Any, None]]
"""One verify, or what its limit does instead."""
_TICKS = os.sysconf("SC_CLK_TCK")
_TIMES = slice(11, 15)
"""Of proc(5) stat, behind the name: own and children's time, in user and kernel mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one verifier is measured."""

    server: str
    """`module:Class`."""
    limit: Callable[[Conformance], AbstractAsyncContextManager[Work]]
    """Opens what the verifier is compared with."""
    against: str
    """The same in words."""
    count: int
    """Verifies of a round."""
    at_once: int
    """Cohorts, or cases without one, in flight."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the class, over those of its conformance."""


@asynccontextmanager
async def _bare_comparison(given: Conformance) -> AsyncIterator[Work]:
    """The judge alone, once for each answer, and a reading of what it says."""
    [judge] = given.peers.values()

    async def compare(case: Case) -> None:
        metadata = {"response_1": case.said, "response_2": case.said}
        asked = {"input": case.row["responses_create_params"]["input"], "metadata": metadata}
        reply = await judge.call(Request(route="/v1/responses", body=asked))
        json.loads(reply.body["output"][0]["content"][0]["text"])

    yield compare


TRIALS: Mapping[str, Trial] = {
    "equivalence_llm_judge": Trial(
        server="participants.verifiers.equivalence_llm_judge:EquivalenceLLMJudgeServer",
        limit=bare_judge,
        against="one call of the stand-in judge",
        count=600,
        at_once=64,
    ),
    "math_with_judge": Trial(
        server="participants.verifiers.math_with_judge:MathWithJudgeServer",
        limit=bare_library,
        against="math-verify in this process, without limits",
        count=300,
        at_once=32,
    ),
    "code_gen": Trial(
        server="participants.verifiers.code_gen:CodeGenServer",
        limit=bare_tests,
        against="the same programs, a bare process a test",
        count=54,
        at_once=2,
    ),
    "competitive_coding_challenges": Trial(
        server="participants.verifiers.competitive_coding_challenges:CompetitiveCodingChallengesServer",
        limit=bare_contest,
        against="the same compiler and scripts without a sandbox",
        count=54,
        at_once=2,
    ),
    "genrm_compare": Trial(
        server="participants.verifiers.genrm_compare:GenRMCompareServer",
        limit=_bare_comparison,
        against="the stand-in judge, once an answer",
        count=2000,
        at_once=8,
    ),
}
"""By the verifier's name: each one that ships has a line here."""


@dataclass(slots=True)
class Rounds:
    """What rounds of one thing took."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one verifier; a ratio is the median over the pairs of rounds."""

    verifies_per_s: float
    cpu_ms_per_verify: float
    limit_per_s: float
    limit_cpu_ms: float
    ratio: float
    """Time of a verify to that of the limit."""
    cpu_ratio: float
    """The same of processor time."""
    against: str


def cpu_of_tree() -> float:
    """Seconds of processor time of this process, of all live ones below it, and of those that they have waited for."""
    parents, times = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # It has ended.
            continue
        pid = int(path.parent.name)
        parents[pid], times[pid] = int(fields[1]), sum(map(int, fields[_TIMES]))
    return sum(times[pid] for pid in times if _is_below(pid, parents)) / _TICKS


def _is_below(pid: int, parents: Mapping[int, int]) -> bool:
    while pid not in (0, os.getpid()):
        pid = parents.get(pid, 0)
    return pid != 0


def cohorts_of(cases: Sequence[Case], count: int) -> Iterator[list[Case]]:
    """Whole cohorts, again and again, of `count` cases in all or a few more."""
    groups: dict[str, list[Case]] = {}
    for number, case in enumerate(cases):
        groups.setdefault(case.cohort or f"alone {number}", []).append(case)
    given = 0
    for group in cycle(groups.values()):
        if given >= count:
            return
        given += len(group)
        yield group


async def _all(groups: Iterable[list[Case]], work: Work, at_once: int) -> None:
    limiter = anyio.CapacityLimiter(at_once)

    async def together(group: list[Case]) -> None:
        async with limiter, anyio.create_task_group() as inner:
            for case in group:
                inner.start_soon(work, case)

    async with anyio.create_task_group() as outer:
        for group in groups:
            outer.start_soon(together, group)


class _Verifying:
    """Verifies a case in a life of its own, as an agent's rollout would."""

    def __init__(self, server: ResourcesServer) -> None:
        self._server = server
        self._number = 0

    async def __call__(self, case: Case) -> None:
        self._number += 1
        life = Life(f"bench-{self._number}", 1, 0, self._number)
        await self._server.handle(Request(route="/seed_session", body=dict(case.row), life=life))
        body = {**case.row, "response": response_of(case)}
        reply = await self._server.handle(Request(route="/verify", body=body, life=life))
        assert reply.ok, reply.body
        self._server.finish(life)


async def _measure(trial: Trial, repeat: int) -> Figures:
    found = find_class("bench", trial.server, ResourcesServer)
    given = found.conformance()
    options = {**given.options, **trial.options}
    server = make_resources("bench", trial.server, found, options, "bench", given.peers)
    ours, bare = Rounds(), Rounds()
    async with trial.limit(given) as limit:
        verifying = _Verifying(server)
        try:
            for number in range(repeat + 1):
                for rounds, work in ((bare, limit), (ours, verifying)):
                    await _round(trial, given.cases, rounds if number else Rounds(), work)  # The first one warms up.
        finally:
            await server.aclose()
    return _figures(trial, ours, bare)


async def _round(trial: Trial, cases: Sequence[Case], rounds: Rounds, work: Work) -> None:
    groups = list(cohorts_of(cases, trial.count))
    began, cpu = time.perf_counter(), cpu_of_tree()
    await _all(groups, work, trial.at_once)
    verifies = sum(map(len, groups))
    rounds.wall_s.append((time.perf_counter() - began) / verifies)
    rounds.cpu_s.append((cpu_of_tree() - cpu) / verifies)


def _figures(trial: Trial, ours: Rounds, bare: Rounds) -> Figures:
    def ratio(mine: Sequence[float], limits: Sequence[float]) -> float:
        return round(statistics.median(a / max(b, 1e-9) for a, b in zip(mine, limits, strict=True)), 2)

    return Figures(
        verifies_per_s=round(1 / statistics.median(ours.wall_s), 1),
        cpu_ms_per_verify=round(statistics.median(ours.cpu_s) * 1000, 3),
        limit_per_s=round(1 / statistics.median(bare.wall_s), 1),
        limit_cpu_ms=round(statistics.median(bare.cpu_s) * 1000, 3),
        ratio=ratio(ours.wall_s, bare.wall_s),
        cpu_ratio=ratio(ours.cpu_s, bare.cpu_s),
        against=trial.against,
    )


def _print(name: str, figures: Figures) -> None:
    ours = f"{figures.verifies_per_s:9.1f}/s {figures.cpu_ms_per_verify:9.3f} ms of cpu"
    ratios = f"ratio {figures.ratio:6.2f}, of cpu {figures.cpu_ratio:6.2f}"
    print(f"{name:30} {ours}   {ratios}   {figures.limit_per_s:9.1f}/s: {figures.against}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.verifiers", __doc__)
    parser.add_list("--only", names(sorted(TRIALS)), None, f"these verifiers of {', '.join(sorted(TRIALS))}")
    parser.add_argument("--count", type=count, help="verifies of a round; default: of each verifier its own")
    parser.add_argument("--repeat", type=count, default=5, help="rounds of each")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parsed = parser.parse_args(arguments)
    found = {}
    for name in parsed.only or TRIALS:
        trial = TRIALS[name]
        trial = dataclasses.replace(trial, count=parsed.count or trial.count)
        figures = anyio.run(_measure, trial, parsed.repeat)
        _print(name, figures)
        found[name] = dataclasses.asdict(figures)
    if parsed.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
