"""Sessions of a resources server, and the bodies that open, close and verify them.

A session changes only inside `changing`, which holds its lock. What an author's hook leaves half done when it fails or
is cancelled is undone: a JSON state is put back as it was. A state of another kind cannot be, so that session is lost,
and says so, rather than being exported as something that never was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import anyio
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from store import Life

from .data import Request, digest_of
from .errors import Code, ParticipantError

Model = TypeVar("Model", bound=BaseModel)

SESSION_HEADER = "x-resources-session-id"
SESSION_COOKIE = "midflight-session"
DEFAULT_SESSION = "main"
"""The session of a call with a life that names none."""


@dataclass(frozen=True, slots=True)
class Seeding:
    """What a seed asks for."""

    row: dict[str, Any]
    """The task's fields; a copy of the caller's."""
    episode: Mapping[str, Any] | None
    """None for a flat row."""
    digest: str
    """Of the whole flat row, or of the task's name and data."""


@dataclass(slots=True, eq=False)
class ResourcesSession:
    """One session, as authors see it."""

    session_id: str
    life: Life | None
    """None for a client that sends no life."""
    state: Any = field(default_factory=dict)
    """The author's. A JSON dict, unless the server exports and imports sessions itself."""
    revision: int = 0
    """The number of calls that have changed it with success."""
    episode: Mapping[str, Any] | None = None
    digest: str = ""
    """Of what it was seeded with; empty where an older record does not say."""
    seeded: bool = False
    seed_reply: Mapping[str, Any] = field(default_factory=dict)
    used_at: float = 0.0
    """On the clock that stands still while a checkpoint is open."""
    lost: str = ""
    """Why its state is not known any more."""
    unexportable: str = ""
    """Why it could not be exported: its life is a restart from then on, and goes on otherwise."""
    frozen: Any = None
    """Its export as a verify of mode `replay` found it; that is what commits write until it changes again."""
    exported: Any = None
    """Its export, made ready for the commit of the open round."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    def __repr__(self) -> str:
        return f"<ResourcesSession {self.session_id} of {self.life or 'nobody'}, revision {self.revision}>"

    def check(self) -> Self:
        """Itself. Raises `lost_session` where it is of no use."""
        if self.lost or not self.seeded:
            why = self.lost or "it was never seeded"
            raise ParticipantError(Code.LOST_SESSION, f"session {self.session_id} cannot be used: {why}")
        return self

    def check_same(self, asked: Seeding) -> None:
        """Raises `invalid_request` where a later seed asks for something else."""
        if self.episode != asked.episode:
            raise ParticipantError(Code.INVALID_REQUEST, f"session {self.session_id} is of episode {self.episode}")
        if self.digest and self.digest != asked.digest:
            problem = f"session {self.session_id} was seeded with another row or task"
            raise ParticipantError(Code.INVALID_REQUEST, f"{problem}; name a new session for this one")

    @property
    def to_export(self) -> bool:
        """Whether a checkpoint is to write it and its export is still to be made."""
        return self.seeded and not (self.lost or self.unexportable) and self.frozen is None and self.exported is None

    def changed(self) -> None:
        """A call has changed it with success."""
        self.revision += 1
        self.frozen = self.exported = None

    def dump(self, state: Any, now: float) -> dict[str, Any]:
        """JSON of it, with its exported state."""
        return {
            "state": state,
            "revision": self.revision,
            "episode": self.episode,
            "digest": self.digest,
            "seed_reply": self.seed_reply,
            "idle_s": now - self.used_at,
        }

    @classmethod
    def load(cls, session_id: str, item: Mapping[str, Any], now: float) -> Self:
        """From `dump`, the state still as it was exported. Raises KeyError or TypeError."""
        return cls(
            session_id,
            None,
            item["state"],
            item["revision"],
            item["episode"],
            item.get("digest", ""),
            seeded=True,
            seed_reply=item["seed_reply"],
            used_at=now - item["idle_s"],
        )


@dataclass(slots=True)
class Sessions:
    """Those of one life."""

    open: dict[str, ResourcesSession] = field(default_factory=dict)
    closed: dict[str, None] = field(default_factory=dict)
    """In order; also of ids that were never seeded: a seed that comes late is refused."""
    restart_only: bool = False
    """Callers say that nothing of this rollout can be captured: nobody waits for it, and none of these is exported."""

    @property
    def only(self) -> str:
        """The one open session, where there is just one."""
        return next(iter(self.open)) if len(self.open) == 1 else ""

    def find(self, session_id: str) -> ResourcesSession:
        """An open session. Raises `stale_call` for a closed one, `lost_session` for one that is not here."""
        self.check_not_closed(session_id)
        session = self.open.get(session_id)
        if session is None:
            raise ParticipantError(Code.LOST_SESSION, f"session {session_id} is not here")
        return session

    def check_not_closed(self, session_id: str) -> None:
        """Raises `stale_call` where the session is over."""
        if session_id in self.closed:
            raise ParticipantError(Code.STALE_CALL, f"session {session_id} was closed")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class EpisodeId(_Strict):
    """Which episode a session is of."""

    rollout_id: str
    attempt: int = Field(ge=0)


class TaskId(_Strict):
    """Which task."""

    taskset: str
    task_id: str | int


class SeedBody(_Strict):
    """The typed body of `/seed_session`; a flat row is the other one."""

    resources_session_id: str = Field(min_length=1, max_length=400)
    episode_id: EpisodeId
    task_id: TaskId | None = None
    task_data: dict[str, Any] = {}


class CloseBody(_Strict):
    """The body of `/close_session`."""

    resources_session_id: str | None = None
    episode_id: EpisodeId | None = None


def body_of(request: Request) -> dict[str, Any]:
    """The body, which must be an object."""
    if not isinstance(request.body, dict):
        raise ParticipantError(Code.INVALID_REQUEST, f"the body of {request.route} is not a JSON object")
    return request.body


def seeding_of(request: Request) -> Seeding:
    """What a seed asks for, from either body. Raises `invalid_request`."""
    body = body_of(request)
    if "episode_id" not in body and "task_data" not in body:
        row = json_copy({key: value for key, value in body.items() if key != "resources_session_id"})
        return Seeding(row, None, digest_of("", row))
    typed = parse(SeedBody, body)
    _check_episode(typed.episode_id, request)
    row = json_copy(typed.task_data)
    task_id = typed.task_id and typed.task_id.model_dump()
    return Seeding(row, typed.episode_id.model_dump(), digest_of("", [task_id, row]))


def check_close(request: Request) -> None:
    """Refuse a malformed `/close_session`."""
    body = parse(CloseBody, body_of(request))
    if body.episode_id is not None:
        _check_episode(body.episode_id, request)


def _check_episode(episode: EpisodeId, request: Request) -> None:
    life = request.life
    if life is not None and (episode.rollout_id, episode.attempt) != (life.rollout_id, life.attempt):
        raise ParticipantError(
            Code.INVALID_REQUEST, f"episode {episode.rollout_id}, attempt {episode.attempt} is not that of {life}"
        )


def session_id_of(request: Request) -> str:
    """The session that a call names: by header, else by its body, else by cookie; empty where it names none."""
    return named_id_of(request) or _cookie(request.headers.get("cookie", ""))


def named_id_of(request: Request) -> str:
    """The session that header or body names; empty where neither does. Raises `invalid_request` for two."""
    named = request.headers.get(SESSION_HEADER, "")
    reserved = request.route in ("/seed_session", "/close_session", "/verify")
    in_body = request.body.get("resources_session_id") if reserved and isinstance(request.body, dict) else None
    if in_body is not None and (not isinstance(in_body, str) or named not in ("", in_body)):
        raise ParticipantError(Code.INVALID_REQUEST, f"the body's session {in_body!r:.80} contradicts {named!r:.80}")
    return named or in_body or ""


def _cookie(header: str) -> str:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return next((value for name, _, value in pairs if name == SESSION_COOKIE), "")


def parse(model: type[Model], body: Any) -> Model:
    """A validated body. Raises `invalid_request`, naming the field."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ParticipantError(Code.INVALID_REQUEST, f"{where}: {first['msg']}") from error


def json_copy(value: Any) -> Any:
    """A copy that nobody else can change. Raises TypeError where it is not JSON."""
    return orjson.loads(orjson.dumps(value))
