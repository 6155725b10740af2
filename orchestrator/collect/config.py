"""The configuration of a collection run: a TOML file, validated once; unknown keys are refused by name.

Relative paths are relative to the file. Credentials never stand in it: it names environment variables.
"""

import json
import os
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
MAX_INT = 2**63 - 1
"""The largest integer of TOML, and of what is written as JSON."""
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Natural = Annotated[int, Field(ge=0, le=MAX_INT)]
Positive = Annotated[int, Field(ge=1, le=MAX_INT)]


class ConfigError(Exception):
    """The configuration cannot be used, or not with what is there; the message says what to change."""


class OtherRun(ConfigError):
    """The output has rows that this run neither continues nor was told to put aside."""

    def __init__(self, output: str, runs: Collection[str]) -> None:
        super().__init__(
            f"{output} has rows of another run ({', '.join(runs)}), as where the checkpoint store was replaced, its "
            "url changed, or checkpoints were turned on or off. Put the earlier store or url back, name another "
            "output, or start anew with --fresh: those rows do not count then"
        )


class StoreGone(ConfigError):
    """The checkpoint store that the rows of the output belong to is not there, or is an older one."""

    def __init__(self, url: str, output: str, why: str, fresh: str) -> None:
        super().__init__(
            f"{url} {why}, and {output} has rows of a run with checkpoints. Put its store or the earlier url back, or "
            f"{fresh} with --fresh: those rows do not count then"
        )


class BadPlace(ConfigError):
    """The run would write where it must not, or cannot."""

    def __init__(self, what: str, place: str, why: str) -> None:
        super().__init__(f"{what}: {place} {why}. Name another place; nothing was changed")


