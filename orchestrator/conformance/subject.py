"""What is tried: a class of resources servers, its cases, and fresh instances of it.

An instance stands for the memory of one process. When that "crashes" it is dropped and nothing of it is closed, because
a crash closes nothing. What it held outside of this process is freed only when the whole trial is over.
"""

import itertools
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from participants import Case, Conformance, Gate, ResourcesServer
from participants.serving.loading import make_resources

Group = tuple[Case, ...]
"""Cases that are played together: one, or all of a cohort."""
ROLE = "resources.main"
TEARDOWN_S = 20.0
_numbers = itertools.count(1)
"""Of all trials in this process: no two ever use the same rollout, whatever a server keeps beyond an instance."""


def packages() -> frozenset[str]:
    """What is imported in this process, by the names of packages and lone modules."""
    return frozenset(name.partition(".")[0] for name in sys.modules)


@dataclass(slots=True)
class Subject:
    """One class, as it is tried."""

    server: type[ResourcesServer]
    conformance: Conformance
    target: str = ""
    """`module:Class`, by which another process imports it; empty where none can."""
    made: list[ResourcesServer] = field(default_factory=list)
    """Instances of the trial that goes on."""
    imported: frozenset[str] = field(default_factory=packages)
    """Those that were there before anything was tried."""

    @property
    def checkpoints(self) -> bool:
        """Whether its sessions are checkpointed at all."""
        return self.server.checkpoint_mode != "restart"

    @property
    def exports_itself(self) -> bool:
        """Whether its author wrote `export_session`."""
        return self.server.export_session is not ResourcesServer.export_session

    @property
    def imports_itself(self) -> bool:
        """Whether its author wrote `import_session`."""
        return self.server.import_session is not ResourcesServer.import_session

    def make(
        self, found: type[ResourcesServer] | None = None, clock: Callable[[], float] | None = None
    ) -> ResourcesServer:
        """A fresh instance; `found` is a subclass to make in its place. Raises ConfigError."""
        given = self.conformance
        made = make_resources(ROLE, self.server.__name__, found or self.server, given.options, "main", given.peers)
        if clock is not None:
            made.gate = Gate(clock=clock)
        self.made.append(made)
        return made

    @asynccontextmanager
    async def trial(self) -> AsyncIterator[None]:
        """One trial: whatever it made is closed at its end."""
        before, self.made = self.made, []
        try:
            yield
        finally:
            made, self.made = self.made, before
            with anyio.CancelScope(shield=True), anyio.move_on_after(TEARDOWN_S):
                for server in made:
                    await server.aclose()


def groups_of(cases: Sequence[Case]) -> list[Group]:
    """Cases of one cohort together, every other one alone, in the order of their first."""
    found: dict[object, list[Case]] = {}
    for number, case in enumerate(cases):
        found.setdefault(case.cohort or number, []).append(case)
    return [tuple(group) for group in found.values()]


def rollout_names(group: Group) -> list[str]:
    """A name for the rollout of each case that nothing else has."""
    number = next(_numbers)
    return [f"conformance-{number}-{place}" for place in range(len(group))]


def case_of(document: Mapping[str, Any]) -> Case:
    """A case from JSON. Raises KeyError, TypeError or ValueError, saying what is wrong."""
    from participants import ToolCall

    unknown = document.keys() - {"row", "calls", "said", "cohort"}
    if unknown:
        raise ValueError(f"a case has no field {min(unknown)!r}; it has row, calls, said and cohort")
    calls = [ToolCall(name=str(call["name"]), arguments=dict(call.get("arguments", {}))) for call in _list(document)]
    texts = {key: str(document[key]) for key in ("said", "cohort") if key in document}
    return Case(row=dict(document["row"]), calls=calls, **texts)


def _list(document: Mapping[str, Any]) -> list[Any]:
    calls = document.get("calls", [])
    if not isinstance(calls, list):
        raise TypeError(f"calls are {calls!r:.80}, not a list")
    return calls


def document_of(case: Case) -> dict[str, Any]:
    """The case as JSON."""
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in case.calls]
    return {"row": dict(case.row), "calls": calls, "said": case.said, "cohort": case.cohort}
