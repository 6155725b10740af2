"""genrm_compare for runs in child processes: it logs its verifies, can be held, and brings its judge's words along."""

import json
from collections.abc import Collection
from typing import Any

from participants import ResourcesSession
from participants.verifiers.genrm_compare import GenRMCompareServer
from participants.verifiers.genrm_scoring import Answer
from store import Life

from .logged_counter import Log

ASKED = "COMPARE"
"""Stands in the prompt of every comparison, and in no other."""


class LoggedGenRM(GenRMCompareServer):
    """The judge is asked in Chat, and told by a script to say what `verdict` says."""

    def __init__(self, name: str = "main", *, log: str, hold: str = "", pause_s: float = 0.0, **options: Any) -> None:
        """`verify` and then `told <index>` are logged, and held as those of a LoggedCounter."""
        super().__init__(name, judge_dialect="chat", **options)
        self._log = Log(log, hold, pause_s)

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """Held before it joins, and once its reward is known."""
        await self._log.note(session, "verify")
        result = await super().verify(session, row)
        await self._log.note(session, "told", result["rollout_index"])
        return result

    async def _ask_about(self, one: Answer, other: Answer) -> Any:
        script = json.dumps([{"text": json.dumps(verdict(one.text, other.text))}])
        content = f"{ASKED} {one.text!r} and {other.text!r}. <script>{script}</script>"
        return await self.ask_judge([{"role": "user", "content": content}])


class ForgetfulGenRM(LoggedGenRM):
    """What it has decided is in no checkpoint."""

    def export_own(self, scope: Collection[Life]) -> Any:
        """Nothing of it."""
        return None


def verdict(one: str, other: str) -> dict[str, int]:
    """By the last digit of each answer, from 0 to 4; who is equal is much worse in second place."""
    return {"score_1": 1 + int(one[-1]), "score_2": 1 + int(other[-1]), "ranking": 1}
