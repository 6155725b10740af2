"""Training: a trainer's loop over rollouts, with checkpoints of its own state and theirs in one step."""

from .errors import (
    CursorDiffers,
    ForeignHead,
    InsideCheckpoint,
    NoState,
    NothingDispatched,
    RunLeft,
    ServersLost,
    TrainingError,
    UnknownRollout,
    UnusableFile,
    UnusableState,
)
from .ledger import Result
from .run import TrainingRun
from .save import Save, files_in_use
from .start import training_run

__all__ = [
    "CursorDiffers",
    "ForeignHead",
    "InsideCheckpoint",
    "NoState",
    "NothingDispatched",
    "Result",
    "RunLeft",
    "Save",
    "ServersLost",
    "TrainingError",
    "TrainingRun",
    "UnknownRollout",
    "UnusableFile",
    "UnusableState",
    "files_in_use",
    "training_run",
]
