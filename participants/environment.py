"""The environment server: owns episodes, from the row to the result.

An episode is taken through `participants.episode.EPISODE_STEPS`: seed the resources session, open the agent session,
activate the agent, verify, close both sessions. Then its result waits to be acknowledged.

Results leave only while admission is open, are kept until acknowledged, and are exported like any other state. An
episode that fails ends with a typed failure, never with a reward of 0; one whose life was retired or superseded ends
with nothing.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from store import Life

from .containment import own_task
from .data import Peer, Reply, Request, uncaptured
from .episode import (
    EPISODE_STEPS,
    Episode,
    EpisodeRunner,
    body_of_run,
    export_episode,
    failed_outside,
    import_episode,
    is_terminal,
    reply_of_run,
)
from .errors import Code, ParticipantError
from .gate import Gate
from .holder import Held, Holder
from .hooks import each
from .owner import Result
from .wire import Dispatched, Modes, Refused
from .work import Count, of_response

__all__ = ["EnvironmentServer", "Result"]

log = logging.getLogger("midflight.environment")


@dataclass(slots=True)
class _State:
    episode: Episode | None = None
    running: bool = False
    finished: anyio.Event = field(default_factory=anyio.Event)
    result: int = 0
    """The number of its result; 0 without one."""


class EnvironmentServer(Holder[_State]):
    """Runs episodes over an agent and a resources server."""

    kind = "environment"
    dispatches = True
    modes = Modes(checkpoint_mode="exported")

    def __init__(
        self,
        agent: Peer,
        resources: Mapping[str, Peer],
        *,
        name: str = "main",
        max_wall_s: float = 0.0,
        gate: Gate | None = None,
    ) -> None:
        """`resources` maps a role to its peer; a row names one by `resources`, its task set, or there is only one."""
        super().__init__(name, gate=gate)
        self._runner = EpisodeRunner(
            self.role, self.gate, lambda held: agent, resources, EPISODE_STEPS, max_wall_s=max_wall_s
        )
        self._group: TaskGroup | None = None
        self._results: dict[int, Result] = {}
        """Not acknowledged yet, by number, in order."""
        self._numbered = 0
        self._news = anyio.Event()
        """Set, and replaced, when there is a result or an epoch that readers have to look at."""

    @asynccontextmanager
    async def run(self) -> AsyncIterator["EnvironmentServer"]:
        """Own the episodes' tasks while the context is open."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                yield self
            finally:
                self._group = None
                group.cancel_scope.cancel()

    # What a controller does

    async def dispatch(self, life: Life, row: Mapping[str, Any]) -> None:
        """Start, or continue after a restore, the episode of a life; a repeat joins the running one."""
        asked = body_of_run(life, row)
        held = await self.enter(life, dispatches=True)
        if held.state.running and held.state.episode is not None:
            held.state.episode.check_same(asked, life)
        await self._start(held, asked)

    async def submit(self, episodes: Sequence[Dispatched], epoch: int) -> list[Refused]:
        """Start or continue many; those that cannot be are named, and hold up no other."""
        refused: dict[Life, Refused] = {}

        async def begin(episode: Dispatched) -> None:
            life = episode.life
            await anyio.lowlevel.checkpoint()  # Very many may come at once: others get their turns.
            try:
                if life.epoch != epoch:
                    raise ParticipantError(Code.STALE_EPOCH, f"{life} is not of the call's epoch {epoch}")
                await self.dispatch(life, episode.row)
            except ParticipantError as error:
                refused[life] = _refused(life, error)
            except Exception as error:  # A defect costs its episode, not the call.
                log.exception("%s cannot be begun", life)
                refused[life] = _refused(life, ParticipantError(Code.INTERNAL, f"{error!r:.300}"))

        await each(episodes, begin)
        return list(refused.values())

    async def _start(self, held: Held[_State], asked: Episode) -> None:
        state = held.state
        if self._group is None:
            raise RuntimeError("the environment server is used outside its run()")
        if state.episode is None:
            state.episode = asked
        if not state.running:
            state.running = True
            self._group.start_soon(self._run_episode, held, state.episode)

    async def results(self) -> AsyncIterator[Result]:
        """Finished episodes that are not acknowledged, in order, each once; none while admission is closed."""
        after = 0
        while (result := await self.next_result(after)) is not None:
            after = result.n
            yield result

    async def next_result(self, after: int, epoch: int | None = None) -> Result | None:
        """The first unacknowledged result behind `after`; None once the known epoch is not `epoch`."""
        while epoch is None or self.epoch == epoch:
            news = self._news
            if self.gate.closed:
                await self.gate.wait_open()
            elif (found := self._first_behind(after)) is not None:
                return found
            else:
                await news.wait()
        return None

    def _first_behind(self, after: int) -> Result | None:
        if not self._results or after >= self._numbered:
            return None
        oldest = next(iter(self._results))
        numbers = range(max(after + 1, oldest), self._numbered + 1)
        return next((self._results[n] for n in numbers if n in self._results), None)

    def check_after(self, after: int) -> None:
        """Refuse a reader that has more results than this process has numbered."""
        if after > self._numbered:
            problem = f"{self.role} has numbered {self._numbered} results, and the reader has {after}: begin at 0"
            raise ParticipantError(Code.INVALID_REQUEST, problem, {"numbered": self._numbered})

    def _tell_readers(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def adopted(self, epoch: int) -> None:
        """Readers of an older epoch are sent away."""
        super().adopted(epoch)
        self._tell_readers()

    def acknowledge(self, life: Life) -> None:
        """The controller has the result for good: forget the episode."""
        self.finish(life)

    async def handle(self, request: Request) -> Reply:
        """`POST /run`: run one episode to its end; a duplicate joins it or gets the same result."""
        if request.route == "/acknowledge" and request.life is not None:
            self.check_adopted(request.life)
            self.acknowledge(request.life)
            return Reply(200, {})
        if request.route != "/run" or not isinstance(request.body, dict):
            raise ParticipantError(Code.INVALID_REQUEST, f"{self.role} serves POST /run with a JSON object")
        if request.life is None:
            return await self._run_uncaptured(request)
        asked = body_of_run(request.life, request.body)
        held = await self.enter(request.life, dispatches=True)
        if held.state.episode is not None:
            held.state.episode.check_same(asked, request.life)
        await self._start(held, asked)
        with self.working(held):
            await held.state.finished.wait()
            await self.gate.wait_open()
        assert held.state.episode is not None
        return reply_of_run(request.life, held.state.episode)

    async def _run_uncaptured(self, request: Request) -> Reply:
        """An episode for a client that gives it no life: nothing of it is kept."""
        held = Held(uncaptured(), _State())
        episode = await self._runner.run(held, body_of_run(held.life, request.body), lambda boundary: None)
        return reply_of_run(held.life, episode)

    # The episode

    async def _run_episode(self, held: Held[_State], episode: Episode) -> None:
        def save(boundary: Episode) -> None:
            held.state.episode = boundary

        try:
            with self.working(held):
                await own_task(f"the episode of {held.life}", partial(self._runner.run, held, episode, save))
        except ParticipantError as error:
            if held.stopped:
                return  # Retired or superseded: whoever did that has said what becomes of it.
            save(failed_outside(held.state.episode or episode, error))
        if not held.stopped:
            self._publish(held, held.state.episode or episode)
            held.state.finished.set()

    def _publish(self, held: Held[_State], episode: Episode) -> None:
        self._numbered += 1
        held.state.result = self._numbered
        self._results[self._numbered] = Result(
            life=held.life,
            row=episode.result,
            failure=episode.failure,
            active_s=episode.active_s,
            n=self._numbered,
        )
        self._tell_readers()

    # State

    def new_state(self, life: Life) -> _State:
        """No episode yet."""
        return _State()

    def is_episode(self, state: _State) -> bool:
        """Every life that is here was dispatched here."""
        return True

    def is_lost(self, state: _State) -> bool:
        """Whether the episode failed because a participant was lost."""
        return state.episode is not None and state.episode.is_lost

    def work_of(self, held: Held[_State]) -> tuple[Count, None] | None:
        """All of it, of an episode past its activation."""
        return _worked(held.state.episode)

    def work_in(self, payload: Any) -> tuple[Count, None] | None:
        """The same of a record."""
        return _worked(import_episode(payload["state"]))

    def restarts(self) -> list[Life]:
        """Episodes whose resources server cannot export them."""
        return [h.life for h in self._held.values() if h.state.episode is not None and h.state.episode.restart_only]

    def free_state(self, held: Held[_State]) -> None:
        """Drop its result, if any."""
        self._results.pop(held.state.result, None)

    def export_state(self, held: Held[_State]) -> Any:
        """The episode at its last boundary."""
        episode = held.state.episode
        exported = export_episode(episode)
        if episode is not None and exported is not None:
            exported["active_s"] = self._runner.active_s(held.life, episode)
        return exported

    def import_state(self, payload: Any) -> _State:
        """The episode again."""
        return _State(import_episode(payload))


def _refused(life: Life, error: ParticipantError) -> Refused:
    return Refused(life=life, code=error.code, message=str(error), terminal=is_terminal(error))


def _worked(episode: Episode | None) -> tuple[Count, None] | None:
    found = of_response(episode.response) if episode else None
    return found and (found, None)
