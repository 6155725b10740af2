"""What a resources server holds: sessions, how one changes, how they end, and how checkpoints keep them.

A session changes only inside `_changing`, under its lock; what a failed or cancelled hook left half done is undone. A
commit exports sessions through the author's async hook (`freeze`) while no call changes one. A restore imports every
session while it stages, beside what is live; a rollout's next life takes up what was imported.

Sessions that end are first taken out of every table, then given to the author's `close_session`, whoever ended them.
"""

import logging
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar, Literal

import anyio
import anyio.lowlevel
import orjson

from store import Life, RawRecord

from .containment import contained
from .errors import Code, ParticipantError
from .gate import Gate
from .generations import is_storable
from .holder import Held, Holder
from .sessions import ResourcesSession, Sessions, json_copy
from .tools import ToolError
from .wire import Modes

SESSION_TTL_S = 14 * 24 * 3600.0
CLEANUP_TIMEOUT_S = 30.0
EXPORT_TIMEOUT_S = 30.0
FREEZE_BATCH = 64
"""Sessions exported before other tasks get a turn."""

log = logging.getLogger("midflight.resources")


class SessionHolder(Holder[Sessions]):
    """The half of a resources server that a checkpoint sees."""

    kind = "resources"
    checkpoint_mode: ClassVar[Literal["exported", "stateless", "restart"]] = "restart"
    """`exported`: sessions are exported. `stateless`: they hold nothing. Nothing declared: restart-only."""
    checkpoint_verify: ClassVar[Literal["wait", "replay"]] = "wait"
    """`replay`: verify may run again after a crash and changes nothing, so that a checkpoint need not wait for it."""

    def __init__(self, name: str = "main", *, gate: Gate | None = None, session_ttl_s: float = SESSION_TTL_S) -> None:
        """`session_ttl_s` counts time without a call; what is parked or lost in a crash does not count."""
        super().__init__(name, gate=gate)
        self.modes = Modes(checkpoint_mode=self.checkpoint_mode, checkpoint_verify=self.checkpoint_verify)
        self.session_ttl_s = session_ttl_s
        self._json = _inherits(self, "export_session") and self.checkpoint_mode != "restart"
        """Whether a session's state is JSON, so that it can be put back as it was."""
        self._frees = not _inherits(self, "close_session")
        self._without_life = Sessions()
        self._freed: list[ResourcesSession] = []
        self._importing: dict[str, Sessions] = {}
        self._imported: dict[str, Sessions] = {}

    # What an author may write

    async def export_session(self, session: ResourcesSession) -> Any:
        """The state as JSON; a copy."""
        return json_copy(session.state)

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        """Set the state from what `export_session` gave. Raise where it is malformed."""
        session.state = exported

    async def close_session(self, session: ResourcesSession) -> None:
        """Free what the session holds outside of this process, such as a sandbox."""

    # How a session changes

    def _now(self) -> float:
        return self.gate.active_time()

    def _expired(self, session: ResourcesSession) -> bool:
        return session.seeded and self._now() - session.used_at > self.session_ttl_s

    def _usable(self, session: ResourcesSession) -> None:
        if self._expired(session):
            session.lost = session.lost or f"it was not used for {self.session_ttl_s:g} s"
        session.check()
        session.used_at = self._now()

    @asynccontextmanager
    async def _changing(self, session: ResourcesSession, what: str) -> AsyncIterator[None]:
        async with session.lock:
            self._usable(session)
            with self._undoing(session, what):
                yield
            session.changed()

    @contextmanager
    def _undoing(self, session: ResourcesSession, what: str) -> Iterator[None]:
        """Put a JSON state back where the hook fails or is cancelled; without that, the session is lost."""
        before = orjson.dumps(session.state) if self._json else b""
        try:
            with self._translating(what):
                yield
                self._check_declared(session, what)
        except BaseException as error:
            if self._json:
                session.state = orjson.loads(before)
            elif not isinstance(error, ToolError):
                session.lost = f"{what} ended half done: {error!r:.200}"
            raise

    def _check_declared(self, session: ResourcesSession, what: str) -> None:
        if self.checkpoint_mode == "stateless" and session.state:
            raise ParticipantError(Code.INTERNAL, f"{type(self).__name__} declares stateless, and {what} kept a state")
        if self._json and not is_storable(session.state):
            raise TypeError(f"the state that it left cannot be stored as JSON: {session.state!r:.80}")

    @contextmanager
    def _translating(self, what: str) -> Iterator[None]:
        try:
            with contained(f"{what} at {self.role}"):
                yield
        except (ParticipantError, ToolError):
            raise
        except Exception as error:
            log.exception("%s: %s raised", self.role, what)
            raise ParticipantError(Code.INTERNAL, f"{what} at {self.role} raised {error!r:.300}") from error

    # Ends of sessions

    def _free(self, sessions: Sessions, session_id: str) -> None:
        session = sessions.open.pop(session_id, None)
        if session is not None:
            session.lost = session.lost or "it was closed"
            if self._frees:
                self._freed.append(session)

    def _free_all(self, sessions: Sessions) -> None:
        for session_id in list(sessions.open):
            self._free(sessions, session_id)

    async def _close_freed(self) -> None:
        """Run the author's hook for sessions that have ended, whoever ended them."""
        while self._freed:
            session = self._freed.pop()
            with anyio.move_on_after(CLEANUP_TIMEOUT_S, shield=True) as limit:
                try:
                    with contained(f"close_session of {session!r}"):
                        await self.close_session(session)
                except Exception:
                    log.exception("%s: close_session of %r raised", self.role, session)
            if limit.cancelled_caught:
                log.error("%s: close_session of %r took over %g s", self.role, session, CLEANUP_TIMEOUT_S)

    async def aclose(self) -> None:
        """Free every session; the server is of no more use."""
        for sessions in (*(held.state for held in self._held.values()), *self._imports(), self._without_life):
            self._free_all(sessions)
        await self._close_freed()

    def _imports(self) -> list[Sessions]:
        return [*self._importing.values(), *self._imported.values()]

    def free_state(self, held: Held[Sessions]) -> None:
        """A life is over, and so are its sessions."""
        self._free_all(held.state)

    async def retire(self, lives: Sequence[Life], timeout_s: float) -> list[Life]:
        """As every holder does; also frees what sessions held outside of this process."""
        left = await super().retire(lives, timeout_s)
        await self._close_freed()
        return left

    def _drop_brought(self, life: Life) -> None:
        super()._drop_brought(life)
        if life.rollout_id not in self._brought:
            self._free_all(self._imported.pop(life.rollout_id, Sessions()))

    # A checkpoint

    def counts(self) -> dict[str, int]:
        """For the status."""
        sessions = sum(len(held.state.open) for held in self._held.values())
        return {**super().counts(), "sessions": sessions, "sessions_without_life": len(self._without_life.open)}

    def restarts(self) -> Collection[Life]:
        """Lives with an open session that is not or cannot be exported, or that a failed hook left inexact."""
        every = self.checkpoint_mode == "restart"
        return [
            held.life
            for held in self._held.values()
            if any(every or session.lost or session.unexportable for session in held.state.open.values())
        ]

    async def freeze(self, scope: Collection[Life]) -> None:
        """Export the scope's sessions; no call changes one meanwhile.

        A session that cannot be exported makes its life a restart: this commit is refused with `restart_in_scope`, and
        the next prepare names that life.
        """
        wanted = [held for held in self._held.values() if held.life in scope and not held.stopped]
        sessions = [each for held in wanted for each in held.state.open.values() if each.seeded and not each.lost]
        for number, session in enumerate(sessions):
            if session.frozen is None and self.checkpoint_mode != "restart":
                await self._export_or_mark(session)
            if number % FREEZE_BATCH == 0:
                await anyio.lowlevel.checkpoint()
        if marked := [str(session.life) for session in sessions if session.unexportable]:
            message = f"{len(marked)} lives of the scope have a session that cannot be exported at {self.role}"
            raise ParticipantError(Code.RESTART_IN_SCOPE, message, {"lives": marked[:20]})

    async def _export_or_mark(self, session: ResourcesSession) -> None:
        try:
            session.exported = await self._dump(session)
        except ParticipantError as error:
            session.unexportable = error.message

    async def _dump(self, session: ResourcesSession) -> dict[str, Any]:
        with self._translating(f"the export of session {session.session_id} of {session.life}"):
            with anyio.fail_after(EXPORT_TIMEOUT_S):
                state = await self.export_session(session)
            if not is_storable(state):
                raise TypeError(f"what it gave cannot be stored as JSON: {state!r:.80}")
            return session.dump(state, self._now())

    def check_export(self) -> None:
        """Refuse while a call made inside a waited-for step is changing a session."""
        _, count = self.gate.in_flight(0)
        if count:
            raise ParticipantError(Code.INVALID_PHASE, f"{count} calls are in flight at {self.role}")

    def export_state(self, held: Held[Sessions]) -> Any:
        """The sessions as `freeze` or a verify of mode `replay` found them."""
        exported = {}
        for session_id, session in held.state.open.items():
            if session.seeded:
                exported[session_id] = session.frozen or session.exported
                session.exported = None
                if exported[session_id] is None:
                    raise ParticipantError(Code.INVALID_PHASE, f"{session!r} has changed meanwhile; commit again")
        return {"sessions": exported, "closed": list(held.state.closed)}

    # A restore

    def new_state(self, life: Life) -> Sessions:
        """No session yet."""
        return Sessions()

    def import_state(self, payload: Any) -> Sessions:
        """The sessions, not yet imported."""
        items, now = payload["sessions"], self._now()
        if not isinstance(items, dict):
            raise TypeError(f"sessions are {items!r:.80}")
        sessions = {key: ResourcesSession.load(key, item, now) for key, item in items.items()}
        return Sessions(sessions, dict.fromkeys(payload["closed"]))

    async def stage(self, scope: Collection[Life], records: AsyncIterator[RawRecord], state: Sequence[Any]) -> int:
        """Import every session of the scope beside what is live."""
        self._drop_importing()
        return await super().stage(scope, records, state)

    async def import_now(self, record: RawRecord) -> None:
        """Import one record's sessions. Raises `corrupt_checkpoint`, naming the rollout."""
        sessions = super()._load(record.life, record.parse().payload).state
        self._importing[record.life.rollout_id] = sessions
        for session in sessions.open.values():
            session.life = record.life
            try:
                with contained("import_session"):
                    await self.import_session(session, session.state)
            except Exception as error:
                raise ParticipantError(
                    Code.CORRUPT_CHECKPOINT,
                    f"session {session.session_id} of {record.life} cannot be imported at {self.role}: {error!r:.300}",
                ) from error

    def activate(self) -> None:
        """As every holder does; what was imported waits for its rollout's next life."""
        super().activate()
        for rollout_id, sessions in self._importing.items():
            self._free_all(self._imported.pop(rollout_id, Sessions()))
            self._imported[rollout_id] = sessions

    def settle(self) -> None:
        """The restore succeeded everywhere."""
        super().settle()
        self._importing = {}

    async def discard(self) -> None:
        """Free what was imported."""
        await super().discard()
        self._drop_importing()
        await self._close_freed()

    def _drop_importing(self) -> None:
        for rollout_id, sessions in self._importing.items():
            if self._imported.get(rollout_id) is sessions:
                del self._imported[rollout_id]
            self._free_all(sessions)
        self._importing = {}

    def _take_up(self, life: Life) -> Held[Sessions]:
        held = super()._take_up(life)
        self._free_all(self._imported.pop(life.rollout_id, Sessions()))
        return held

    def _load(self, life: Life, payload: Any) -> Held[Sessions]:
        held = super()._load(life, payload)
        imported = self._imported.pop(life.rollout_id)
        for session_id, session in imported.open.items():
            session.life, session.used_at = life, held.state.open[session_id].used_at
        held.state = imported
        return held


def _inherits(server: SessionHolder, hook: str) -> bool:
    return getattr(type(server), hook) is getattr(SessionHolder, hook)
