"""genrm_compare: rewards by hand, who waits and who decides, failures as such, and checkpoints that wait for nobody."""

from typing import Any

import anyio
import pytest

from participants import Code, Floor, Gate, ParticipantError
from participants.cases import response_of
from participants.data import CallId, Request
from participants.verifiers.cohort_server import JOIN
from participants.verifiers.genrm_compare import GenRMCompareServer
from store import Life
from tests.support.owners import settle

from .cohort_workers import REWARDS, SCORES, Judge, Verifying, Workers, response, row_of

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

OWN = CallId("resources.genrm", 5, 0)
"""A call of a verify."""


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_each_member_gets_the_mean_of_its_comparisons(count: int) -> None:
    """Computed by hand above; each pair around the circle is asked for once, whichever worker is asked."""
    workers = Workers.make(count, Judge(SCORES))
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1)
        assert (verifying.rewards, workers.judge.asked) == ({}, [])
        await verifying.all(2)
    assert verifying.rewards == REWARDS
    assert sorted(workers.judge.asked) == sorted(SCORES)
    lives = {request.body["metadata"]["response_1"]: str(request.life) for request in workers.judge.requests}
    assert lives == {"answer 0": "r0/1.0#0", "answer 1": "r1/1.0#1", "answer 2": "r2/1.0#2"}
    assert all(request.call and request.call.boundary == 5 for request in workers.judge.requests)


async def test_the_reply_says_which_member_it_is_of() -> None:
    """The fields of the reference, also where the row names no group."""
    workers = Workers.make(num_rollouts_per_prompt=2)
    replies: list[dict[str, Any]] = []

    async def one(index: int, life: Life, row: dict[str, Any]) -> None:
        replies.append(await workers.verify(life, f"answer {index}", row))

    for named, attempt in (("g", 3), (None, 0)):
        async with anyio.create_task_group() as group:
            for index in (0, 1):
                row = {**row_of(index, attempt=3), "_ng_group_id": named}
                group.start_soon(one, index, Life(f"{named}.{index}", 1, 0, index), row)
        found = {(each["group_id"], each["group_attempt"], each["rollout_index"]) for each in replies[-2:]}
        assert found == {(named, attempt, 0), (named, attempt, 1)}


async def test_all_pairs_asks_for_each_pair_of_two() -> None:
    """Three answers, three pairs; four answers, six."""
    workers = Workers.make(judge=Judge(SCORES), num_rollouts_per_prompt=4, comparison_strategy="all_pairs")
    async with anyio.create_task_group() as group:
        await Verifying(workers, group).all(0, 1, 2, 3)
    firsts = sorted(f"{one[-1]}{other[-1]}" for one, other in workers.judge.asked)
    assert firsts == ["01", "02", "03", "12", "13", "23"]


async def test_rows_without_a_group_meet_by_task_or_prompt_and_by_what_is_asked() -> None:
    """Another task, prompt, question or principle is another cohort; nothing of one is in the other."""
    server = Workers.make().servers[0]

    def key(content: str = "q", **row: Any) -> str:
        asked = {"input": [{"role": "user", "content": content}]}
        return server.joining({"responses_create_params": asked, "_ng_rollout_index": 0, "response": {}, **row}).key

    keys = [key(), key("p"), key(_ng_task_index=1), key(_ng_task_index=2), key(prompt_id="1"), key(principle="short")]
    assert len(set(keys)) == len(keys)
    assert key(_ng_task_index=1) == key(_ng_task_index=1, anything="else")
    named = key(_ng_group_id="a", _ng_group_attempt=2, _ng_task_index=1)
    assert named == key("p", _ng_group_id="a", _ng_group_attempt=2) == "group_id::a::group_attempt::2"


