"""What one server is: the whole of what its processes are started from, as a document or made of flags."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator

from store import InvalidName, ProcessName

from ..telemetry.starting import endpoint
from .addresses import check_span, place_in, split_address
from .model_settings import ModelSettings
from .settings import ClassPath, ConfigError, JSONTable, Place, Seconds, Table, Texts, problem_of

Kind = Literal["environment", "agent", "model", "resources"]
MAX_WORKERS = 256
_NEEDS = {"environment": "agent", "agent": "model"}
"""Of which kind each one needs exactly one peer."""
_CALLS = {"environment": ("agent", "resources"), "agent": ("model", "resources"), "resources": ("model",)}
"""Which kinds each one may call; a model server calls nobody."""


def _address(text: str) -> str:
    split_address(text)
    return text


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("it is no http:// or https:// URL")
    return text.rstrip("/")


class ServerSpec(Table):
    """One server: `<kind>.<name>`, in one process or several."""

    kind: Kind
    name: str = "main"
    server: ClassPath | None = None
    """None for the one that ships, which resources servers have not."""
    options: JSONTable = Field(default_factory=dict)
    """Keyword arguments of the class."""
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    listen: Annotated[str, AfterValidator(_address)] = "127.0.0.1:0"
    """Where anybody may call; each worker listens on a port of its own at the same host besides."""
    span: Texts = ()
    """Of a role that is served on several hosts: `host:port` of each of its servers, this one too, in the order of all.

    Each of them has as many workers, and they are numbered through (see `addresses`)."""
    peers: dict[str, Annotated[str, AfterValidator(_url)]] = Field(default_factory=dict)
    """Role (`<kind>.<name>`) to URL of the servers that this one calls."""
    store: Place | None = None
    """Path or URL of the run's checkpoints; nothing can be committed or restored without."""
    single_writer: bool = False
    """Accept a store without exclusive create, on your word that no second collector can ever run."""
    token_env: str | None = None
    """Name of the environment variable with the control token; no control plane without one."""
    model: ModelSettings | None = None
    """Of a model server: its endpoint."""
    capture: Place | None = None
    """Of a model server: the folder of the capture ledger."""
    dialect: Literal["responses", "chat"] | None = None
    """Of an agent: which API its model speaks, for a class that takes it."""
    shutdown_s: Seconds = 10.0
    """How long SIGTERM leaves work in flight and sessions that close."""
    otlp: Annotated[str, AfterValidator(endpoint)] | None = None
    """Base URL of an endpoint that telemetry is sent to."""
    prometheus: bool = False
    """Whether the server has a page of metrics."""
    path: Place | None = None
    """A folder to import from before any other."""

    @property
    def role(self) -> str:
        """`<kind>.<name>`, as peers call it."""
        return f"{self.kind}.{self.name}"

    @property
    def first_worker(self) -> int:
        """The number of the first worker of this server among those of its role."""
        return place_in(self.span, self.listen) * self.workers if self.span else 0

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        try:
            ProcessName(self.kind, self.name, "w0")
        except InvalidName as error:
            raise ValueError(str(error)) from error
        if self.span:
            check_span(self.span, self.workers)
            place_in(self.span, self.listen)
        self._check_server()
        self._check_peers()
        if self.store is not None and self.token_env is None:
            raise ValueError("store is of no use without token_env: nothing is committed without a control plane")
        return self

    def _check_server(self) -> None:
        if self.kind == "resources" and self.server is None:
            raise ValueError("a resources server needs its class: server, as module:Class")
        if self.kind == "model":
            if self.server is not None or self.options:
                raise ValueError("a model server is made from model alone: take server and options away")
            if self.model is None:
                raise ValueError("a model server needs model, with base_url and the name of the model")
        if self.dialect is not None and self.kind != "agent":
            raise ValueError(f"dialect is that of an agent, and this is {self.role}")
        if self.kind != "model" and (self.model is not None or self.capture is not None):
            raise ValueError(f"model and capture are those of a model server, and this is {self.role}")

    def _check_peers(self) -> None:
        needed, called = _NEEDS.get(self.kind), _CALLS.get(self.kind, ())
        kinds = [role.partition(".")[0] for role in self.peers]
        if kinds and not called:
            raise ValueError(f"{self.role} calls nobody, and peers names {', '.join(self.peers)}")
        if needed is not None and kinds.count(needed) != 1:
            raise ValueError(f"{self.role} needs exactly one peer {needed}.<name>, and has {kinds.count(needed)}")
        for role, kind in zip(self.peers, kinds, strict=True):
            if kind not in called or not role.partition(".")[2]:
                names = " and ".join(f"{each}.<name>" for each in called)
                raise ValueError(f"{role!r} is no peer of {self.role}, which calls {names}")

    @property
    def one_peer(self) -> str:
        """Role of the one agent or model that an environment or an agent calls."""
        return next(role for role in self.peers if not role.startswith("resources."))


def parse_spec(document: Mapping[str, Any], where: str) -> ServerSpec:
    """Validate a document. Raises ConfigError, which says `where` it stands."""
    try:
        return ServerSpec.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{where}: {problem_of(error, ServerSpec)}") from error


def load_document(path: Path) -> dict[str, Any]:
    """The document in a file. Raises ConfigError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ConfigError(f"{path} cannot be read: it is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return document
