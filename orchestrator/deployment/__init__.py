"""Deployment: the servers of a fleet as processes of this host.

The names are imported when they are first asked for: the configuration of a run needs the table alone, and what acts
on it needs the configuration.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from ..lazy import names_from as _names_from

if _TYPE_CHECKING:
    from .config import FleetTable, ServerTable
    from .crew import RunningServer, Tell
    from .deployment import Deployment, deployed
    from .failures import (
        BadState,
        CannotBe,
        DeploymentError,
        FolderTaken,
        NoFleet,
        NotAnswering,
        NotOurs,
        NotUp,
        NotWritten,
        PortTaken,
    )

__all__ = [
    "BadState",
    "CannotBe",
    "Deployment",
    "DeploymentError",
    "FleetTable",
    "FolderTaken",
    "NoFleet",
    "NotAnswering",
    "NotOurs",
    "NotUp",
    "NotWritten",
    "PortTaken",
    "RunningServer",
    "ServerTable",
    "Tell",
    "deployed",
]

__getattr__ = _names_from(__name__, ("config", "crew", "deployment", "failures"))
