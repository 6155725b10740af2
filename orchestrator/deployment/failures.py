"""What deployment raises.

DeploymentError       says what is wrong and what to do about it
├── PortTaken         somebody listens where a server was to listen
│   └── NotThisHost   the address is none of this machine's, or none that another machine could reach
├── FolderTaken       another process runs the fleet of this folder
├── NotUp             a server died, or was not ready in time, when it was started
│   └── CannotBe      it said itself that what it was started from cannot be
├── NoFleet           there is nothing to attach to, or no token to ask it with
├── NotAnswering      a server does not answer as what it should be
├── NotOurs           a server that somebody else runs cannot be started from here
├── BadState          the state file says nothing that can be used
└── NotWritten        the folder of the fleet takes no files
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class DeploymentError(Exception):
    """The fleet is not as it was wanted; the message says what to do."""

    code = "deployment"


class PortTaken(DeploymentError):
    """An address that a server was to have is in use."""

    code = "port_taken"

    def __init__(self, role: str, listen: str, why: str, *, host: str | None = None) -> None:
        """`host` of several, where its address follows from the file."""
        self.role, self.listen, self.host = role, listen, host
        other = "base_port in [fleet]" if host else f'address in [fleet.servers."{role}"]'
        super().__init__(
            f"{role} cannot listen on {listen}: {why}. End what listens there, or name another {other}; "
            "nothing was started there"
        )


class NotThisHost(PortTaken):
    """The address of a host is not one of this machine."""

    code = "not_this_host"

    def __init__(self, role: str, listen: str, host: str, *, loopback: str = "") -> None:
        """`loopback` is the address of this machine alone that the name of the host means here."""
        super().__init__(role, listen, "", host=host)
        self.args = (
            f"{role} would listen on {loopback} alone: that is what the address of {host} in [fleet.hosts] means on "
            "this machine, as by its /etc/hosts, and no other host reaches it. Put a number there, such as 10.0.0.1; "
            "nothing was started"
            if loopback
            else f"{role} cannot listen on {listen}: this machine has no such address, and [fleet.hosts] says that "
            f"{host} has it. Run this on {host}, or correct the address; nothing was started",
        )


class FolderTaken(DeploymentError):
    """A live process runs the fleet of this folder."""

    code = "folder_taken"

    def __init__(self, folder: Path, holder: str, *, to_end: bool = False) -> None:
        """`to_end`: of somebody who only wanted to end its servers."""
        self.folder, self.holder = folder, holder
        advice = (
            f"To end its servers, send SIGTERM to {holder} first; it ends them itself"
            if to_end
            else 'Stop that, attach to its servers with mode = "attach", or name another folder in [fleet]'
        )
        super().__init__(f"{folder} is the folder of a fleet that {holder} runs. {advice}")


class NotUp(DeploymentError):
    """Servers that were started are not there; everything that was started with them has been ended."""

    code = "not_up"

    def __init__(self, failures: Mapping[str, str]) -> None:
        """`failures` maps the role to what became of it, with the end of its log."""
        self.failures = dict(failures)
        super().__init__("\n".join(f"{role} did not come up: {why}" for role, why in sorted(failures.items())))


class CannotBe(NotUp):
    """Servers that cannot be as the file says: each has said why, and a second start would say the same."""

    code = "cannot_be"

    def __init__(self, failures: Mapping[str, str]) -> None:
        """As of `NotUp`."""
        super().__init__(failures)
        self.args = (f"{self}\nCorrect what is said there; the same command fails again until then",)


class NoFleet(DeploymentError):
    """There is no fleet to attach to."""

    code = "no_fleet"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Run `midflight up` with this file first, or give each server a url in [fleet.servers]"
        )


SILENT, UNREACHED = "did not answer in", "cannot be reached"
OTHER_TOKEN, NO_PARTICIPANT = "does not take the control token", "is no participant"
"""What a server that does not answer as it should is said to do, unless it is another server."""
_ADVICE = {
    UNREACHED: "start what is down, or correct its url",
    SILENT: "look at the log of what is silent, or start it again",
    OTHER_TOKEN: "correct the token: token_env names the variable with the one that the server was started with",
    NO_PARTICIPANT: "correct the url of what is no participant, or start it with a token",
}
_ANOTHER = "correct the url of what is another server"
_HOSTS = (
    "; a host that does not come back is taken out of [fleet.hosts], and `midflight up --host` run again on all others"
)


def _advice(whys: Iterable[str]) -> str:
    """A sentence of what to do, with nothing that does not apply."""
    found = (next((advice for said, advice in _ADVICE.items() if said in why), _ANOTHER) for why in whys)
    told = "; ".join(dict.fromkeys(found))
    return told[:1].upper() + told[1:]


class NotAnswering(DeploymentError):
    """Servers do not answer the control token as what they should be."""

    code = "not_answering"

    def __init__(self, failures: Mapping[str, str], *, hosts: bool = False) -> None:
        """`failures` maps the role, or the role on a host where there are several, to what it answered instead."""
        self.failures = dict(failures)
        told = "; ".join(f"{role} {why}" for role, why in sorted(failures.items()))
        gone = any(said in why for why in failures.values() for said in (SILENT, UNREACHED))
        more = _HOSTS if hosts and gone else ""
        super().__init__(f"{told}. {_advice(failures[role] for role in sorted(failures))}{more}")


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


class NotWritten(DeploymentError):
    """A file of the fleet could not be written; what was started before that has been ended."""

    code = "not_written"

    def __init__(self, folder: Path, why: str) -> None:
        super().__init__(
            f"the files of the fleet in {folder} cannot be written: {why}. Make room there, or name another folder in "
            "[fleet], and run the same command again; nothing that it has started is left"
        )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What the system says while the files of a fleet are written. Raises NotWritten."""
    try:
        yield
    except OSError as error:
        raise NotWritten(folder, str(error)) from error
