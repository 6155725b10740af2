"""Black boxes as agents: what a program is given and gives back, whom it reaches, and that nothing of it stays."""

import json
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

from participants import Code, EnvironmentServer, LocalPeer, ParticipantError, Reply, Request
from participants.harness_agent import HarnessAgent, _read_result, output_of, prompt_of
from participants.sandbox import python_paths
from participants.servers import CounterServer
from store import Life
from tests.participants.sandbox.ways import WithoutBubblewrap
from tests.support import black_box
from tests.support.marks import MARK, marked
from tests.support.owners import Pause
from tests.support.waiting import until_asked

pytestmark = [pytest.mark.process, pytest.mark.anyio]

LIFE, NEXT = Life("r0", 1, 0, 0), Life("r0", 1, 1, 1)
PYTHON = python_paths()[0]
ALL_GONE_S = 20.0


class Model:
    """Answers each chat with what it was told, under whose life; waits and fails as told."""

    role = "model.main"

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.pause: Pause | None = None
        self.error: ParticipantError | None = None
        self.given_up = 0

    async def call(self, request: Request) -> Reply:
        self.asked.append(request)
        said = request.body["messages"][-1]["content"]
        if self.pause is not None:
            await self._hold(said)
        if self.error is not None:
            raise self.error
        if request.body.get("stream"):
            return Reply(200, None, {"content-type": "text/event-stream"}, _pieces(said))
        usage = {"completion_tokens": 5}
        return Reply(200, {"choices": [{"message": {"role": "assistant", "content": f"heard {said}"}}], "usage": usage})

    async def _hold(self, said: str) -> None:
        assert self.pause is not None
        if said == "when it is held":
            await self.pause.reached.wait()
            return
        try:
            await self.pause()
        except BaseException:
            self.given_up += 1
            raise


async def _pieces(said: str) -> AsyncIterator[bytes]:
    for word in said.split():
        yield f"data: {json.dumps({'piece': word})}\n\n".encode()


class Harness:
    """An agent with a folder of its own, its model and a counter."""

    def __init__(self, folder: Path, **options: Any) -> None:
        files = folder / "files"
        files.mkdir()
        shutil.copy(black_box.__file__, files / "program.py")
        self.mark = str(folder)
        self.model, self.counter = Model(), CounterServer(name="counter")
        self.peers = {self.counter.role: LocalPeer(self.counter)}
        self.agent = HarnessAgent(
            self.model,
            self.peers,
            command=[PYTHON, "program.py"],
            files=[str(files)],
            environment={MARK: self.mark},
            **options,
        )

    async def run(self, *acts: Any, life: Life = LIFE) -> dict[str, Any]:
        """The agent's own /run. Raises ParticipantError where the episode failed."""
        reply = await self.agent.handle(Request(route="/run", body=row(*acts), life=life))
        body: dict[str, Any] = reply.body
        return body

    async def answer(self, *acts: Any) -> str:
        """What the program answered."""
        found = await self.run(*acts)
        text: str = found["response"]["output"][0]["content"][0]["text"]
        return text

    async def failure(self, *acts: Any) -> dict[str, Any]:
        """The typed failure of an episode that has no reward."""
        with pytest.raises(ParticipantError) as caught:
            await self.run(*acts)
        assert caught.value.code is Code.STEP_FAILED
        return caught.value.details

    def processes(self) -> list[int]:
        """Those of its programs, wherever they went."""
        return marked(self.mark)

    async def url(self) -> str:
        """That of the newest program, which has told it."""
        await until_asked(lambda: _so(self._told()))
        [found] = self._told()[-1:]
        return found

    def _told(self) -> list[str]:
        texts = [request.body["messages"][-1]["content"] for request in self.model.asked]
        return [text.removeprefix("my url is ") for text in texts if text.startswith("my url is ")]


async def _so(value: Any) -> Any:
    return value


def row(*acts: Any) -> dict[str, Any]:
    """A row of the counter whose prompt says what the program is to do."""
    prompt = f"Please do: {json.dumps(acts)}"
    return {"responses_create_params": {"input": prompt}, "initial_count": 1, "expected_count": 4}


