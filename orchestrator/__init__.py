"""Orchestrator: coordination of checkpoints over participants, the collection run and the command line.

The names are imported when they are first asked for (`orchestrator.lazy` says why).
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .lazy import names_from as _names_from

if _TYPE_CHECKING:
    from .conformance import ConformanceReport, check_conformance, conformance_tests
    from .coordination import Standstill, abort, commit, prepare, renew, restore, resume, retire
    from .errors import (
        CommitFailed,
        ControlFailed,
        CoordinationError,
        OtherStore,
        PrepareFailed,
        RenewFailed,
        RestoreFailed,
        TalliesDiffer,
    )
    from .fleet import Fleet, Member, Outcome, adopt, ask_all, discover, failures_of
    from .links import HttpLink, Link, LocalLink, http_client
    from .rounds import Blocked, Round, RoundLimits, checkpoint
    from .training import (
        CursorDiffers,
        ForeignHead,
        InsideCheckpoint,
        NoState,
        NothingDispatched,
        Result,
        RunLeft,
        Save,
        ServersLost,
        TrainingError,
        TrainingRun,
        UnknownRollout,
        UnusableFile,
        UnusableState,
        files_in_use,
        training_run,
    )

__all__ = [
    "Blocked",
    "CommitFailed",
    "ConformanceReport",
    "ControlFailed",
    "CoordinationError",
    "CursorDiffers",
    "Fleet",
    "ForeignHead",
    "HttpLink",
    "InsideCheckpoint",
    "Link",
    "LocalLink",
    "Member",
    "NoState",
    "NothingDispatched",
    "OtherStore",
    "Outcome",
    "PrepareFailed",
    "RenewFailed",
    "RestoreFailed",
    "Result",
    "Round",
    "RoundLimits",
    "RunLeft",
    "Save",
    "ServersLost",
    "Standstill",
    "TalliesDiffer",
    "TrainingError",
    "TrainingRun",
    "UnknownRollout",
    "UnusableFile",
    "UnusableState",
    "abort",
    "adopt",
    "ask_all",
    "check_conformance",
    "checkpoint",
    "commit",
    "conformance_tests",
    "discover",
    "failures_of",
    "files_in_use",
    "http_client",
    "prepare",
    "renew",
    "restore",
    "resume",
    "retire",
    "training_run",
]

__getattr__ = _names_from(__name__, ("coordination", "errors", "fleet", "links", "rounds", "training", "conformance"))
