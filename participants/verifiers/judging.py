"""Asking a judge: the one place from which a verifier calls a model, and where what goes wrong with that is told.

A judge is a peer of kind model. It is asked through `server.call`, so under the rollout's own life and a call id: after
a crash the verify runs again, asks the same, and is given what the judge had said or the rest of what it was saying.

    what happens                                     what comes of it
    no verdict in time, of active time               judge_failed
    a refusal, an error, no generation, no text      judge_failed
    the judge's server or a worker is lost, fenced,  the same error, unchanged: a loss of the run's own servers is
    or closed for a checkpoint                       handled by its controller, and counts as no attempt

What is read is the judge's own reply, and of it what follows its last `</think>`: nothing, where it began to think
aloud and did not come to an end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from ..chat_items import from_chat, to_chat
from ..data import Peer, Reply
from ..errors import Code, ParticipantError
from ..generations import CHAT, RESPONSES, check_generation
from ..output_text import output_text
from ..resources import ResourcesServer

Dialect = Literal["chat", "responses"]
JUDGE = "model.main"
TIMEOUT_S = 600.0
AT_ONCE = 64
DEFAULT_PARAMETERS: Mapping[str, Any] = {"temperature": 0.0, "max_output_tokens": 4096}
PASSED_ON = frozenset(
    {
        Code.UNREACHABLE,
        Code.STALE_LIFE,
        Code.STALE_CALL,
        Code.STALE_EPOCH,
        Code.LOST_SESSION,
        Code.WRONG_INCARNATION,
        Code.ADMISSION_CLOSED,
    }
)
"""What says something of the run's servers, and nothing of the judge."""
_THOUGHT_BEGINS, _THOUGHT_ENDS = "<think>", "</think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One reply of a judge."""

    asked: Mapping[str, Any]
    """The request, in the form of the Responses API."""
    response: Mapping[str, Any]
    """The whole reply, in the same form."""
    text: str
    """What it says, without what it thought aloud; never empty."""

    @property
    def as_evaluation(self) -> dict[str, Any]:
        """As a reply of a verifier shows it."""
        return {"responses_create_params": dict(self.asked), "response": dict(self.response)}


class JudgingServer(ResourcesServer):
    """Base of the verifiers that ask a judge."""

    def __init__(
        self,
        name: str = "main",
        *,
        peers: Mapping[str, Peer],
        judge: str = JUDGE,
        judge_dialect: Dialect = "chat",
        judge_parameters: Mapping[str, Any] = DEFAULT_PARAMETERS,
        judge_timeout_s: float = TIMEOUT_S,
        judge_at_once: int = AT_ONCE,
        judge_needed: bool = True,
        **options: Any,
    ) -> None:
        """`judge` is a role of `peers`; `judge_parameters` are those of a Responses request.

        `judge_timeout_s` is active time of one call, without what it was parked; `judge_at_once` bounds open calls.
        Raises ValueError for a judge that is needed and not there, and for numbers that are no limits.
        """
        super().__init__(name, **options)
        if judge_needed and judge not in peers:
            raise ValueError(f"there is no judge {judge!r}; there are {', '.join(sorted(peers)) or 'no models'}")
        if judge_dialect not in ("chat", "responses"):
            raise ValueError(f"judge_dialect is chat or responses, and not {judge_dialect!r}")
        if not judge_timeout_s > 0 or judge_at_once < 1:
            raise ValueError("judge_timeout_s must be more than 0, and judge_at_once at least 1")
        self._judge = peers.get(judge)
        self._chat = judge_dialect == "chat"
        self._parameters = dict(judge_parameters)
        self._timeout_s = judge_timeout_s
        self._at_once = anyio.Semaphore(judge_at_once)

    async def ask_judge(self, items: Sequence[Mapping[str, Any]], **extra: Any) -> Judgement:
        """Ask once, from inside of verify; `extra` are further fields of the request. Raises `judge_failed`."""
        asked = {**self._parameters, **extra, "input": [dict(item) for item in items]}
        async with self._at_once:
            try:
                async with self.gate.time_limit(self._timeout_s, "the judge"):
                    return await self._ask(asked)
            except ParticipantError as error:
                raise self._told(error) from error

    async def _ask(self, asked: dict[str, Any]) -> Judgement:
        assert self._judge is not None
        route, body = (CHAT, to_chat(asked)) if self._chat else (RESPONSES, asked)
        reply = await self.call(self._judge, route, body)
        response = self._response(route, reply)
        text = output_text(response).rpartition(_THOUGHT_ENDS)[2].strip()
        text = "" if text.startswith(_THOUGHT_BEGINS) else text
        if not text:
            why = f"it said nothing, and its status is {response.get('status')!r}"
            raise ParticipantError(Code.JUDGE_FAILED, why, {"incomplete": response.get("incomplete_details")})
        return Judgement(asked=asked, response=response, text=text)

    def _response(self, route: str, reply: Reply) -> dict[str, Any]:
        if not reply.ok:
            told = f"it answered {reply.status}: {reply.body!r:.300}"
            raise ParticipantError(Code.JUDGE_FAILED, told, {"status": reply.status})
        if self._chat:
            return from_chat(reply.body, "judge")
        check_generation(route, reply.body)
        return dict(reply.body)

    def _told(self, error: ParticipantError) -> ParticipantError:
        """As a failure of the judge, unless it is one of the run's servers."""
        if error.code in PASSED_ON:
            return error
        told = f"the judge {self._judge and self._judge.role} of {self.role} gave no verdict: {error.message}"
        return ParticipantError(Code.JUDGE_FAILED, told, {**error.details, "code": error.code.value})