@pytest.fixture
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    """One that runs; its parameter, if any, are options."""
    async with opened(tmp_path, **getattr(request, "param", {})) as found:
        yield found


@asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[Harness]:
    """One that runs in a folder, and of which nothing is left."""
    found = await anyio.to_thread.run_sync(lambda: Harness(folder, **options))
    async with found.agent.run():
        yield found
    assert await anyio.to_thread.run_sync(found.processes) == []


async def test_a_program_asks_the_model_uses_tools_and_answers(harness: Harness) -> None:
    """Each call is made under its life and an id of its own; the reward is that of what its tools did."""
    found = await harness.run(
        ["chat", "one"], ["tool", "increment_counter", {"count": 3}], ["tool", "get_counter_value", {}], ["chat", "two"]
    )
    assert found["reward"] == 1.0
    assert found["response"]["output"][0]["content"][0]["text"] == "heard two"
    assert found["response"]["metadata"]["midflight_steps"] == "2"
    assert [request.life for request in harness.model.asked] == [LIFE, LIFE]
    assert len({str(request.call) for request in harness.model.asked}) == 2


async def test_an_environment_server_runs_it_like_any_agent(harness: Harness) -> None:
    """From the row to the reward."""
    async with EnvironmentServer(LocalPeer(harness.agent), harness.peers).run() as environment:
        await environment.dispatch(LIFE, row(["tool", "increment_counter", {"count": 3}], ["say", "done"]))
        result = await environment.next_result(0)
    assert result is not None
    assert result.row is not None
    assert result.row["reward"] == 1.0


async def test_a_stream_comes_piece_by_piece(harness: Harness) -> None:
    """Server-sent events go through as they are."""
    assert await harness.answer(["stream", "a b"]) == 'data: {"piece": "a"}\n\ndata: {"piece": "b"}\n\n'.strip()


@pytest.mark.parametrize(
    ("acts", "answer"),
    [
        ([["write", "result.json", '{"text": "from the file"}'], ["say", "not this"]], "from the file"),
        ([["read", "task.json"]], r'\{"input":"Please do: .*'),
        ([["tool", "nothing", {}]], "404 there is no tool named 'nothing'"),
        ([["tool", "a/b", {}]], "422 invalid_request"),
        ([["tool", "verify", {}]], "422 invalid_request"),
    ],
    ids=["result file", "task file", "no such tool", "no name", "reserved"],
)
async def test_what_a_program_is_given_and_gives_back(harness: Harness, acts: Any, answer: str) -> None:
    """The task as a file, the answer as a file or on standard output, and refusals in plain words."""
    text = await harness.answer(*acts)
    assert re.fullmatch(answer, text, re.DOTALL), text


@pytest.mark.parametrize(
    ("harness", "acts", "named", "says"),
    [
        ({}, [["exit", 3]], "agent_failed", "exited with code 3; it said last: this went wrong"),
        ({}, [["kill"]], "agent_failed", "was ended by signal 9"),
        ({}, [["say", ""]], "agent_failed", "without an answer"),
        ({}, [["write", "result.json", "{"], ["say", "x"]], "agent_failed", "result.json is not JSON"),
        ({}, [["write", "result.json", "[]"], ["say", "x"]], "agent_failed", "result.json is neither"),
        ({}, [["link", "result.json", "/etc/hostname"], ["say", "x"]], "agent_failed", "result.json cannot be read"),
        ({"limits": {"output_bytes": 10_000}}, [["flood"]], "agent_failed", "said more than 10000 bytes"),
        ({"limits": {"wall_s": 1}}, [["wait"]], "timeout", "used up its wall"),
        ({"max_wall_s": 1}, [["wait"]], "timeout", "limit of active time"),
    ],
    indirect=["harness"],
    ids=["exit", "signal", "silence", "no json", "no answer", "link", "flood", "wall", "active"],
)
async def test_a_program_that_does_not_answer_is_a_typed_failure(
    harness: Harness, acts: Any, named: str, says: str
) -> None:
    """And never a reward of 0: there is no row at all."""
    found = await harness.failure(*acts)
    assert (found["class"], found["stage"]) == (named, "agent")
    assert says in found["message"]
    assert found["terminal"] is ("active time" in says)