@pytest.mark.parametrize(
    "row",
    [
        {"_ng_rollout_index": None},
        {"_ng_rollout_index": 3},
        {"_ng_rollout_index": -1},
        {"_ng_rollout_index": True},
        {"_ng_group_attempt": "1"},
        {"_ng_group_id": ["g"]},
        {"_ng_group_id": "g" * 401},
        {"responses_create_params": {"input": 5}},
        {"principle": 1.5},
        {"midflight_group_size": 4},
    ],
    ids=lambda row: f"{next(iter(row))}={next(iter(row.values()))!s:.20}",
)
async def test_a_row_that_is_no_member_is_refused_at_once(row: dict[str, Any]) -> None:
    """It would wait for nobody."""
    with pytest.raises(ParticipantError) as refused:
        await Workers.make().verify(Life("r0", 1, 0, 0), "a", {**row_of(0), **row})
    assert refused.value.code is Code.INVALID_REQUEST


# Who waits, and who decides


async def test_who_gives_up_stays_a_member_and_the_others_get_their_rewards() -> None:
    """A client that has gone takes only its waiting away."""
    workers = Workers.make(judge=Judge(SCORES))
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1)
        verifying.scopes[0].cancel()
        await settle()
        await verifying.all(2)
    assert verifying.rewards == {1: 4.25, 2: 1.75}
    assert (await workers.verify(Life("r0", 1, 0, 0), "answer 0", row_of(0), boundary=7))["reward"] == 5.0
    assert len(workers.judge.asked) == 3


async def test_another_one_takes_over_where_the_decider_is_cancelled() -> None:
    """What was in flight is asked for again, under the same ids."""
    judge = Judge(SCORES, hold=anyio.Event())
    workers = Workers.make(judge=judge)
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1, 2)
        assert len(judge.asked) == 3
        for index in (2, 1):  # Who came last decides first; then whoever wakes.
            verifying.scopes[index].cancel()
            await settle()
        assert judge.hold is not None
        judge.hold.set()
    assert verifying.rewards == {0: 5.0}
    calls = {(request.life, request.call) for request in judge.requests}
    assert len(calls) == 3


async def test_a_member_whose_life_is_over_leaves_until_its_next_life_comes() -> None:
    """Its comparison is refused by the judge's server; those that are made are kept."""
    judge = Judge({**SCORES, ("answer 0", "another"): (5, 3, 2), ("another", "answer 2"): (4, 4, 2)})
    judge.stale.add(Life("r1", 1, 0, 1))
    workers = Workers.make(judge=judge)
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1, 2)
        assert verifying.errors[1].code is Code.STALE_LIFE
        assert verifying.rewards == {}
        verifying.begin(1, "another", life=Life("r1", 1, 1, 9))
    assert verifying.rewards == REWARDS
    assert judge.asked.count(("answer 2", "answer 0")) == 1


async def test_a_newer_life_with_another_answer_takes_the_place_of_a_member_that_is_compared() -> None:
    """Nothing is decided with the old answer, whose verify ends as stale."""
    judge = Judge({**SCORES, ("answer 0", "another"): (1, 1, 3.5), ("another", "answer 2"): (1, 1, 3.5)})
    judge.hold = anyio.Event()
    workers = Workers.make(judge=judge)
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1, 2)
        verifying.begin(1, "another", life=Life("r1", 1, 1, 9))
        await settle()
        assert verifying.errors[1].code is Code.STALE_LIFE
        judge.hold.set()
    assert verifying.rewards == {0: 3.0, 1: 1.0, 2: 1.0}


async def test_an_older_life_and_one_that_is_over_are_refused() -> None:
    """By the member's newest life, by the floor, and by what was retired at any worker."""
    workers = Workers.make(2)
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        verifying.begin(0, life=Life("r0", 1, 1, 5))
        await settle()
        owner = workers.of("group_id::g::group_attempt::0")
        body = owner.joining({**row_of(0), "response": response("answer 0")}).model_dump()
        late = Request(route=JOIN, body=body, life=Life("r0", 1, 0, 2), call=OWN)
        with pytest.raises(ParticipantError, match=r"stale_life.*superseded"):
            await owner.handle(late)
        for server in workers.servers:
            await server.retire([Life("r9", 1, 0, 7)], 1.0)
        with pytest.raises(ParticipantError, match="stale_life"):
            await owner.handle(Request(route=JOIN, body=body, life=Life("r9", 1, 0, 7), call=OWN))
        owner.raise_floor(Floor(1, 9))
        with pytest.raises(ParticipantError, match=r"stale_life.*floor"):
            await owner.handle(Request(route=JOIN, body=body, life=Life("r8", 1, 0, 8), call=OWN))
        group.cancel_scope.cancel()


