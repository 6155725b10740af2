"""The configuration of a collection run: a TOML file, validated once; unknown keys are refused by name.

Relative paths are relative to the file. Credentials never stand in it: it names environment variables.
"""

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key."""


class Table(BaseModel):
    """Base of the tables."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskSet(Table):
    """Tasks made by reasoning-gym (extra `tasks`)."""

    name: str
    size: Annotated[int, Field(ge=1)] = 100
    seed: int = 0


class RunTable(Table):
    """`[run]`: what is run, and where the rows go."""

    input: str | None = None
    """JSON Lines, a row a line. Either this or `task_set`."""
    task_set: TaskSet | None = None
    output: Annotated[str, Field(min_length=1)]
    """JSON Lines, a path or URL."""
    repeats: Annotated[int, Field(ge=1)] = 1
    limit: Annotated[int, Field(ge=0)] = 0
    """At most so many rows of the input; 0 for all."""
    concurrency: Annotated[int, Field(ge=1)] = 64
    """Episodes in flight."""
    max_attempts: Annotated[int, Field(ge=1)] = 3
    """Starts of a rollout before its failure is final."""

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
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Added to every request, such as temperature."""
    retry_for_s: Seconds = 120.0
    """How long a call is tried again while the endpoint cannot be reached or answers 429 or 5xx."""

    @field_validator("parameters")
    @classmethod
    def _json_only(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        for name, value in parameters.items():
            try:
                json.dumps(value, allow_nan=False)  # It refuses dates, which orjson would write as text.
                orjson.dumps(value)  # It refuses integers of more than 64 bits.
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name} cannot be sent as JSON ({error})") from error
        return parameters

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

    max_steps: Annotated[int, Field(ge=1)] = 32
    max_wall_s: Annotated[float, Field(ge=0)] = 0.0
    """Active time of one episode, without what it was parked; 0 for no limit."""


class ResourcesTable(Table):
    """`[resources.<name>]`: a resources server."""

    server: str
    """`module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)


class CheckpointTable(Table):
    """`[checkpoint]`: off unless enabled."""

    enabled: bool = False
    url: str | None = None
    interval_s: Annotated[float, Field(ge=0)] = 60.0
    """Between two checkpoints; 0 for none but those asked for by signal."""
    prepare_timeout_s: Seconds = 30.0
    """How long tool calls in flight are waited for."""
    more_time_s: Annotated[float, Field(ge=0)] = 30.0
    """Given once more where some are left then."""
    commit_timeout_s: Seconds = 300.0
    publish_timeout_s: Seconds = 60.0
    lease_s: Seconds = 120.0
    """After so long without a word from the controller the participants go on by themselves."""
    liveness_beat_s: Seconds = 5.0
    """How often the collector says that it lives, and looks whether another one has taken over."""
    grace_s: Seconds = 60.0
    """How long SIGTERM waits for blockers before it retires them."""
    keep_last: Annotated[int, Field(ge=1)] = 2
    """Checkpoints that are kept."""
    single_writer: bool = False
    """Accept a store without exclusive create, on your word that no second collector can ever run."""
    token_env: str | None = None
    """Name of the environment variable with the control token, for servers in other processes."""

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
        raise ConfigError(f"{path}: {'.'.join(str(s) for s in first['loc']) or 'file'}: {first['msg']}") from error
    return _anchored(config, Path(path).resolve().parent)


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
    return config.model_copy(update={"run": run, "checkpoint": checkpoint})


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
