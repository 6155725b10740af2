"""What a resources server holds: sessions, how one changes, how they end, and how checkpoints keep them.

A session changes only inside `_changing`, under its lock; what a failed or cancelled hook left half done is undone. A
prepare exports sessions through the author's async hook (`freeze`) once no call changes one, so that it can name what
cannot be exported. A restore imports every session while it stages, beside what is live; a rollout's next life takes up
what was imported.

Sessions that end are first taken out of every table, then given to the author's `close_session`, whoever ended them:
many at once, under one limit for all, and in a task that a caller who gives up does not end.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Literal

import anyio
import orjson

from store import Life, RawRecord, ReadBlob, blobs_in, resolve

from .budget import Budget
from .containment import contained
from .errors import Code, ParticipantError
from .exact import Exported, check_exact, exact_copy, exact_export
from .gate import Gate
from .holder import Held, Holder, in_turns, no_blobs
from .hooks import AT_ONCE, each
from .sessions import ResourcesSession, Sessions, json_copy
from .tools import ToolError
from .wire import Blocker, Modes

SESSION_TTL_S = 14 * 24 * 3600.0
CLEANUP_TIMEOUT_S = 20.0
"""For closing all sessions that have ended at once; shorter than a control call may take."""
MAX_SESSION_BYTES = 1 << 30
MAX_SESSION_TEXT = 64 << 20
"""Of an export, all that stands in its record itself: half of what the store takes as one."""
IMPORT_BYTES = 128 << 20
"""Of payloads that a restore has read and import hooks have not taken yet, so many are in memory at once, or those of
one session."""
EXPORT_TIMEOUT_S = 30.0
"""For one session, whichever prepare began it; then its life is a restart."""

_HOOKS = frozenset({"seed", "call_tool", "verify", "export_session", "import_session", "close_session"})
_MODES = {"checkpoint_mode": ("exported", "stateless", "restart"), "checkpoint_verify": ("wait", "replay")}
log = logging.getLogger("midflight.resources")


class SessionHolder(Holder[Sessions]):
    """The half of a resources server that a checkpoint sees."""

    kind = "resources"
    checkpoint_mode: ClassVar[Literal["exported", "stateless", "restart"]] = "restart"
    """`exported`: sessions are exported. `stateless`: they hold nothing. Nothing declared: restart-only."""
    checkpoint_verify: ClassVar[Literal["wait", "replay"]] = "wait"
    """`replay`: verify may run again after a crash and changes nothing, so that a checkpoint need not wait for it."""

    max_session_bytes: int = MAX_SESSION_BYTES
    """Of bytes in the export of one session; one with more cannot be exported, and its life is a restart."""
    exports_at_once: int = AT_ONCE
    """Each of them has its own time; where they share a disk, fewer at once are each through sooner."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Raises TypeError for a hook that is not async, and for a mode that there is not."""
        super().__init_subclass__(**options)
        for hook in _HOOKS & vars(cls).keys():
            is_async = inspect.iscoroutinefunction(getattr(cls, hook))
            if not is_async:
                raise TypeError(f"{cls.__name__}.{hook} is not an async method: write `async def {hook}(...)`")
        for mode, values in _MODES.items():
            if getattr(cls, mode) not in values:
                one_of = f"one of {', '.join(values)}, and not {getattr(cls, mode)!r}"
                raise TypeError(f"{cls.__name__}.{mode} is to be {one_of}")

    def __init__(self, name: str = "main", *, gate: Gate | None = None, session_ttl_s: float = SESSION_TTL_S) -> None:
        """`session_ttl_s` counts time without a call; what is parked or lost in a crash does not count."""
        super().__init__(name, gate=gate)
        self.modes = Modes(checkpoint_mode=self.checkpoint_mode, checkpoint_verify=self.checkpoint_verify)
        self.session_ttl_s = session_ttl_s
        self._json = _inherits(self, "export_session") and self.checkpoint_mode != "restart"
        """Whether a session's state is JSON, so that it can be put back as it was."""
        self._frees = not _inherits(self, "close_session")
        self._without_life = Sessions()
        self._imports_json = _inherits(self, "import_session")
        self._freed: list[ResourcesSession] = []
        """To be given to `close_session`."""
        self._closing: dict[ResourcesSession, None] = {}
        """Given to it, and not through."""
        self._unfrozen: dict[ResourcesSession, None] = {}
        """What the freeze that goes on has still to export."""
        self._importing: dict[str, Sessions] = {}
        self._imported: dict[str, Sessions] = {}
        self._in_memory = Budget(IMPORT_BYTES)
        self._replaced_imports: dict[str, Sessions] = {}
        """What an earlier restore had imported where the open one has imported something else."""

    # What an author may write

    async def export_session(self, session: ResourcesSession) -> Any:
        """The state as JSON, in which bytes and LazyBytes may stand; a copy."""
        return json_copy(session.state)

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        """Set the state from what `export_session` gave, LazyBytes read to bytes. Raise where it is malformed."""
        session.state = exported

    async def close_session(self, session: ResourcesSession) -> None:
        """Free what the session holds outside of this process, such as a sandbox."""

    # How a session changes

    def _now(self) -> float:
        return self.gate.active_time()

    def _expired(self, session: ResourcesSession) -> bool:
        return self._now() - session.used_at > self.session_ttl_s

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
        if self._json:
            try:
                check_exact(session.state, f"the state that {what} left")
            except TypeError as error:
                raise TypeError(f"{error}; keep no more in it, or write export_session and import_session") from None

    @contextmanager
    def _translating(self, what: str) -> Iterator[None]:
        try:
            with contained(f"{what} at {self.role}"):
                yield
        except (ParticipantError, ToolError):
            raise
        except Exception as error:
            log.exception("%s: %s raised", self.role, what)
            raise ParticipantError(Code.INTERNAL, f"{what} at {self.role} raised {error!r:.500}") from error

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

    async def _close_freed(self, timeout_s: float | None = None) -> None:
        """Run the author's hook for sessions that have ended, whoever ended them; wait no longer than so long."""
        freed, self._freed = self._freed, []
        if freed:
            self._closing.update(dict.fromkeys(freed))
            with anyio.move_on_after(timeout_s):
                await self.author_hooks.run("closing", partial(self._close_all, freed), shield=True)

    async def _close_all(self, freed: Sequence[ResourcesSession]) -> None:
        """Whoever waits for this, it goes on to its own limit."""
        with anyio.move_on_after(CLEANUP_TIMEOUT_S, shield=True):
            await each(freed, self._close_one)
        if left := [session for session in freed if session in self._closing]:
            message = "%s: %d of %d sessions were not closed within %g s, among them %r"
            log.error(message, self.role, len(left), len(freed), CLEANUP_TIMEOUT_S, left[0])
        for session in left:
            del self._closing[session]

    async def _close_one(self, session: ResourcesSession) -> None:
        what = f"close_session of {session!r}"
        try:
            await self.author_hooks.run(what, partial(self.close_session, session), shield=True)
        except Exception:
            log.exception("%s: %s raised", self.role, what)
        del self._closing[session]

    async def aclose(self) -> None:
        """Free every session; the server is of no more use."""
        imports = (self._importing, self._imported, self._replaced_imports)
        imported = chain.from_iterable(table.values() for table in imports)
        for sessions in (*(held.state for held in self._held.values()), *imported, self._without_life):
            self._free_all(sessions)
        await self._close_freed()

    def free_state(self, held: Held[Sessions]) -> None:
        """A life is over, and so are its sessions."""
        self._free_all(held.state)

    async def retire(self, lives: Sequence[Life], timeout_s: float) -> list[Life]:
        """As every holder does; also frees what sessions held outside of this process, under the same limit."""
        ends = anyio.current_time() + timeout_s
        left = set(await super().retire(lives, timeout_s))
        await self._close_freed(max(0.0, ends - anyio.current_time()))
        left.update(session.life for session in self._closing if session.life is not None)
        return [life for life in lives if life in left]

    async def finish_all(self, lives: Sequence[Life]) -> None:
        """As every holder does; nothing waits for what their sessions held outside of this process."""
        await super().finish_all(lives)
        await self._close_freed(0)

    def _forget_brought(self, rollout_id: str) -> None:
        super()._forget_brought(rollout_id)
        if (imported := self._imported.pop(rollout_id, None)) is not None:
            self._free_all(imported)

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
            if held.state.restart_only
            or any(every or session.lost or session.unexportable for session in held.state.open.values())
        ]

    def blockers(self, limit: int) -> tuple[list[Blocker], int]:
        """Also sessions whose export a prepare is waiting for, those that run first."""
        steps, count = super().blockers(limit)
        for session, _ in zip(self._unfrozen, range(limit - len(steps)), strict=False):
            assert session.life is not None
            reason = f"session {session.session_id} is being exported"
            steps.append(Blocker(life=session.life, participant=self.role, step="export", reason=reason))
        return steps, count + len(self._unfrozen)

    async def freeze(self, scope: Collection[Life] | None = None) -> None:
        """Export the sessions of these lives, or of all; no call changes one meanwhile.

        A session that cannot be exported makes its life a restart, and so does one that takes too long.
        """
        self._unfrozen = {}
        if self.checkpoint_mode == "restart":
            return
        async for held in in_turns(list(self._held.values())):
            if not (held.stopped or held.state.restart_only) and (scope is None or held.life in scope):
                self._unfrozen.update((session, None) for session in held.state.open.values() if session.to_export)
        if not self._json:
            await each(list(self._unfrozen), self._freeze, at_once=self.exports_at_once)
            return
        async for session in in_turns(list(self._unfrozen)):  # Nothing to wait for.
            await self._freeze(session)

    async def _freeze(self, session: ResourcesSession) -> None:
        session.exported = await self._dump(session)
        self._unfrozen.pop(session, None)

    def thaw(self) -> None:
        """Let go of exports that no commit has written."""
        self._unfrozen = {}
        for held in self._held.values():
            for session in held.state.open.values():
                session.exported = None

    async def _dump(self, session: ResourcesSession) -> dict[str, Any] | None:
        """Its export; None where there can be none, which makes its life a restart."""
        what = f"the export of session {session.session_id} of {session.life}"
        try:
            with self._translating(what):
                return session.dump(await self._export(session, what), self._now())
        except ParticipantError as error:
            session.unexportable = error.message
            return None

    async def _export(self, session: ResourcesSession, what: str) -> Any:
        if self._json:
            return exact_copy(session.state, "the state")
        with anyio.fail_after(EXPORT_TIMEOUT_S):
            given = await self.author_hooks.run(what, partial(self.export_session, session))
        exported = exact_export(given, "what it gave")
        self._check_size(exported, what)
        return exported.value

    def _check_size(self, exported: Exported, what: str) -> None:
        limits = ((exported.text_bytes, MAX_SESSION_TEXT), (exported.payload_bytes, self.max_session_bytes))
        for size, limit in limits:
            if size > limit:
                raise ParticipantError(Code.INTERNAL, f"{what} has {size} bytes, and the limit is {limit}")

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

    async def stage(
        self,
        scope: Collection[Life],
        records: AsyncIterator[RawRecord],
        *,
        epoch: int,
        read_blob: ReadBlob = no_blobs,
    ) -> int:
        """Import every session of the scope beside what is live."""
        self._drop_importing()
        return await super().stage(scope, records, epoch=epoch, read_blob=read_blob)

    async def import_now(self, records: Sequence[RawRecord]) -> None:
        """Import all sessions. Raises `corrupt_checkpoint`, naming the rollout."""
        has_bytes = False
        async for record in in_turns(records):
            has_bytes = has_bytes or record.escaped
            sessions = super()._load(record.life, record.parse().payload).state
            self._importing[record.life.rollout_id] = sessions
            for session in sessions.open.values():
                session.life = record.life
        if has_bytes or not self._imports_json:
            importing = list(self._importing.values())
            await each([session for sessions in importing for session in sessions.open.values()], self._import)

    async def _import(self, session: ResourcesSession) -> None:
        async with self._in_memory.take(sum([ref.size for ref in blobs_in(session.state)])):
            await self._import_from(session, await resolve(session.state, self._read_blob))

    async def _import_from(self, session: ResourcesSession, exported: Any) -> None:
        try:
            await self.author_hooks.run("import_session", partial(self.import_session, session, exported))
            self._check_declared(session, "import_session")
        except Exception as error:
            raise ParticipantError(
                Code.CORRUPT_CHECKPOINT,
                f"session {session.session_id} of {session.life} cannot be imported at {self.role}: {error!r:.300}",
            ) from error

    def activate(self) -> None:
        """As every holder does; what was imported waits for its rollout's next life."""
        super().activate()
        for rollout_id, sessions in self._importing.items():
            if rollout_id in self._imported:
                self._replaced_imports[rollout_id] = self._imported[rollout_id]
            self._imported[rollout_id] = sessions

    def settle(self) -> None:
        """The restore succeeded everywhere: free what it has replaced."""
        super().settle()
        for sessions in self._replaced_imports.values():
            self._free_all(sessions)
        self._importing, self._replaced_imports = {}, {}

    async def discard(self) -> None:
        """Free what was imported, and put back what that had replaced."""
        await super().discard()
        self._drop_importing()
        self._imported.update(self._replaced_imports)
        self._replaced_imports = {}
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
