"""The environment server: owns episodes, from the row to the result.

An episode is taken through `participants.episode.EPISODE_STEPS`: seed the resources session, open the agent session,
activate the agent, verify, close both sessions. Then its result waits to be acknowledged.

Results leave only while admission is open, are kept until acknowledged, and are exported like any other state. An
episode that fails ends with a typed failure, never with a reward of 0; one whose life was retired or superseded ends
with nothing.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup

from store import Life

from .data import Peer, Reply, Request, uncaptured
from .episode import (
    EPISODE_STEPS,
    Episode,
    EpisodeRunner,
    body_of_run,
    export_episode,
    failed_outside,
    import_episode,
    reply_of_run,
)
from .errors import Code, ParticipantError
from .gate import Gate
from .holder import Held, Holder
from .wire import Modes


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of an episode; exactly one of `row` and `failure`."""

    life: Life
    row: Mapping[str, Any] | None
    failure: Mapping[str, Any] | None
    """`class`, `message`, `stage`, `terminal`."""
    active_s: float


@dataclass(slots=True)
class _State:
    episode: Episode | None = None
    running: bool = False
    finished: anyio.Event = field(default_factory=anyio.Event)


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
        self._results: dict[Life, Result] = {}
        self._fresh: dict[Life, None] = {}
        """Results that no reader has had yet, in order."""
        self._news = anyio.Event()

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
        await self._start(await self.enter(life, creates=True), asked)

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
        """Finished episodes, each once, to one reader; nothing while admission is closed. Never ends."""
        while True:
            await self.gate.wait_open()
            if self._fresh:
                life = next(iter(self._fresh))
                del self._fresh[life]
                yield self._results[life]
                continue
            self._news = anyio.Event()
            await self._news.wait()

    def acknowledge(self, life: Life) -> None:
        """The controller has the result for good: forget the episode."""
        self.finish(life)

    async def handle(self, request: Request) -> Reply:
        """`POST /run`: run one episode to its end; a duplicate joins it or gets the same result."""
        if request.route == "/acknowledge" and request.life is not None:
            self.acknowledge(request.life)
            return Reply(200, {})
        if request.route != "/run" or not isinstance(request.body, dict):
            raise ParticipantError(Code.INVALID_REQUEST, f"{self.role} serves POST /run with a JSON object")
        if request.life is None:
            return await self._run_uncaptured(request)
        asked = body_of_run(request.life, request.body)
        held = await self.enter(request.life, creates=True)
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
                await self._runner.run(held, episode, save)
        except ParticipantError as error:
            if held.stopped:
                return  # Retired or superseded: whoever did that has said what becomes of it.
            save(failed_outside(held.state.episode or episode, error))
        if not held.stopped:
            self._publish(held.life, held.state.episode or episode)
            held.state.finished.set()

    def _publish(self, life: Life, episode: Episode) -> None:
        self._results[life] = Result(life=life, row=episode.result, failure=episode.failure, active_s=episode.active_s)
        self._fresh[life] = None
        self._news.set()

    # State

    def new_state(self, life: Life) -> _State:
        """No episode yet."""
        return _State()

    def is_episode(self, state: _State) -> bool:
        """Every life that is here was dispatched here."""
        return True

    def restarts(self) -> list[Life]:
        """Episodes whose resources server cannot export them."""
        return [h.life for h in self._held.values() if h.state.episode is not None and h.state.episode.restart_only]

    def free_state(self, held: Held[_State]) -> None:
        """Drop its result, if any."""
        self._results.pop(held.life, None)
        self._fresh.pop(held.life, None)

    def export_state(self, held: Held[_State]) -> Any:
        """The episode at its last boundary."""
        episode = held.state.episode
        return export_episode(episode and self._runner.as_of_now(held.life, episode))

    def import_state(self, payload: Any) -> _State:
        """The episode again."""
        return _State(import_episode(payload))
