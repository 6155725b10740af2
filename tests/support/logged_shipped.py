"""Servers that ship, for runs in child processes: each logs what it does before it does it, and can be held there."""

from typing import Any

import anyio

from participants import ResourcesServer, ResourcesSession
from participants.servers.shell import ShellServer
from participants.servers.workplace import WorkplaceServer
from participants.verifiers.code_gen import CodeGenServer
from participants.verifiers.equivalence_llm_judge import EquivalenceLLMJudgeServer
from participants.verifiers.math_with_judge import MathWithJudgeServer

from .logged_counter import Log

PAUSE_S = 0.02


class _Logged(ResourcesServer):
    """Stands before the server in the order of bases."""

    def __init__(self, name: str = "main", *, log: str, hold: str = "", **options: Any) -> None:
        """`tool <name>`, `verify` and `close` are held as those of a LoggedCounter; the last one is not logged."""
        super().__init__(name, **options)
        self._log, self._holds = Log(log, hold), bool(hold)

    async def call_tool(self, session: ResourcesSession, name: str, arguments: Any) -> Any:
        """Logged by its name."""
        await self._log.note(session, "tool", name)
        return await super().call_tool(session, name, arguments)

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """Logged."""
        await self._log.note(session, "verify")
        return dict(await super().verify(session, row))

    async def close_session(self, session: ResourcesSession) -> None:
        """Wait as long as it is held."""
        while self._holds and await self._log.is_held("close"):  # noqa: ASYNC110 - a file is no event
            await anyio.sleep(PAUSE_S)
        await super().close_session(session)


class LoggedShell(_Logged, ShellServer):
    """The shell."""


class EmptyShell(LoggedShell):
    """Restores every session as an empty folder: what a server does that keeps its files in no export."""

    async def import_session(self, session: ResourcesSession, exported: Any) -> None:
        """Nothing of what was exported."""
        await self.seed(session, {})


class LoggedWorkplace(_Logged, WorkplaceServer):
    """The office."""


class LoggedEquivalence(_Logged, EquivalenceLLMJudgeServer):
    """The judge of answers in words."""


class LoggedMath(_Logged, MathWithJudgeServer):
    """The judge of answers in formulas."""


class LoggedCodeGen(_Logged, CodeGenServer):
    """The runner of unit tests."""
