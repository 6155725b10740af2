"""A run with an agent of one's own: which class it is, what it is given, and that nothing is assumed of its state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.collect import Config, ConfigError, load_config, load_rollouts, open_world
from orchestrator.collect.fingerprint import fingerprint
from orchestrator.collect.saved import Work
from participants import Agent, Final, Held, Next, Session, SimpleAgent, StepContext
from participants.serving import parse_spec
from participants.serving.holders import open_holder
from store import Life

from .test_in_process import OneTool, configured, run

pytestmark = [pytest.mark.unit, pytest.mark.anyio]
HERE = f"{__name__}:"


class Odd(Agent):
    """Keeps a list for a state, asks the model `asks` times, and then waits to be let go."""

    go_on = anyio.Event()

    def __init__(self, *args: Any, asks: int = 1, **rest: Any) -> None:
        """`asks` is an option of its own."""
        super().__init__(*args, **rest)
        self.asks = asks

    async def start(self, held: Held[Session], body: Mapping[str, Any]) -> Any:
        """Nobody can look for anything in this."""
        return ["asked"]

    async def step(self, context: StepContext, state: Any) -> Next | Final:
        """One more entry for each call."""
        if len(state) <= self.asks:
            reply = await context.model("/v1/responses", {"input": [{"role": "user", "content": str(state)}]})
            return Next([*state, reply.body["usage"]])
        await Odd.go_on.wait()
        return Final({"output": [], "text": f"{len(state)}", "usage": "some", "metadata": []})


class Talking(SimpleAgent):
    """Takes everything that the one that ships takes."""


def with_agent(config: Config, **table: Any) -> Config:
    """The same run with another table `[agent]`."""
    return Config.model_validate({**config.model_dump(exclude_unset=True), "agent": table})


async def test_progress_counts_the_calls_of_an_agent_whose_state_is_like_no_other(tmp_path: Path) -> None:
    """Two calls of two tokens each are behind its boundary, though its state names no step and no usage."""
    config = with_agent(configured(tmp_path), server=f"{HERE}Odd", options={"asks": 2})
    Odd.go_on = anyio.Event()
    life = Life("r0", 1, 0, 0)
    row = {"responses_create_params": {"input": "x"}, "initial_count": 0, "expected_count": 0}
    async with open_world(config, None, OneTool()) as world:
        await world.dispatch({life: row})
        with anyio.fail_after(10):
            while (await world.work()).get("r0", Work()).calls < 2:
                await anyio.lowlevel.checkpoint()
        assert (await world.work())["r0"].tokens == 4
        Odd.go_on.set()
        async for result in world.environment.results():
            assert result.row is not None
            assert result.row["response"]["text"] == "3"
            break


async def test_a_run_has_the_agent_that_its_file_names(tmp_path: Path) -> None:
    """From the first row to the last; its own responses are in the output."""
    Odd.go_on = anyio.Event()
    Odd.go_on.set()
    summary = await run(with_agent(configured(tmp_path), server=f"{HERE}Odd"), OneTool())
    assert (summary.exit_code, summary.rows) == (0, 3)
    assert (tmp_path / "out.jsonl").read_text().count('"text":"2"') == 3


@pytest.mark.enumerated(2)
@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"server": "no_such_module:Agent"}, "agent.main: server 'no_such_module:Agent' cannot be imported"),
        ({"server": f"{HERE}Missing"}, "it has no 'Missing'"),
        ({"server": "participants:ModelServer"}, "'participants:ModelServer' is not an Agent"),
        ({"server": f"{HERE}Odd", "options": {"askes": 1}}, "does not take these options: .*askes"),
        ({"server": f"{HERE}Odd", "max_steps": 3}, "does not take these options: .*max_steps"),
    ],
)
async def test_an_agent_that_cannot_be_made_is_refused_before_there_is_a_store(
    tmp_path: Path, table: dict[str, Any], says: str
) -> None:
    """As a resources server is: the table, and what is wrong with it."""
    with pytest.raises(ConfigError, match=says):
        await run(with_agent(configured(tmp_path), **table), OneTool())
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("server", "limits"),
    [(f"{HERE}Odd", {"max_wall_s": 4.0}), (f"{HERE}Talking", {"max_steps": 7}), (None, {"max_steps": 7})],
)
async def test_embedded_and_served_agents_are_made_alike(
    tmp_path: Path, server: str | None, limits: dict[str, Any]
) -> None:
    """Of the same class, with the limits that the file names, and the dialect where the class takes it."""
    config = with_agent(configured(tmp_path), **({"server": server} if server else {}), **limits)
    document = {"kind": "agent", "server": server, "options": limits, "dialect": "responses"}
    spec = parse_spec({**document, "peers": {"model.main": "http://h:1"}}, "here")
    async with (
        open_world(config, None, OneTool()) as world,
        open_holder(spec, {"model.main": world.agent.model}) as served,
    ):
        assert type(world.agent) is type(served)
        told = [{key: vars(one).get(key) for key in ("dialect", "max_steps", *limits)} for one in (world.agent, served)]
        assert told[0] == told[1]
        assert limits.items() <= told[0].items()


FILE = """
[run]
input = "rows.jsonl"
output = "out.jsonl"
[model]
base_url = "http://localhost:1/v1"
model = "m"
[agent]
max_wall_s = 3.0
%s
[resources.counter]
server = "participants.servers.counter:CounterServer"
"""


def test_the_fingerprint_knows_the_agent_its_options_and_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them makes it another run, and by no other field."""
    monkeypatch.syspath_prepend(tmp_path)
    source = "from participants import SimpleAgent\nclass Mine(SimpleAgent):\n    pass\n"
    (tmp_path / "one_agent.py").write_text(source)
    (tmp_path / "two_agent.py").write_text(source)
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    found = []
    for table in (
        "",
        'server = "one_agent:Mine"',
        'server = "two_agent:Mine"',
        'server = "one_agent:Mine"\noptions = { dialect = "chat" }',
        'server = "one_agent:Mine"\nmax_steps = 3',
    ):
        (tmp_path / "run.toml").write_text(FILE % table)
        config = load_config(tmp_path / "run.toml")
        found.append(fingerprint(config, load_rollouts(config)))
    assert len({fields.pop("agent") for fields in found}) == 5
    assert all(fields == found[0] for fields in found)