async def test_a_participant_that_is_lost_is_the_failure_and_not_what_the_program_makes_of_it(harness: Harness) -> None:
    """The program would answer nevertheless, and is ended instead."""
    harness.model.error = ParticipantError(Code.UNREACHABLE, "nobody is there")
    assert (await harness.failure(["chat", "x"], ["say", "fine"]))["class"] == "unreachable"
    harness.model.error = ParticipantError(Code.MODEL_FAILED, "too long", {"status": 400})
    found = await harness.run(["chat", "x"], ["say", "fine"], life=NEXT)
    assert found["response"]["output"][0]["content"][0]["text"] == "fine"


async def test_a_program_of_nobody_is_refused(tmp_path: Path) -> None:
    """Outside its run() an agent has no door, and says so."""
    harness = await anyio.to_thread.run_sync(Harness, tmp_path)
    assert "outside its run()" in (await harness.failure(["say", "x"]))["message"]


# Ends


@pytest.mark.parametrize("bubblewrap", [True, False], ids=["bubblewrap", "rlimits"])
async def test_retiring_ends_the_whole_process_tree_before_it_answers(harness: Harness, bubblewrap: bool) -> None:
    """A child, and a grandchild that left session and parents behind; with a call of the model in flight."""
    if not bubblewrap:
        harness.agent._sandbox = WithoutBubblewrap()
    harness.model.pause = Pause()
    async with anyio.create_task_group() as group:
        group.start_soon(_ends_stale, harness, [["family"], ["url"]], LIFE)
        with anyio.fail_after(ALL_GONE_S):
            await harness.model.pause.reached.wait()
        assert len(await anyio.to_thread.run_sync(harness.processes)) >= 3
        assert harness.agent.restarts() == [LIFE]
        assert await harness.agent.retire([LIFE], 10.0) == []
        assert await anyio.to_thread.run_sync(harness.processes) == []
        assert harness.agent.held() == []


async def _ends_stale(harness: Harness, acts: Any, life: Life) -> None:
    with pytest.raises(ParticipantError) as caught:
        await harness.run(*acts, life=life)
    assert caught.value.code is Code.STALE_LIFE


async def test_what_an_attempt_leaves_behind_reaches_nothing_of_the_next(harness: Harness) -> None:
    """Its URL is nobody's once it is superseded, while the next attempt's own goes on; no life can be named either."""
    async with anyio.create_task_group() as group, httpx.AsyncClient() as http:
        group.start_soon(_ends_stale, harness, [["url"], ["wait"]], LIFE)
        old = await harness.url()
        asked = {"messages": [{"role": "user", "content": "me"}]}
        assert (await http.post(f"{old}/chat/completions", json=asked)).status_code == 200
        named = await http.post(f"{old}/chat/completions", json=asked, headers={"x-midflight-life": str(NEXT)})
        assert (named.status_code, named.json()["error"]["code"]) == (422, "invalid_request")
        group.start_soon(_ends_stale, harness, [["url"], ["wait"]], NEXT)
        await until_asked(lambda: _so(len(harness._told()) == 2))
        new = await harness.url()
        assert new != old
        calls = len(harness.model.asked)
        for route in ("v1/chat/completions", "v1/models", "tools/increment_counter"):
            late = await http.post(f"{old.removesuffix('/v1')}/{route}", json=asked)
            assert (late.status_code, late.json()["error"]["code"]) == (409, "stale_life")
        assert len(harness.model.asked) == calls
        assert (await http.post(f"{new}/chat/completions", json=asked)).status_code == 200
        assert harness.model.asked[-1].life == NEXT
        await harness.agent.retire([NEXT], 10.0)
        assert (await http.post(f"{new}/chat/completions", json=asked)).status_code == 409


