"""The controller of a scenario: plays the trainer's part through coordination, over HTTP links to real processes.

What it knows of rollouts is what a collector knows: which are open (dispatched and not released), which were restored
and wait for their next life, and which results are durable. The last ones are the stage's, and outlive it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import httpx
from anyio.abc import TaskGroup

from orchestrator.adoption import Standing as Found
from orchestrator.coordination import restore, resume, retire
from orchestrator.errors import ControlFailed
from orchestrator.fleet import Fleet, Member, ask_all, failures_of
from orchestrator.rounds import Round, RoundLimits, checkpoint
from participants import Floor, Message, Status
from participants.data import LIFE_HEADER
from participants.fences import position
from participants.routing import worker_of
from participants.wire import Blocker, Dispatched, Done, Finished, Refused, Release, Submit, Submitted
from store import Controller as Claimed
from store import Life, Ref, Store, open_checkpoint
from tests.support.waiting import until_asked

from .tasks import Task

Answer = TypeVar("Answer", bound=Message)
Standing = Callable[[Round], Awaitable[None]]
LIMITS = RoundLimits(prepare_timeout_s=10, more_time_s=0, commit_timeout_s=30, publish_timeout_s=15, lease_s=60)
RESTORE_S = 30.0
RESULT_S = 30.0
"""How long a result is waited for."""
RUN_S = 60.0


async def _nothing(opened: Round) -> None:
    """The default of what happens while everything stands still."""


@dataclass(slots=True)
class Controller:
    """One claim. `Stage.controller` makes it; leaving that context is the controller's crash."""

    store: Store
    claimed: Claimed
    fleet: Fleet
    output: dict[str, Finished]
    """Durable results by rollout."""
    http: httpx.AsyncClient
    """Carries the control token; for data calls that a test makes itself."""
    group: TaskGroup
    open: dict[str, Life] = field(default_factory=dict)
    restored: dict[str, Life] = field(default_factory=dict)
    """As the checkpoint has them."""
    restarts: dict[str, Life] = field(default_factory=dict)
    """Of the head: to be started over."""
    results: dict[Life, Finished] = field(default_factory=dict)
    answers: dict[Life, httpx.Response] = field(default_factory=dict)
    """What an agent's own `/run` answered."""
    dispatched: int = 0
    _news: anyio.Event = field(default_factory=anyio.Event)
    _rows: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """Of its claim."""
        return self.claimed.epoch

    def next_life(self, rollout_id: str) -> Life:
        """The next life of a rollout; it is open from here on."""
        before = self.restored.pop(rollout_id, None) or self.restarts.pop(rollout_id, None)
        life = Life(rollout_id, self.epoch, before.attempt + 1 if before else 0, self.dispatched)
        self.dispatched += 1
        self.open[rollout_id] = life
        return life

    # Dispatch

    async def submit(self, tasks: Sequence[Task]) -> list[Life]:
        """Dispatch the next life of each. Raises AssertionError for a refusal."""
        lives = [self.next_life(task.rollout_id) for task in tasks]
        refused = await self.dispatch({life: task.row for life, task in zip(lives, tasks, strict=True)})
        assert not refused, refused
        return lives

    async def dispatch(self, rows: Mapping[Life, Mapping[str, Any]]) -> list[Refused]:
        """Send these lives to the environment's workers that own them; what was refused."""
        refused: list[Refused] = []
        for member in self.fleet.of_kind("environment"):
            own = [life for life in rows if worker_of(life.rollout_id, member.capabilities.workers) == _number(member)]
            episodes = tuple(Dispatched(life=life, row=dict(rows[life])) for life in own)
            if episodes:
                refused += (await self.ask(member, Submit, Submitted, episodes=episodes)).refused
        return refused

    async def run_at_agent(self, tasks: Sequence[Task], kind: str = "agent") -> list[Life]:
        """Dispatch the next life of each to the agent's own `/run`, or that of another kind, with a flat row."""
        lives = [self.next_life(task.rollout_id) for task in tasks]
        for life, task in zip(lives, tasks, strict=True):
            self.group.start_soon(self._post_run, life, task, kind)
        return lives

    async def _post_run(self, life: Life, task: Task, kind: str) -> None:
        url = self.fleet.of_kind(kind)[0].capabilities.urls[0]
        async with httpx.AsyncClient(timeout=RUN_S) as http:
            try:
                answer = await http.post(f"{url}/run", json=task.row, headers={LIFE_HEADER: str(life)})
            except httpx.HTTPError:
                return  # The server was killed: the answer never comes.
        self.answers[life] = answer
        self._tell()

    # Results

    async def read_results(self, member: Member) -> None:
        """Keep what one worker of the environment sends, until it is gone."""
        try:
            async with aclosing(member.link.results(self.fleet.envelope(member), 0)) as results:
                async for finished in results:
                    self.results.setdefault(finished.life, finished)
                    self._tell()
        except ConnectionError:
            return  # It was killed.

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def wait(self, *lives: Life) -> list[Finished]:
        """The results of these lives, in order; nothing is released. Raises AssertionError where they do not come."""
        await self._until(lambda: all(life in self.results for life in lives), lives)
        return [self.results[life] for life in lives]

    async def answer(self, life: Life) -> httpx.Response:
        """What the agent's own `/run` answers. Raises AssertionError where it does not."""
        await self._until(lambda: life in self.answers, (life,))
        return self.answers[life]

    async def _until(self, so: Callable[[], bool], lives: Sequence[Life]) -> None:
        with anyio.move_on_after(RESULT_S):
            while not so():
                await self._news.wait()
            return
        left = [str(life) for life in lives if life not in self.results and life not in self.answers]
        raise AssertionError(f"no result of {left} in {RESULT_S:g} s\n{await self.told()}")

    async def deliver(self, *lives: Life) -> dict[str, Finished]:
        """Wait for the results of these lives, or of all that are open; make them durable, and release them."""
        results = await self.wait(*(lives or tuple(self.open.values())))
        self.output |= {result.life.rollout_id: result for result in results}
        await self.release(*(result.life for result in results))
        return {result.life.rollout_id: result for result in results}

    async def release(self, *lives: Life) -> None:
        """Their results are durable."""
        for life in lives:
            self.open.pop(life.rollout_id)
        floor = min(map(position, self.open.values()), default=Floor(self.epoch, self.dispatched))
        self.fleet = self.fleet.with_floor(floor)
        await self.ask_everybody(Release, Done, lives=tuple(lives))

    # Checkpoints

    async def checkpoint(
        self, standing: Standing = _nothing, *, scope: Sequence[Life] | None = None, limits: RoundLimits = LIMITS
    ) -> Round:
        """Take one of everything that is open or restored; `standing` is awaited while all stand still."""
        async with checkpoint(self.fleet, self.claimed, limits) as opened:
            await standing(opened)
            restarts = opened.standstill.restarts
            every = [*self.open.values(), *self.restored.values()]
            taken = [life for life in every if life not in restarts] if scope is None else scope
            opened.take(scope=taken, restarts=[*sorted(restarts, key=str), *self.restarts.values()])
        return opened

    async def checkpoint_while(self, act: Callable[[], None]) -> Round:
        """Take one, and act once it waits for a step in flight: what lets that step go on."""
        taken: list[Round] = []

        async def take() -> None:
            taken.append(await self.checkpoint())

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            await until_asked(lambda: self._waits_or(taken))
            act()
        return taken[0]

    async def _waits_or(self, taken: list[Round]) -> bool:
        return bool(taken or await self.waits_for())

    async def waits_for(self) -> list[Blocker]:
        """What an open prepare waits for."""
        statuses = (await self.statuses()).values()
        return [blocker for status in statuses if status.phase == "preparing" for blocker in status.blockers]

    async def restore_head(
        self,
        ref: Ref | None = None,
        only: Sequence[str] | None = None,
        *,
        standing: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Restore what the head, or another checkpoint, has and is not done or open; then `go_on` dispatches it.

        `standing` is awaited once all have activated, before they are told to resume.
        """
        ref = ref or self.claimed.head
        if ref is None:
            return
        manifest = (await open_checkpoint(self.store, ref)).manifest
        wanted = [life for life in manifest.scope if only is None or life.rollout_id in only]
        scope = [life for life in wanted if life.rollout_id not in self.output and life.rollout_id not in self.open]
        if scope:
            round_id = self.claimed.next_round()
            await restore(self.fleet, round_id, ref, scope, timeout_s=RESTORE_S)
            if standing is not None:
                await standing()
            await resume(self.fleet, round_id)
        self.restored = {life.rollout_id: life for life in scope}
        known = self.output.keys() | self.open.keys()
        self.restarts = {life.rollout_id: life for life in manifest.restarts if life.rollout_id not in known}

    async def take_on(self, found: Found) -> None:
        """Let what is whole go on, retire what is broken, and restore that from the head or have it started over."""
        self.fleet = self.fleet.with_floor(found.floor(self.epoch))
        self.open = {life.rollout_id: life for life in found.whole}
        if found.broken:
            await self.retire(*found.broken)
        await self.restore_head()
        self.restarts |= {life.rollout_id: life for life in found.broken if life.rollout_id not in self.restored}

    async def go_on(self, tasks: Sequence[Task]) -> list[Life]:
        """Dispatch those of these tasks that are not done; each must have been restored."""
        left = [task for task in tasks if task.rollout_id not in self.output]
        missing = [task.rollout_id for task in left if task.rollout_id not in self.restored]
        assert not missing, f"not restored: {missing}; restored {sorted(self.restored)}"
        return await self.submit(left)

    async def retire(self, *lives: Life, timeout_s: float = 10.0) -> frozenset[Life]:
        """Retire lives everywhere; those that did not stop in time."""
        left = await retire(self.fleet, lives, timeout_s=timeout_s)
        self.open = {rollout_id: life for rollout_id, life in self.open.items() if life not in lives}
        return left

    # Asking

    async def ask(self, member: Member, kind: type[Message], answer: type[Answer], **fields: Any) -> Answer:
        """One control call to one member."""
        return await member.link.send(kind(**self.fleet.envelope(member), **fields), answer)

    async def ask_everybody(self, kind: type[Message], answer: type[Answer], **fields: Any) -> None:
        """One control call to all. Raises ControlFailed."""
        outcomes = await ask_all(self.fleet.members, lambda m: kind(**self.fleet.envelope(m), **fields), answer)
        if failures := failures_of(outcomes):
            raise ControlFailed(failures)

    async def statuses(self) -> dict[str, Status]:
        """Where every member stands that answers, by name."""
        found: dict[str, Status] = {}
        for member in self.fleet.members:
            with anyio.move_on_after(2):
                try:
                    found[member.name] = await member.link.status()
                except ConnectionError:
                    continue
        return found

    async def count(self, kind: str, name: str) -> int:
        """One of the counts of a kind's status, over all its workers."""
        statuses = await self.statuses()
        return sum(status.counts.get(name, 0) for status in statuses.values() if status.kind == kind)

    async def until_count(self, kind: str, name: str, least: int) -> None:
        """Until a kind counts so many: of what no witness tells."""

        async def enough() -> bool:
            return await self.count(kind, name) >= least

        await until_asked(enough, RESULT_S)

    async def left(self) -> dict[str, dict[str, int]]:
        """What each member still holds, where that is anything; empty once all is released."""
        ignored = ("refused", "tokens_continued")
        counts = {name: status.counts for name, status in (await self.statuses()).items()}
        kept = {name: {k: v for k, v in each.items() if v and k not in ignored} for name, each in counts.items()}
        return {name: each for name, each in kept.items() if each}

    async def told(self) -> str:
        """For messages: where everybody stands."""
        lines = (f"{n}: {s.phase} {s.counts} {s.blockers} {s.last_errors}" for n, s in (await self.statuses()).items())
        return "\n".join(lines)


def _number(member: Member) -> int:
    return member.capabilities.worker


@asynccontextmanager
async def bare_errors() -> AsyncIterator[None]:
    """What a task group wraps, without the wrapping: a failed assertion is told as itself."""
    try:
        yield
    except BaseExceptionGroup as error:
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
