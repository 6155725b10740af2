"""genrm_compare: rewards of all rollouts of one prompt, from a generative reward model that compares them in pairs.

The cohort of a row is `group_id::<_ng_group_id>::group_attempt::<_ng_group_attempt>` where it names a group, and else
its task or prompt with a hash of what is asked. `_ng_rollout_index` says which member it is. A run with repeats gives
rows all of these itself.

A comparison is asked for under the life of the first member of its pair, with a call id that follows from what is
asked. So whoever decides, and however often after crashes, the judge's server generates each one once for a life.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import Any

import anyio
import orjson

from store import Life

from ..cases import Conformance
from ..data import CallId, Peer, Reply, Request, digest_of
from ..errors import Code, ParticipantError
from ..sessions import body_of
from .cohort import Cohort, CohortLimits, Member
from .cohort_server import CohortServer, Join, MemberGone, is_gone
from .genrm_cases import conformance
from .genrm_scoring import (
    Answer,
    Comparison,
    Strategy,
    Terms,
    Verdict,
    answer_of,
    history_of,
    items_of,
    metadata_of,
    pairs_of,
    parse_verdict,
    score,
)
from .judging import Dialect

COMPARE = "/compare"
_LAST_K = 10**17
"""Call numbers are below it."""


@dataclass(frozen=True, slots=True)
class _Asking:
    """For whom a comparison is asked for, and which one it is of those that ask the same."""

    life: Life | None
    boundary: int | None
    again: str

    def request(self, role: str, route: str, body: Any) -> Request:
        """The call, with an id that follows from its content."""
        call = None
        if self.life is not None and self.boundary is not None:
            number = int(digest_of(f"{route} {self.again}", body)[:16], 16) % _LAST_K
            call = CallId(role, self.boundary, number)
        return Request(route=route, body=body, life=self.life, call=call)


_asking: ContextVar[_Asking | None] = ContextVar("midflight_comparison", default=None)


class GenRMCompareServer(CohortServer):
    """Compares the rollouts of each prompt."""

    checkpoint_mode = "stateless"
    checkpoint_verify = "replay"

    def __init__(
        self,
        name: str = "main",
        *,
        num_rollouts_per_prompt: int = 16,
        comparison_strategy: Strategy = "circular",
        num_judges_per_comparison: int = 1,
        genrm_parse_retries: int = 3,
        use_principle: bool = False,
        default_principle: str = "",
        judge_dialect: Dialect = "responses",
        cohort_collection_timeout_s: float = 1800.0,
        cohort_evaluation_timeout_s: float = 1800.0,
        cohort_waiter_timeout_s: float = 1800.0,
        cohort_terminal_ttl_s: float = 21600.0,
        cohort_terminal_max: int = 4096,
        reasoning_bonus: float = 0.0,
        answer_bonus: float = 0.0,
        top_percentile: float = 0.2,
        group_reasoning_length_penalty_coeff: float = 0.0,
        group_answer_length_penalty_coeff: float = 0.0,
        group_style_penalty_coeff: float = 0.0,
        **options: Any,
    ) -> None:
        """The last six are those of `genrm_scoring.Terms`; further options are those of a verifier with a judge.

        With the dialect `responses` the judge is given the answers as metadata, with `chat` as messages of the roles
        `response_1` and `response_2`. Raises ValueError for numbers that are none of a cohort.
        """
        limits = CohortLimits(
            collection_timeout_s=cohort_collection_timeout_s,
            evaluation_timeout_s=cohort_evaluation_timeout_s,
            waiter_timeout_s=cohort_waiter_timeout_s,
            terminal_ttl_s=cohort_terminal_ttl_s,
            terminal_max=cohort_terminal_max,
        )
        super().__init__(name, size=num_rollouts_per_prompt, limits=limits, judge_dialect=judge_dialect, **options)
        if num_rollouts_per_prompt < 2 or num_judges_per_comparison < 1 or genrm_parse_retries < 0:
            raise ValueError("a cohort has at least 2 rollouts, a comparison at least 1 judge, and no retries below 0")
        if comparison_strategy not in ("circular", "all_pairs"):
            raise ValueError(f"comparison_strategy is circular or all_pairs, and not {comparison_strategy!r}")
        if not min(cohort_collection_timeout_s, cohort_evaluation_timeout_s, cohort_waiter_timeout_s) > 0:
            raise ValueError("the timeouts of cohorts must be more than 0")
        if not cohort_terminal_ttl_s >= 0 or cohort_terminal_max < 0 or not 0 <= top_percentile <= 1:
            raise ValueError("top_percentile is from 0 to 1, and cohort_terminal_ttl_s and _max are not below 0")
        self._strategy: Strategy = comparison_strategy
        self._judges = num_judges_per_comparison
        self._tries = genrm_parse_retries + 1
        self._uses_principle, self._default_principle = use_principle, default_principle
        self._terms = Terms(
            reasoning_bonus=reasoning_bonus,
            answer_bonus=answer_bonus,
            top_percentile=top_percentile,
            group_reasoning_length_penalty_coeff=group_reasoning_length_penalty_coeff,
            group_answer_length_penalty_coeff=group_answer_length_penalty_coeff,
            group_style_penalty_coeff=group_style_penalty_coeff,
        )

    @classmethod
    def conformance(cls) -> Conformance:
        """Cohorts of four, and a judge that likes longer answers."""
        return conformance()

    # Verify

    def joining(self, row: dict[str, Any]) -> Join:
        """The member that a row is. Raises `invalid_request`."""
        self._check_repeats(row)
        asked = row.get("responses_create_params") or {}
        history = asked.get("input") or [] if isinstance(asked, Mapping) else []
        if not _is_history(history):
            raise ParticipantError(Code.INVALID_REQUEST, "the row's input is neither text nor a list of items")
        principle = _text(row, "principle") or None
        answer = answer_of(history, row["response"], self._principle_of(principle))
        group, attempt = _text(row, "_ng_group_id"), _number(row, "_ng_group_attempt", 0)
        key = key_of(row, history, principle, group, attempt)
        return Join(
            key=key,
            group=group,
            attempt=attempt if group else 0,
            index=_number(row, "_ng_rollout_index", None),
            answer=asdict(answer),
        )

    def _check_repeats(self, row: Mapping[str, Any]) -> None:
        """A run says how many repeats a row has: were they others than a cohort's members, some would wait in vain."""
        repeats = row.get("midflight_group_size", self.size)
        if repeats != self.size:
            told = f"the run has {repeats!r:.40} repeats of a row, and num_rollouts_per_prompt is {self.size}"
            raise ParticipantError(Code.INVALID_REQUEST, f"{told}: make them equal")

    def load_answer(self, answer: dict[str, Any]) -> tuple[Answer, str]:
        """What is compared, and its digest. Raises `invalid_request`."""
        history, texts = answer.get("history"), [answer.get(name) for name in ("text", "reasoning", "principle")]
        *needed, principle = texts
        strings = all(isinstance(text, str) for text in needed) and isinstance(principle, str | None)
        if len(answer) != 1 + len(texts) or not strings or not _is_history(history):
            raise ParticipantError(Code.INVALID_REQUEST, "the answer of a join is malformed")
        return Answer(**answer), hashlib.sha256(orjson.dumps(answer, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def _principle_of(self, given: str | None) -> str | None:
        """What the judge is told to go by."""
        return (given or self._default_principle or None) if self._uses_principle else None

    async def decide(self, cohort: Cohort, members: Sequence[Member]) -> list[float]:
        """Compare them; a comparison that is made is kept for whoever decides next."""
        answers = [member.answer for member in members]
        asking = [(member.life, member.boundary) for member in members]
        digests = [member.digest for member in members]
        return score(answers, await self._compare(answers, asking, digests, cohort.kept), self._terms).rewards

    # Compare

    async def handle(self, request: Request) -> Reply:
        """Serve one data call; `/compare` needs no session, and is no tool of a model."""
        if request.route != COMPARE:
            return await super().handle(request)
        if request.call is not None and request.call.caller.startswith("agent."):
            raise ParticipantError(Code.INVALID_REQUEST, f"{COMPARE} is no tool of a model")
        self.check_member(request.life)
        await self.gate.wait_open()
        body = body_of(request)
        history, objects = body.get("conversation_history") or [], body.get("response_objs")
        if not _is_history(history):
            raise ParticipantError(Code.INVALID_REQUEST, "conversation_history is not a list of messages")
        if not isinstance(objects, list) or not all(isinstance(one, Mapping) for one in objects):
            raise ParticipantError(Code.INVALID_REQUEST, "response_objs is not a list of Responses objects")
        if len(objects) == 1:
            raise ParticipantError(Code.INVALID_REQUEST, "one response alone cannot be compared")
        principle = self._principle_of(_text(body, "principle"))
        answers = [answer_of(history, one, principle) for one in objects]
        asking = [(request.life, request.call.boundary if request.call else None)] * len(answers)
        digests = [str(index) for index in range(len(answers))]
        try:
            comparisons = await self._compare(answers, asking, digests, {})
        except MemberGone as error:
            raise ParticipantError(Code.STALE_LIFE, f"{request.life} is over") from error
        scored = score(answers, comparisons, self._terms)
        results = [_shown(each) for each in comparisons]
        return Reply(200, {"rewards": scored.rewards, "comparison_results": results, "metrics": scored.metrics})

    async def _compare(
        self,
        answers: Sequence[Answer],
        asking: Sequence[tuple[Life | None, int | None]],
        digests: Sequence[str],
        kept: dict[Any, Any],
    ) -> list[Comparison]:
        """All comparisons; those in `kept` are not made again. Raises MemberGone, and errors of the judge."""
        gone: set[int] = set()
        failed: list[ParticipantError] = []
        wanted = [(i, j, judge) for i, j in pairs_of(self._strategy, len(answers)) for judge in range(self._judges)]

        async def compare(i: int, j: int, judge: int) -> None:
            try:
                verdict = await self._verdict(answers[i], answers[j], *asking[i], judge)
                kept[i, j, digests[i], digests[j], judge] = verdict
            except ParticipantError as error:
                if is_gone(error):
                    gone.add(i)
                    return
                failed.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for i, j, judge in wanted:
                if (i, j, digests[i], digests[j], judge) not in kept:
                    group.start_soon(compare, i, j, judge)
        if failed:
            raise failed[0]
        if gone:
            raise MemberGone(gone)
        return [Comparison(i, j, judge, kept[i, j, digests[i], digests[j], judge]) for i, j, judge in wanted]

    async def _verdict(
        self, one: Answer, other: Answer, life: Life | None, boundary: int | None, judge: int
    ) -> Verdict:
        said, judge_role = "", getattr(self._judge, "role", "")
        for attempt in range(self._tries):
            token = _asking.set(_Asking(life, boundary, f"{judge}.{attempt}"))
            try:
                said = (await self._ask_about(one, other)).text
                return parse_verdict(said)
            except ValueError:
                continue
            finally:
                _asking.reset(token)
        problem = f"the judge {judge_role} of {self.role} gave no verdict in {self._tries} tries, but {said!r:.200}"
        raise ParticipantError(Code.JUDGE_FAILED, problem)

    async def _ask_about(self, one: Answer, other: Answer) -> Any:
        history = history_of(one)
        if self._chat:
            return await self.ask_judge([*history, *items_of(one, other)])
        return await self.ask_judge(history, metadata=metadata_of(one, other))

    async def call(self, peer: Peer, route: str, body: Any) -> Reply:
        """As every server; a comparison is asked for under the life of the first member of its pair."""
        asking = _asking.get()
        if asking is None:
            return await super().call(peer, route, body)
        return await peer.call(asking.request(self.role, route, body))


def key_of(row: Mapping[str, Any], history: Any, principle: str | None, group: str, attempt: int) -> str:
    """The name of a row's cohort. Raises `invalid_request`."""
    if group:
        return f"group_id::{group}::group_attempt::{attempt}"
    asked = hashlib.sha256(orjson.dumps([history, principle])).hexdigest()
    if row.get("_ng_task_index") is not None:
        return f"task::{_number(row, '_ng_task_index', None)}::{asked}"
    prompt_id = row.get("prompt_id")
    return f"prompt::{'' if prompt_id is None else prompt_id!s:.400}::{asked}"


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int) or (len(str(value)) > 400 and name != "principle"):
        raise ParticipantError(Code.INVALID_REQUEST, f"{name} is {value!r:.100}, which is no name")
    return str(value)


def _number(row: Mapping[str, Any], name: str, default: int | None) -> int:
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        problem = f"{name} is {value!r:.100}, which is no number of a cohort: [run] repeats gives it to each row"
        raise ParticipantError(Code.INVALID_REQUEST, problem)
    return value


def _is_history(history: Any) -> bool:
    items = isinstance(history, list) and all(isinstance(item, Mapping) for item in history)
    return items or isinstance(history, str)


def _shown(each: Comparison) -> dict[str, Any]:
    verdict = each.verdict
    return {
        "response_i": each.first,
        "response_j": each.second,
        "judge_idx": each.judge,
        "score_1": verdict.score_1,
        "score_2": verdict.score_2,
        "ranking": verdict.ranking,
    }