async def test_calls_are_held_while_a_checkpoint_is_taken_and_nothing_waits_for_the_program(harness: Harness) -> None:
    """A prepare finds no step to wait for; the call goes on once admission is open again."""
    gate = harness.agent.gate
    harness.model.pause = Pause()
    answers: list[str] = []

    async def run() -> None:
        answers.append(await harness.answer(["chat", "before"], ["chat", "after"]))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        with anyio.fail_after(ALL_GONE_S):
            await harness.model.pause.reached.wait()
            gate.close()
            await gate.wait_quiet()
            harness.model.pause.released.set()
            await until_asked(lambda: _so(gate.parked == 1))
        assert len(harness.model.asked) == 1
        gate.reopen()
    assert answers == ["heard after"]


async def test_a_call_in_flight_is_given_up_with_its_program(harness: Harness) -> None:
    """A child of it still asks the model when it has answered: its answer counts, and nothing waits for that call."""
    harness.model.pause = Pause()
    assert await harness.answer(["beside", "held"], ["chat", "when it is held"], ["say", "done"]) == "done"
    assert harness.model.given_up == 1


# What is pure


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("plain", "plain"),
        ([{"role": "system", "content": "be kind"}, {"role": "user", "content": [{"text": "hi"}]}], "be kind\n\nhi"),
        ([{"type": "function_call", "name": "x"}, {"role": "user", "content": None}], ""),
        (None, ""),
    ],
    ids=["text", "items", "no text", "nothing"],
)
def test_the_prompt_is_the_text_of_all_messages(given: Any, text: str) -> None:
    """In order, whatever form they have."""
    assert prompt_of({"input": given}) == text


@pytest.mark.parametrize(
    "result", [b"{}", b'{"text": 3}', b'{"text": "a", "more": 1}', b'{"output": []}', b'{"output": ["a"]}', b"3"]
)
def test_a_result_that_says_something_else_is_refused(result: bytes) -> None:
    """Never taken for an answer."""
    with pytest.raises(ParticipantError) as caught:
        output_of(b"said", result)
    assert caught.value.code is Code.AGENT_FAILED


def test_a_result_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    """As any other that is no plain file, and nothing stays open."""
    (tmp_path / "result.json").mkdir()
    for _ in range(3):
        with pytest.raises(ParticipantError, match="no plain file") as caught:
            _read_result(tmp_path, 100)
        assert caught.value.code is Code.AGENT_FAILED


def test_a_result_of_items_is_the_output() -> None:
    """As the program wrote them."""
    items = [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}]
    assert output_of(b"", json.dumps({"output": items}).encode()) == items


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"command": []}, "command is empty"),
        ({"command": "python3 x.py"}, "command is a list of texts, and not 'python3 x.py'"),
        ({"command": "python3"}, "command is a list of texts, and not 'python3'"),
        ({"command": ["no-such-program"]}, "command: there is no program no-such-program on the path"),
        ({"command": ["/no/such/program"]}, "command: there is no /no/such/program"),
        ({"command": ["sh", 3]}, "command is a list of texts"),
        ({"command": ["sh"], "files": [5]}, "files is a list of texts"),
        ({"command": ["sh"], "environment": "A=1"}, "environment is a table, and not 'A=1'"),
        ({"command": ["sh"], "limits": [1]}, "limits is a table"),
        ({"command": ["sh"], "limits": {"memory_bytes": "1 GiB"}}, "the limit memory_bytes is '1 GiB', and must be"),
        ({"command": ["sh"], "limits": {"walls": 1}}, "there is no limit walls; there are wall_s, "),
        ({"command": ["sh"], "limits": {"wall_s": 0}}, "the limit wall_s is 0, and must be a number above 0"),
        ({"command": ["sh"], "files": ["nowhere"]}, "files: there is no nowhere"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    """When the agent is made, and so before anything runs."""
    make: Callable[..., Any] = HarnessAgent
    with pytest.raises(ValueError, match=says):
        make(Model(), {}, **options)