class Table(BaseModel):
    """Base of the tables."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _as_json(values: dict[str, Any]) -> dict[str, Any]:
    """Refuse what JSON cannot say: dates, numbers that are not finite, integers of more than 64 bits, other keys."""
    for name, value in values.items():
        try:
            json.dumps(value, allow_nan=False)  # It refuses dates, which orjson would write as text.
            orjson.dumps(value)  # It refuses integers of more than 64 bits, and keys that are no text.
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{name} cannot be written as JSON ({error}); a date, for one, is given as text"
            ) from error
    return values


JSONTable = Annotated[dict[str, Any], AfterValidator(_as_json)]


class TaskSet(Table):
    """Tasks made by reasoning-gym (extra `tasks`)."""

    name: str
    size: Positive = 100
    seed: Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)] = 0


class RunTable(Table):
    """`[run]`: what is run, and where the rows go."""

    input: str | None = None
    """JSON Lines, a row a line. Either this or `task_set`."""
    task_set: TaskSet | None = None
    output: Annotated[str, Field(min_length=1)]
    """JSON Lines, a path or URL."""
    repeats: Positive = 1
    limit: Natural = 0
    """At most so many rows of the input; 0 for all."""
    concurrency: Positive = 64
    """Episodes in flight."""
    max_attempts: Positive = 3
    """Starts of a rollout before its failure is final."""
    close_s: Seconds = 10.0
    """How long a run that was told to stop may take to close its sessions; then its process ends nevertheless."""

    @model_validator(mode="after")
    def _one_source(self) -> "RunTable":
        if (self.input is None) == (self.task_set is None):
            raise ValueError("give either input or task_set")
        return self


class ModelTable(Table):
    """`[model]`: the endpoint."""

    base_url: str
    model: str
    api_key_env: str | None = None
    """Name of the environment variable with the key; the key itself is never stored."""
    dialect: Literal["responses", "chat"] = "chat"
    parameters: JSONTable = Field(default_factory=dict)
    """Added to every request, such as temperature."""
    retry_for_s: Seconds = 120.0
    """How long a call is tried again while the endpoint cannot be reached or answers 429 or 5xx."""
    first_token_timeout_s: Seconds = 900.0
    """How long a streamed call waits for its first bytes."""
    idle_timeout_s: Seconds = 300.0
    """And for each of those after them."""
    timeout_s: Seconds = 3600.0
    """Of one call as a whole."""

    cuts: bool = True
    """With checkpoints on: keep what has been generated of calls in flight, and continue it where the endpoint can."""
    backend: Literal["auto", "vllm", "sglang", "llama.cpp", "midflight", "openai"] = "auto"
    """What serves the endpoint, where it does not say so itself."""
    tool_format: Literal["", "hermes", "marks"] = ""
    """How calls of tools stand in the text that the model generates; empty if unknown."""
    resampled: bool = False
    """Accept a continuation that may differ from the uncut one, where the backend cannot promise more."""
    max_weight_lag: Natural | None = None
    """Versions of the weights that a continued beginning may be behind; no limit if left out."""
    stale_prefix: Literal["anew", "mask"] = "anew"
    """What becomes of a beginning that is further behind: generated anew, or continued and masked in the ledger."""

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("it is no http:// or https:// URL")
        return url

    @field_validator("base_url")
    @classmethod
    def _without_credentials(cls, url: str) -> str:
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise ValueError("it holds credentials; name an environment variable with api_key_env")
        return url


class AgentTable(Table):
    """`[agent]`: limits of the tool loop."""

    max_steps: Positive = 32
    max_wall_s: NotNegative = 0.0
    """Active time of one episode, without what it was parked; 0 for no limit."""


class ResourcesTable(Table):
    """`[resources.<name>]`: a resources server."""

    server: str
    """`module:Class`."""
    options: JSONTable = Field(default_factory=dict)


class CaptureTable(Table):
    """`[capture]`: a row and the complete record of every model call, exact across crashes."""

    folder: Annotated[str, Field(min_length=1)]
    """A local folder, made if it is missing."""

    @field_validator("folder")
    @classmethod
    def _is_local(cls, folder: str) -> str:
        if "://" in folder:
            raise ValueError("it is a URL; name a folder on a local disk")
        return folder


class CheckpointTable(Table):
    """`[checkpoint]`: off unless enabled."""

    enabled: bool = False
    url: str | None = None
    interval_s: NotNegative = 60.0
    """Between two checkpoints; 0 for none but those asked for by signal."""
    prepare_timeout_s: Seconds = 30.0
    """How long tool calls in flight are waited for."""
    more_time_s: NotNegative = 30.0
    """Given once more where some are left then."""
    commit_timeout_s: Seconds = 300.0
    publish_timeout_s: Seconds = 60.0
    lease_s: Seconds = 120.0
    """After so long without a word from the controller the participants go on by themselves."""
    liveness_beat_s: Seconds = 5.0
    """How often the collector says that it lives, and looks whether another one has taken over."""
    grace_s: Seconds = 60.0
    """How long SIGTERM waits for blockers before it retires them."""
    keep_last: Positive = 2
    """Checkpoints that are kept."""
    single_writer: bool = False
    """Accept a store without exclusive create, on your word that no second collector can ever run."""
    token_env: str | None = None
    """Kept for servers in other processes, which are asked with a token; refused until a run can have some."""

    @field_validator("token_env")
    @classmethod
    def _has_no_effect(cls, name: str | None) -> str | None:
        if name is not None:
            raise ValueError("all servers of a run are in its own process, and none asks for a token; remove the key")
        return name

    @model_validator(mode="after")
    def _has_url(self) -> "CheckpointTable":
        if self.enabled and not self.url:
            raise ValueError("an enabled checkpoint needs a url")
        if self.lease_s <= max(self.prepare_timeout_s, self.more_time_s):
            raise ValueError("lease_s must be longer than prepare_timeout_s and more_time_s")
        return self


class Config(Table):
    """The whole file."""

    run: RunTable
    model: ModelTable
    agent: AgentTable = AgentTable()
    resources: dict[str, ResourcesTable]
    checkpoint: CheckpointTable = CheckpointTable()
    capture: CaptureTable | None = None


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read and validate a file. Raises ConfigError."""
    try:
        document = tomllib.loads(Path(path).read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place, said = ".".join(str(step) for step in first["loc"]) or "file", first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            said = f"there is no such key; there are {', '.join(_table_at(first['loc'][:-1]).model_fields)}"
        raise ConfigError(f"{path}: {place}: {said}") from error
    return _anchored(config, Path(path).resolve().parent)


def _table_at(steps: Sequence[str | int]) -> type[Table]:
    """The table that a place in the file is in."""
    table: type[Table] = Config
    for step in steps:
        if (field := table.model_fields.get(str(step))) is None:
            continue  # The name of one of several tables of one kind.
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Table):
                table = kind
    return table


def _anchored(config: Config, folder: Path) -> Config:
    run = config.run.model_copy(
        update={
            "output": anchor(config.run.output, folder),
            "input": config.run.input and anchor(config.run.input, folder),
        }
    )
    checkpoint = config.checkpoint.model_copy(
        update={"url": config.checkpoint.url and anchor(config.checkpoint.url, folder)}
    )
    capture = config.capture and config.capture.model_copy(update={"folder": anchor(config.capture.folder, folder)})
    return config.model_copy(update={"run": run, "checkpoint": checkpoint, "capture": capture})


def anchor(location: str, folder: Path) -> str:
    """A relative path made relative to `folder`; a URL stays as it is."""
    return location if "://" in location or os.path.isabs(location) else str(folder / location)


def secret(name: str | None) -> str | None:
    """The value of an environment variable that the configuration names. Raises ConfigError where it is not set."""
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"the environment variable {name} is not set, and the configuration names it")
    return value