@pytest.mark.parametrize("text", ["answer 1", "another"])
async def test_a_wait_of_an_older_life_ends_once_a_newer_one_has_joined(text: str) -> None:
    """Also where nothing has told its own worker yet, and whatever the newer one says."""
    workers = Workers.make(judge=Judge(SCORES))
    [server] = workers.servers
    errors: list[ParticipantError] = []

    async def join(life: Life, said: str) -> None:
        body = server.joining({**row_of(1), "response": response(said)}).model_dump()
        try:
            await server.handle(Request(route=JOIN, body=body, life=life, call=OWN))
        except ParticipantError as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(join, Life("r1", 1, 0, 1), "answer 1")
        await settle()
        group.start_soon(join, Life("r1", 1, 1, 9), text)
        await settle()
        assert [error.code for error in errors] == [Code.STALE_LIFE]
        await Verifying(workers, group).all(0, 2)
    assert len(errors) == 1


async def test_a_join_makes_no_life_at_the_worker_of_the_cohort() -> None:
    """A second record of the rollout would stand in the checkpoint."""
    workers = Workers.make(2)
    lives = [Life(f"r{index}", 1, 0, index) for index in range(3)]
    async with anyio.create_task_group() as group:
        await Verifying(workers, group).all(0, 1, 2)
    records, _ = await workers.export(lives)
    assert sorted(record.life.rollout_id for record in records) == ["r0", "r1", "r2"]


async def test_retiring_a_waiting_member_ends_its_verify_and_takes_it_out() -> None:
    """Its rollout's next life is waited for."""
    workers = Workers.make(2, Judge(SCORES))
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1)
        for server in workers.servers:
            await server.retire([Life("r1", 1, 0, 1)], 1.0)
        await settle()
        assert verifying.errors[1].code is Code.STALE_LIFE
        await verifying.all(2)
        assert verifying.rewards == {}
        verifying.begin(1, life=Life("r1", 1, 1, 9))
    assert verifying.rewards == REWARDS


# Failures


async def test_an_answer_without_a_verdict_is_asked_for_again_and_then_fails_all() -> None:
    """No score is guessed; each try has an id of its own, and the tombstone tells whoever comes later."""
    judge = Judge(
        SCORES, says={("answer 0", "answer 1"): ["I cannot say", '{"score_1": 9, "score_2": 1, "ranking": 1}']}
    )
    workers = Workers.make(judge=judge, genrm_parse_retries=1)
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1, 2)
    assert {error.code for error in verifying.errors.values()} == {Code.JUDGE_FAILED}
    assert verifying.rewards == {}
    tries = [request.call for request in judge.requests if request.body["metadata"]["response_1"] == "answer 0"]
    assert len(set(tries)) == 2
    with pytest.raises(ParticipantError) as again:
        await workers.verify(Life("r0", 1, 1, 9), "answer 9", row_of(0))
    assert again.value.code is Code.JUDGE_FAILED


async def test_a_judge_that_fails_ends_the_cohort_and_the_next_attempt_begins_anew() -> None:
    """As a failure with a class of its own, for all; retried whole it succeeds."""
    judge = Judge(SCORES, errors={("answer 1", "answer 2"): ParticipantError(Code.MODEL_FAILED, "out of memory")})
    workers = Workers.make(judge=judge)
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1, 2)
        assert {index: error.code for index, error in verifying.errors.items()} == dict.fromkeys(
            range(3), Code.JUDGE_FAILED
        )
        judge.errors.clear()
        for index in range(3):
            verifying.begin(index, life=Life(f"r{index}", 1, 1, 10 + index), attempt=1)
    assert verifying.rewards == REWARDS


