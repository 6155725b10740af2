"""What deployment raises.

DeploymentError       says what is wrong and what to do about it
├── PortTaken         somebody listens where a server was to listen
├── FolderTaken       another process runs the fleet of this folder
├── NotUp             a server died, or was not ready in time, when it was started
├── NoFleet           there is nothing to attach to, or no token to ask it with
├── NotAnswering      a server does not answer as what it should be
├── NotOurs           a server that somebody else runs cannot be started from here
└── BadState          the state file says nothing that can be used
"""

from collections.abc import Mapping
from pathlib import Path


class DeploymentError(Exception):
    """The fleet is not as it was wanted; the message says what to do."""

    code = "deployment"


class PortTaken(DeploymentError):
    """An address that a server was to have is in use."""

    code = "port_taken"

    def __init__(self, role: str, listen: str, why: str) -> None:
        super().__init__(
            f"{role} cannot listen on {listen}: {why}. End what listens there, or name another address in "
            f'[fleet.servers."{role}"]; nothing was started there'
        )


class FolderTaken(DeploymentError):
    """A live process runs the fleet of this folder."""

    code = "folder_taken"

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(
            f"{folder} is the folder of a fleet that {holder} runs. Stop that, attach to its servers with "
            'mode = "attach", or name another folder in [fleet]'
        )


class NotUp(DeploymentError):
    """Servers that were started are not there; everything that was started with them has been ended."""

    code = "not_up"

    def __init__(self, failures: Mapping[str, str]) -> None:
        """`failures` maps the role to what became of it, with the end of its log."""
        self.failures = dict(failures)
        super().__init__("\n".join(f"{role} did not come up: {why}" for role, why in sorted(failures.items())))


class NoFleet(DeploymentError):
    """There is no fleet to attach to."""

    code = "no_fleet"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Run `midflight up` with this file first, or give each server a url in [fleet.servers]"
        )


class NotAnswering(DeploymentError):
    """Servers do not answer the control token as what they should be."""

    code = "not_answering"

    def __init__(self, failures: Mapping[str, str]) -> None:
        """`failures` maps the role to what it answered instead."""
        self.failures = dict(failures)
        told = "; ".join(f"{role} {why}" for role, why in sorted(failures.items()))
        super().__init__(f"{told}. Start what is down, or correct its url or the token")


class NotOurs(DeploymentError):
    """A server that somebody else runs."""

    code = "not_ours"

    def __init__(self, role: str) -> None:
        super().__init__(f"{role} is run by somebody else, and cannot be started from here. Start it where it is run")


class BadState(DeploymentError):
    """A state file that cannot be read."""

    code = "bad_state"

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} cannot be used: {why}. Remove it; servers that still run are ended by the next start")
