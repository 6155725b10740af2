"""The configuration of a collection run: a TOML file, validated once; unknown keys are refused by name.

Relative paths are relative to the file. Credentials never stand in it: it names environment variables.
"""

import os
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from participants.serving import ConfigError, ModelSettings
from participants.serving.settings import (
    MAX_INT,
    ClassPath,
    JSONTable,
    Natural,
    NotNegative,
    Place,
    Positive,
    Seconds,
    Table,
    Texts,
    problem_of,
)
from store import InvalidName, ProcessName

from ..deployment.config import MAIN_MODEL, FleetTable, check_roles
from .telemetry import TelemetryTable


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


class OutputGone(ConfigError):
    """Rows of the run that the checkpoint store is of are not in the output: it was removed, renamed, or cut."""

    def __init__(self, url: str, output: str, what: str) -> None:
        super().__init__(
            f"{output} lacks rows of the run whose checkpoint store is {url}: {what}. Put the output and its segments "
            "back, or its earlier name into the configuration; or start anew with --fresh, where nothing of before "
            "counts; or name another folder as url in [checkpoint]. Nothing was changed"
        )


class ForeignHead(ConfigError):
    """The checkpoint to go on from is of another controller, which says nothing of what its run means."""

    def __init__(self, url: str, checkpoint: str) -> None:
        super().__init__(
            f"{url}: this checkpoint is not one of midflight collect: {checkpoint} was made by another controller. "
            "Name another url in [checkpoint]; nothing was changed"
        )


class BadPlace(ConfigError):
    """The run would write where it must not, or cannot."""

    def __init__(self, what: str, place: str, why: str) -> None:
        super().__init__(f"{what}: {place} {why}. Name another place; nothing was changed")


def _in_list(name: object) -> object:
    return [name] if isinstance(name, str) else name


class TaskSet(Table):
    """Tasks made by reasoning-gym (extra `tasks`)."""

    name: Annotated[Texts, Field(min_length=1), BeforeValidator(_in_list)]
    """Of one of its data sets, or of several."""
    size: Positive = 100
    """Tasks of each."""
    seed: Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)] = 0
    config: JSONTable = Field(default_factory=dict)
    """Settings of the data sets themselves."""
    calculator: bool = True
    """Whether the model is offered the tool `calculate`."""

    @field_validator("config")
    @classmethod
    def _own_settings(cls, config: dict[str, Any]) -> dict[str, Any]:
        if twice := sorted({"name", "size", "seed", "calculator"} & config.keys()):
            raise ValueError(f"{' and '.join(twice)} stands in task_set itself, not in its config")
        return config


class RunTable(Table):
    """`[run]`: what is run, and where the rows go."""

    input: Place | None = None
    """JSON Lines, a row a line. Either this or `task_set`."""
    task_set: TaskSet | None = None
    output: Annotated[Place, Field(min_length=1)]
    """JSON Lines, a path or URL."""
    repeats: Positive = 1
    limit: Natural = 0
    """At most so many rows of the input; 0 for all."""
    concurrency: Positive = 64
    """Episodes in flight."""
    max_attempts: Positive = 3
    """Starts of a rollout before its failure is final."""
    stop_after_failures: Natural = 100
    """Rows that fail, while no episode comes to its end, before the run stops; 0 for never."""
    close_s: Seconds = 10.0
    """How long a run that was told to stop may take to close its sessions; then its process ends nevertheless."""

    @model_validator(mode="after")
    def _one_source(self) -> "RunTable":
        if (self.input is None) == (self.task_set is None):
            raise ValueError("give either input or task_set")
        return self


class AgentTable(Table):
    """`[agent]`: the agent, its limits and options."""

    server: ClassPath | None = None
    """Of one's own; None for the tool loop that ships."""
    options: JSONTable = Field(default_factory=dict)
    """Keyword arguments of one's own class."""
    max_steps: Positive = 32
    max_wall_s: NotNegative = 0.0
    """Active time of one episode, without what it was parked; 0 for no limit."""

    @model_validator(mode="after")
    def _options_of_a_class(self) -> "AgentTable":
        if self.options and self.server is None:
            raise ValueError("options are those of an agent of one's own: name its class as server, or remove them")
        if twice := sorted({"max_steps", "max_wall_s"} & self.options.keys()):
            raise ValueError(f"{' and '.join(twice)} stands in [agent] itself, not in its options")
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """What the class is made with: its options and the limits that the file names, no default of ours."""
        return {**self.options, **self.model_dump(exclude_unset=True, include={"max_steps", "max_wall_s"})}


