"""What coordination raises.

CoordinationError           one error that names each participant that failed, and how
├── PrepareFailed           a participant failed or hung; blockers are no failure, they are data
├── CommitFailed
├── RenewFailed
├── TalliesDiffer           participants did not stand still together
├── RestoreFailed           nothing was opened anywhere
└── ControlFailed           adopt, resume, abort, retire or discovery
    └── OtherStore          discovery: servers have the store of another run
"""

from collections.abc import Mapping


class CoordinationError(Exception):
    """Names every participant that failed."""

    what: str = "failed"
    hint: str = ""

    def __init__(self, failures: Mapping[str, BaseException | str]) -> None:
        """`failures` maps `<kind>.<name>/<process>` to the reason."""
        self.failures = dict(failures)
        named = "; ".join(f"{who}: {why}" for who, why in sorted((w, str(e)) for w, e in failures.items()))
        super().__init__(f"{self.what}: {named}. {self.hint}")


class PrepareFailed(CoordinationError):
    """A participant failed or hung in prepare; the others were told to abort."""

    what = "prepare failed"
    hint = "Work goes on; try again in a new round"


class CommitFailed(CoordinationError):
    """A participant failed to commit."""

    what = "commit failed"
    hint = "Abort the round; earlier checkpoints are intact"


class RenewFailed(CoordinationError):
    """A lease ran out, so there is no proof that all stood still together."""

    what = "renew failed"
    hint = "Abort the round; nothing may be published"


class TalliesDiffer(CoordinationError):
    """Two participants do not agree on what is between them."""

    what = "participants did not stand still together"
    hint = "Abort the round and report it: this is a defect of a participant"


class RestoreFailed(CoordinationError):
    """A participant failed to stage or activate; nothing was opened anywhere."""

    what = "restore failed"
    hint = "Nothing was opened; name another checkpoint, or repair what is named and try again"


class ControlFailed(CoordinationError):
    """Another control operation failed at a participant."""

    what = "control failed"
    hint = "Ask for the status of what is named"


class OtherStore(ControlFailed):
    """Servers have the store of another run than the controller."""

    what = "servers have another store than this run"
    hint = (
        "All must reach the same one: a folder that another host does not share is another store there, and so is one "
        "that was removed since they started. Correct that, and start the servers again"
    )