@pytest.mark.parametrize("code", [Code.UNREACHABLE, Code.LOST_SESSION, Code.ADMISSION_CLOSED])
async def test_what_a_lost_server_fails_passes_unchanged_and_condemns_no_cohort(code: Code) -> None:
    """All who wait are told; when it is back the same attempt succeeds."""
    judge = Judge(SCORES, errors={("answer 1", "answer 2"): ParticipantError(code, "gone")})
    workers = Workers.make(judge=judge)
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1, 2)
        assert {error.code for error in verifying.errors.values()} == {code}
        assert workers.counts("cohorts") == workers.counts("cohorts_decided") == 0
        judge.errors.clear()
        for index in range(3):
            verifying.begin(index, life=Life(f"r{index}", 1, 1, 10 + index))
    assert verifying.rewards == REWARDS


async def test_another_answer_to_a_decided_cohort_is_too_late() -> None:
    """The same answer gets the same reward again, without the judge."""
    workers = Workers.make(judge=Judge(SCORES))
    async with anyio.create_task_group() as group:
        await Verifying(workers, group).all(0, 1, 2)
    assert (await workers.verify(Life("r1", 2, 1, 0), "answer 1", row_of(1)))["reward"] == 4.25
    with pytest.raises(ParticipantError) as refused:
        await workers.verify(Life("r1", 2, 2, 1), "another", row_of(1))
    assert refused.value.code is Code.COHORT_FAILED
    assert len(workers.judge.asked) == 3


async def test_a_later_attempt_ends_the_earlier_one() -> None:
    """Who waits there is told, and so is who comes there late."""
    workers = Workers.make()
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0, 1)
        verifying.begin(2, attempt=1)
        await settle()
        assert {index: error.code for index, error in verifying.errors.items()} == dict.fromkeys(
            (0, 1), Code.COHORT_FAILED
        )
        with pytest.raises(ParticipantError, match="superseded"):
            await workers.verify(Life("r7", 1, 0, 7), "late", row_of(2))
        group.cancel_scope.cancel()


# The rest


async def test_compare_gives_the_rewards_of_a_list_of_responses() -> None:
    """With each comparison and the metrics; the numbers by hand: scores 5 3 4 4 1 5, one tie of three."""
    [server] = Workers.make(judge=Judge(SCORES)).servers
    body = {"conversation_history": [], "response_objs": [response(f"answer {index}") for index in range(3)]}
    reply = await server.handle(Request(route="/compare", body=body))
    assert reply.body["rewards"] == list(REWARDS.values())
    assert reply.body["metrics"] == {
        "mean_individual_score": pytest.approx(22 / 6),
        "std_individual_score": pytest.approx((sum((s - 22 / 6) ** 2 for s in (5, 3, 4, 4, 1, 5)) / 6) ** 0.5),
        "tiebreak_usage_rate": pytest.approx(1 / 3),
    }
    first = {"response_i": 0, "response_j": 1, "judge_idx": 0, "score_1": 5.0, "score_2": 3.0, "ranking": 2.0}
    assert reply.body["comparison_results"][0] == first
    empty = await server.handle(Request(route="/compare", body={"conversation_history": [], "response_objs": []}))
    assert empty.body["rewards"] == []
    agent = CallId("agent.main", 3, 0)
    with pytest.raises(ParticipantError, match="no tool of a model"):
        await server.handle(Request(route="/compare", body=body, life=Life("r0", 1, 0, 0), call=agent))


async def test_a_verify_without_a_call_id_is_a_member_too() -> None:
    """Of a client that names its life alone."""
    [server] = Workers.make(judge=Judge(SCORES)).servers
    rewards: dict[int, float] = {}

    async def one(index: int) -> None:
        life = Life(f"r{index}", 1, 0, index)
        await server.handle(Request(route="/seed_session", body=row_of(index), life=life))
        body = {**row_of(index), "response": response(f"answer {index}")}
        rewards[index] = (await server.handle(Request(route="/verify", body=body, life=life))).body["reward"]

    async with anyio.create_task_group() as group:
        for index in range(3):
            group.start_soon(one, index)
    assert rewards == REWARDS


async def test_a_client_without_a_life_is_a_member_too() -> None:
    """A plain Gym client of a server that takes part in no run; another answer for its index is a conflict."""
    workers = Workers.make(judge=Judge(SCORES))
    rewards: dict[int, float] = {}

    async def one(index: int) -> None:
        rewards[index] = (await workers.verify(None, f"answer {index}", row_of(index)))["reward"]

    async with anyio.create_task_group() as group:
        for index in range(3):
            group.start_soon(one, index)
    assert rewards == REWARDS
    await one(1)
    with pytest.raises(ParticipantError) as refused:
        await workers.verify(None, "another", row_of(1))
    assert refused.value.code is Code.STALE_CALL