class ResourcesTable(Table):
    """`[resources.<name>]`: a resources server."""

    server: ClassPath
    options: JSONTable = Field(default_factory=dict)


class CaptureTable(Table):
    """`[capture]`: a row and the complete record of every model call, exact across crashes."""

    folder: Annotated[Place, Field(min_length=1)]
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
    url: Place | None = None
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

    @model_validator(mode="after")
    def _has_url(self) -> "CheckpointTable":
        if self.enabled and not self.url:
            raise ValueError("an enabled checkpoint needs a url")
        if self.lease_s <= max(self.prepare_timeout_s, self.more_time_s):
            raise ValueError("lease_s must be longer than prepare_timeout_s and more_time_s")
        return self


class Participants(Table):
    """What a file says of the participants, and where they run: all that `midflight up` needs."""

    run: RunTable | None = None
    model: ModelSettings
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    """`[models.<name>]`: further model servers, which resources servers may ask, such as a judge."""
    agent: AgentTable = AgentTable()
    resources: dict[str, ResourcesTable]
    checkpoint: CheckpointTable = CheckpointTable()
    capture: CaptureTable | None = None
    fleet: FleetTable | None = None
    telemetry: TelemetryTable | None = None

    @field_validator("resources")
    @classmethod
    def _have_names(cls, resources: dict[str, ResourcesTable]) -> dict[str, ResourcesTable]:
        for name in resources:
            _check_name("resources", name)
        return resources

    @field_validator("models")
    @classmethod
    def _are_further(cls, models: dict[str, ModelSettings]) -> dict[str, ModelSettings]:
        for name, settings in models.items():
            if f"model.{name}" == MAIN_MODEL:
                raise ValueError(f"{MAIN_MODEL} is the one of [model]; name this one otherwise")
            _check_name("model", name)
            if own := sorted({"dialect", "parameters"} & settings.model_fields_set):
                raise ValueError(f"{name}: {' and '.join(own)} belong to who asks it: they are options of its server")
        return models

    @model_validator(mode="after")
    def _has_roles(self) -> Self:
        if self.fleet is not None:
            check_roles(self.fleet, self.resources, self.models)
        return self

    @property
    def endpoints(self) -> dict[str, ModelSettings]:
        """Of every model server, by role, the policy's first."""
        return {MAIN_MODEL: self.model, **{f"model.{name}": each for name, each in sorted(self.models.items())}}


class Config(Participants):
    """The whole file."""

    run: RunTable


def _check_name(kind: str, name: str) -> None:
    try:
        ProcessName(kind, name, "w0")
    except InvalidName as error:
        raise ValueError(str(error)) from error


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read and validate the file of a run. Raises ConfigError."""
    return _load(path, Config)


def load_participants(path: str | os.PathLike[str]) -> Participants:
    """Read and validate a file that need have no run. Raises ConfigError."""
    return _load(path, Participants)


_C = TypeVar("_C", bound=Participants)


def _load(path: str | os.PathLike[str], kind: type[_C]) -> _C:
    try:
        document = tomllib.loads(Path(path).read_text())
    except RecursionError as error:
        raise ConfigError(f"{path} cannot be read: it is nested too deeply") from error
    except (OSError, ValueError) as error:  # Besides what is no TOML: no text, or a number of thousands of digits.
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        config = kind.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{path}: {problem_of(error, kind)}") from error
    return _anchored(config, Path(path).resolve().parent)


def _anchored(config: _C, folder: Path) -> _C:
    run = config.run and config.run.model_copy(
        update={
            "output": anchor(config.run.output, folder),
            "input": config.run.input and anchor(config.run.input, folder),
        }
    )
    checkpoint = config.checkpoint.model_copy(
        update={"url": config.checkpoint.url and anchor(config.checkpoint.url, folder)}
    )
    capture = config.capture and config.capture.model_copy(update={"folder": anchor(config.capture.folder, folder)})
    fleet = config.fleet
    if fleet is not None:  # By its one true name, which tells whose the processes of a fleet are.
        fleet = fleet.model_copy(update={"folder": os.path.realpath(anchor(fleet.folder, folder))})
    return config.model_copy(update={"run": run, "checkpoint": checkpoint, "capture": capture, "fleet": fleet})


def anchor(location: str, folder: Path) -> str:
    """A relative path made relative to `folder`; a URL stays as it is."""
    return location if "://" in location or os.path.isabs(location) else str(folder / location)
