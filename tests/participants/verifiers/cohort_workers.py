"""Workers of one cohort server in this process, a judge that can be held, and rollouts that are verified there."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import orjson

from participants import Code, Gate, ParticipantError
from participants.data import CallId, Reply, Request
from participants.routing import Place
from participants.sessions import SESSION_HEADER
from participants.verifiers.genrm_compare import GenRMCompareServer
from store import Life, RawRecord
from tests.support.owners import settle

USAGE = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
Scores = Mapping[tuple[str, str], tuple[float, float, float]]


SCORES = {("answer 0", "answer 1"): (5, 3, 2), ("answer 1", "answer 2"): (4, 4, 2), ("answer 2", "answer 0"): (1, 5, 6)}
"""By hand: 0 gets 5 and 5, mean 5. 1 gets 3, and of the tie 4 + (3.5 - 2) = 5.5, mean 4.25. 2 gets 4 - 1.5 = 2.5 and 1,
mean 1.75."""
REWARDS = {0: 5.0, 1: 4.25, 2: 1.75}


def response(text: str) -> dict[str, Any]:
    """A Responses object that says this."""
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {"object": "response", "status": "completed", "output": [message], "usage": USAGE}


@dataclass
class Judge:
    """Says what `scores` has for two texts, and else 3, 3, 1: the first is much better."""

    scores: Scores = field(default_factory=dict)
    role: str = "model.main"
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of answers, in the order in which they came."""
    requests: list[Request] = field(default_factory=list)
    hold: anyio.Event | None = None
    errors: dict[tuple[str, str], ParticipantError] = field(default_factory=dict)
    """Raised each time for these pairs."""
    stale: set[Life] = field(default_factory=set)
    says: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Said first, in order, instead of a verdict."""

    async def call(self, request: Request) -> Reply:
        """One comparison."""
        shown = request.body["metadata"]
        pair = shown["response_1"], shown["response_2"]
        self.asked.append(pair)
        self.requests.append(request)
        if self.hold is not None:
            await self.hold.wait()
        if request.life in self.stale:
            raise ParticipantError(Code.STALE_LIFE, f"{request.life} is over")
        if pair in self.errors:
            raise self.errors[pair]
        if self.says.get(pair):
            return Reply(200, response(self.says[pair].pop(0)))
        first, second, ranking = self.scores.get(pair, (3, 3, 1))
        said = orjson.dumps({"score_1": first, "score_2": second, "ranking": ranking}).decode()
        return Reply(200, response(said))


class Clock:
    """Pushed by hand."""

    def __init__(self) -> None:
        """It begins anywhere."""
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Workers:
    """All workers of one server."""

    judge: Judge
    servers: list[GenRMCompareServer]

    @classmethod
    def make(
        cls, count: int = 1, judge: Judge | None = None, *, clock: Clock | None = None, **options: Any
    ) -> "Workers":
        """So many, with cohorts of 3."""
        judge = judge or Judge()
        options = {"num_rollouts_per_prompt": 3, **options}
        gates = [Gate(clock=clock) if clock else Gate() for _ in range(count)]
        servers = [GenRMCompareServer("genrm", peers={"model.main": judge}, gate=gate, **options) for gate in gates]
        workers = cls(judge, servers)
        if count > 1:
            for number, server in enumerate(servers):
                server.place, server.siblings = Place(number, count), workers
        return workers

    async def ask(self, key: str, request: Request) -> Reply:
        """As Forwarding does."""
        return await self.of(key).handle(request)

    def of(self, key: str) -> GenRMCompareServer:
        """The worker that owns a key."""
        return self.servers[Place(0, len(self.servers)).owner(key)]

    async def verify(self, life: Life | None, text: str, row: Mapping[str, Any], boundary: int = 5) -> dict[str, Any]:
        """Seed a session and verify it. Raises what verify raises."""
        server = self.of(life.rollout_id) if life else self.servers[0]
        headers = {SESSION_HEADER: "s"} if life else {}

        def request(route: str, body: Any, at: int) -> Request:
            call = CallId("environment.main", at, 0) if life else None
            return Request(route=route, body=body, life=life, call=call, headers=headers)

        if life is not None:
            await server.handle(request("/seed_session", dict(row), boundary - 1))
        body: dict[str, Any] = (
            await server.handle(request("/verify", {**row, "response": response(text)}, boundary))
        ).body
        return body

    async def export(self, scope: Sequence[Life]) -> tuple[list[RawRecord | Any], list[Any]]:
        """Records and own states of all, as one commit would write them."""
        records, states = [], []
        for server in self.servers:
            await server.freeze(scope)
            server.check_export()
            export = await server.export(scope)
            records += list(export.records)
            states.append(orjson.loads(orjson.dumps(export.state)))
        return records, states

    async def restore(self, states: Sequence[Any], scope: Sequence[Life], epoch: int = 2) -> None:
        """Stage the own states, activate and settle, without records."""
        for server in self.servers:
            server.adopted(epoch)

            async def none() -> AsyncIterator[RawRecord]:
                return
                yield

            await server.stage((), none(), epoch=epoch)
            server.import_own(states, frozenset(scope), epoch)
        for server in self.servers:
            server.activate()
        for server in self.servers:
            server.settle()

    def counts(self, name: str) -> int:
        """Over all workers."""
        return sum(server.counts()[name] for server in self.servers)


@dataclass
class Verifying:
    """Verifies that go on beside the test."""

    workers: Workers
    group: Any
    rewards: dict[int, float] = field(default_factory=dict)
    errors: dict[int, ParticipantError] = field(default_factory=dict)
    scopes: dict[int, anyio.CancelScope] = field(default_factory=dict)

    def begin(self, index: int, text: str = "", *, life: Life | None = None, **row: Any) -> None:
        """Verify one member; its life is `r<index>` of epoch 1 unless said."""
        life = life or Life(f"r{index}", 1, 0, index)
        self.scopes[index] = anyio.CancelScope()
        self.group.start_soon(self._run, index, text or f"answer {index}", life, row_of(index, **row))

    @property
    def codes(self) -> dict[int, Code]:
        """Of the errors."""
        return {index: error.code for index, error in self.errors.items()}

    async def _run(self, index: int, text: str, life: Life, row: Mapping[str, Any]) -> None:
        with self.scopes[index]:
            try:
                self.rewards[index] = (await self.workers.verify(life, text, row))["reward"]
            except ParticipantError as error:
                self.errors[index] = error

    async def all(self, *indices: int) -> None:
        """Begin these, and let them go as far as they come."""
        for index in indices:
            self.begin(index)
        await settle()


def row_of(index: int, *, group: str = "g", attempt: int = 0, **more: Any) -> dict[str, Any]:
    """A row of one cohort."""
    asked = {"input": [{"role": "user", "content": "Say something."}]}
    named = {"_ng_group_id": group, "_ng_group_attempt": attempt, "_ng_rollout_index": index}
    return {"responses_create_params": asked, **named, **more}