async def test_a_model_cannot_join_by_naming_the_route_as_a_tool() -> None:
    """Whatever it puts into the arguments; only verifies of this server join."""
    [server] = Workers.make().servers
    body = server.joining({**row_of(1), "response": response("x")}).model_dump()
    with pytest.raises(ParticipantError, match="no tool of a model"):
        await server.handle(Request(route=JOIN, body=body, life=Life("r1", 1, 0, 1), call=CallId("agent.main", 5, 0)))
    assert len(server.cohorts) == 0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"index": 3}, "none of a cohort of 3"),
        ({"index": -1}, "index"),
        ({"answer": {}}, "malformed"),
        ({"answer": {"history": 5, "text": "", "reasoning": "", "principle": None}}, "malformed"),
        ({"answer": "x"}, "answer"),
        ({"key": ""}, "key"),
        ({"more": 1}, "more"),
    ],
)
async def test_a_join_that_is_no_members_is_refused_and_troubles_nobody(change: dict[str, Any], problem: str) -> None:
    """Whoever sends it to a worker, with whatever life."""
    workers = Workers.make(judge=Judge(SCORES))
    [server] = workers.servers
    body = server.joining({**row_of(1), "response": response("x")}).model_dump()
    async with anyio.create_task_group() as group:
        verifying = Verifying(workers, group)
        await verifying.all(0)
        with pytest.raises(ParticipantError, match=problem):
            await server.handle(Request(route=JOIN, body={**body, **change}, life=Life("stranger", 1, 0, 50), call=OWN))
        await verifying.all(1, 2)
    assert verifying.rewards == REWARDS


async def test_the_principle_reaches_the_judge_only_where_it_is_used() -> None:
    """The row's, else the default one; as a message of its own for a judge that is asked by Chat."""

    async def asked(**options: Any) -> Any:
        workers = Workers.make(num_rollouts_per_prompt=2, **options)
        async with anyio.create_task_group() as group:
            for index in (0, 1):
                row = row_of(index, principle="Be brief.")
                group.start_soon(workers.verify, Life(f"r{index}", 1, 0, index), "a", row)
        return workers.judge.requests[0].body["metadata"]

    assert await asked() == {"response_1": "a", "response_2": "a"}
    assert (await asked(use_principle=True, default_principle="Be kind."))["principle"] == "Be brief."


async def test_the_shipped_cases_are_many_and_differ_within_a_cohort() -> None:
    """At least 50, verified with the stand-in judge they come with."""
    given = GenRMCompareServer.conformance()
    server = GenRMCompareServer("genrm", gate=Gate(), peers=given.peers, **given.options)
    workers = Workers(Judge(), [server])
    rewards: dict[str, list[float]] = {}

    async def one(number: int) -> None:
        case = given.cases[number]
        row = {**case.row, "response": response_of(case)}
        life = Life(f"r{number}", 1, 0, number)
        body = (await workers.verify(life, case.said, row))["reward"]
        rewards.setdefault(case.cohort, []).append(body)

    assert len(given.cases) >= 50
    async with anyio.create_task_group() as group:
        for number in range(len(given.cases)):
            group.start_soon(one, number)
    assert sum(len(set(each)) > 1 for each in rewards.values()) > len(rewards) * 0.8


@pytest.mark.parametrize(
    "options",
    [
        {"num_rollouts_per_prompt": 1},
        {"num_judges_per_comparison": 0},
        {"comparison_strategy": "best"},
        {"cohort_waiter_timeout_s": 0},
        {"top_percentile": 5.0},
        {"cohort_terminal_max": -1},
        {"judge": "model.nobody"},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_options_that_are_none_of_a_cohort_are_refused(options: dict[str, Any]) -> None:
    """When the server is made."""
    with pytest.raises(ValueError, match=r"cohort|comparison_strategy|judge"):
        GenRMCompareServer(peers={"model.main": Judge()}, **options)
