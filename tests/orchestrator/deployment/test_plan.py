"""Which servers a file names, what each is made of, and which survivors serve."""

from pathlib import Path

import pytest

from orchestrator.collect.config import Participants
from orchestrator.deployment.plan import (
    TOKEN_ENV,
    Plan,
    addresses,
    elsewhere,
    make_plan,
    program_of,
    roles_of,
    same_programs,
)
from orchestrator.deployment.state import FleetState, ServerState
from participants.serving import ConfigError, ServerSpec
from participants.serving.addresses import url_at

from .files import ROLES, load

pytestmark = pytest.mark.unit

LISTENS = {role: f"127.0.0.1:{7001 + number}" for number, role in enumerate(ROLES)}


def planned(config: Participants, listens: dict[str, str] = LISTENS, path: str | None = None) -> Plan:
    """The plan for these addresses."""
    assert config.fleet is not None
    urls = {role: url_at(listen) for role, listen in listens.items()} | elsewhere(config, config.fleet)
    return make_plan(config, config.fleet, listens, urls, path)


def state_of(spec: ServerSpec, program: str | None = None) -> ServerState:
    """A server that was started from a spec."""
    return ServerState(
        role=spec.role,
        url=url_at(spec.listen),
        listen=spec.listen,
        pid=1,
        started=1,
        workers=1,
        log="",
        program=program or program_of(spec),
    )


def test_a_server_comes_behind_those_that_it_calls(tmp_path: Path) -> None:
    """The order of the table is that of the calls, from the end."""
    config = load(tmp_path)
    assert roles_of(config) == ROLES
    seen: set[str] = set()
    for spec in planned(config).specs:
        assert set(spec.peers) <= seen
        seen.add(spec.role)


def test_each_server_is_told_of_exactly_those_that_it_calls(tmp_path: Path) -> None:
    """An environment calls agent and resources, an agent model and resources, resources the model, and it nobody."""
    plan = planned(load(tmp_path))
    assert plan.spec("environment.main").peers == {
        "agent.main": "http://127.0.0.1:7003",
        "resources.counter": "http://127.0.0.1:7002",
    }
    assert set(plan.spec("agent.main").peers) == {"model.main", "resources.counter"}
    assert plan.spec("resources.counter").peers == {"model.main": "http://127.0.0.1:7001"}
    assert plan.spec("model.main").peers == {}


JUDGE = '[models.judge]\nbase_url = "http://127.0.0.1:8/v1"\nmodel = "j"\n'


def test_a_further_model_is_told_to_resources_servers_alone(tmp_path: Path) -> None:
    """It is made of its own table, comes before who calls it, and is not captured: it is none of the policy's work."""
    text = f'[fleet.servers."model.judge"]\nworkers = 2\n{JUDGE}[capture]\nfolder = "rows"'
    config = load(tmp_path, fleet=text)
    assert roles_of(config) == ["model.main", "model.judge", *ROLES[1:]]
    plan = planned(config, LISTENS | {"model.judge": "127.0.0.1:7009"})
    judge = plan.spec("model.judge")
    assert (judge.workers, judge.capture, judge.peers) == (2, None, {})
    assert judge.model is not None
    assert (judge.model.base_url, judge.model.model) == ("http://127.0.0.1:8/v1", "j")
    assert plan.spec("model.main").capture == str(tmp_path / "rows")
    assert set(plan.spec("resources.counter").peers) == {"model.main", "model.judge"}
    assert set(plan.spec("agent.main").peers) == {"model.main", "resources.counter"}
    assert set(plan.spec("environment.main").peers) == {"agent.main", "resources.counter"}


def test_a_server_elsewhere_is_called_there_and_not_planned(tmp_path: Path) -> None:
    """A url makes a server somebody else's."""
    config = load(tmp_path, fleet='[fleet.servers."model.main"]\nurl = "http://other:9000/"')
    plan = planned(config, {role: at for role, at in LISTENS.items() if role != "model.main"})
    assert [spec.role for spec in plan.specs] == [role for role in ROLES if role != "model.main"]
    assert plan.spec("agent.main").peers["model.main"] == "http://other:9000"
    assert plan.elsewhere == {"model.main": "http://other:9000"}


def test_each_server_is_made_of_its_tables(tmp_path: Path) -> None:
    """The tool loop has the agent's limits and the model's dialect, resources their class and options."""
    text = '[fleet.servers."agent.main"]\nworkers = 3\n[agent]\nmax_steps = 5\n[capture]\nfolder = "rows"'
    plan = planned(load(tmp_path, fleet=text, options="{ start = 3 }"), path="/somewhere")
    assert plan.spec("agent.main").options == {"max_steps": 5}
    assert plan.spec("agent.main").dialect == "chat"
    assert plan.spec("agent.main").workers == 3
    assert plan.spec("resources.counter").options == {"start": 3}
    assert plan.spec("model.main").capture == str(tmp_path / "rows")
    assert {spec.path for spec in plan.specs} == {"/somewhere"}
    assert {spec.token_env for spec in plan.specs} == {TOKEN_ENV}


def test_an_agent_of_ones_own_gets_what_the_file_says_and_no_more(tmp_path: Path) -> None:
    """It need not know the limits of the one that ships; one that it was given and does not know, it refuses."""
    text = '[agent]\nserver = "mine:Agent"\nmax_wall_s = 5.0\noptions = { words = 3 }'
    spec = planned(load(tmp_path, fleet=text)).spec("agent.main")
    assert (spec.server, spec.options) == ("mine:Agent", {"words": 3, "max_wall_s": 5.0})


def test_the_store_is_known_where_checkpoints_are_on(tmp_path: Path) -> None:
    """Off means off for servers as well."""
    text = '[checkpoint]\nenabled = {}\nurl = "kept"'
    assert planned(load(tmp_path, fleet=text.format("false"))).spec("agent.main").store is None
    assert planned(load(tmp_path, fleet=text.format("true"))).spec("agent.main").store == str(tmp_path / "kept")


def test_servers_end_before_those_who_end_them_lose_patience(tmp_path: Path) -> None:
    """Otherwise every server that uses its time would be killed."""
    config = load(tmp_path, shutdown_s=5.0)
    assert all(0 < spec.shutdown_s < 5.0 for spec in planned(config).specs)


def test_what_no_server_can_be_made_of_is_refused_by_role(tmp_path: Path) -> None:
    """A name that no participant can have is named, and nothing is started."""
    with pytest.raises(ConfigError, match=r": resources: participant name 'Two Words' is refused"):
        load(tmp_path, fleet='[resources."Two Words"]\nserver = "a:B"')


def test_another_place_is_the_same_program_and_other_settings_are_not(tmp_path: Path) -> None:
    """The digest is of what a server is, and not of where."""
    spec = planned(load(tmp_path)).spec("model.main")
    assert program_of(spec) == program_of(spec.model_copy(update={"listen": "127.0.0.1:1"}))
    assert spec.model is not None
    other = spec.model.model_copy(update={"base_url": "http://127.0.0.1:8/v1"})
    assert program_of(spec) != program_of(spec.model_copy(update={"model": other}))
    agent = planned(load(tmp_path)).spec("agent.main")
    assert program_of(agent) != program_of(agent.model_copy(update={"workers": 2}))


def test_a_survivor_serves_if_it_is_what_is_planned_where_it_is_planned(tmp_path: Path) -> None:
    """One with other settings, one at another address and one that nobody knows do not."""
    plan = planned(load(tmp_path))
    model, counter, _, environment = plan.specs
    moved = environment.model_copy(update={"listen": "127.0.0.1:7009"})
    before = FleetState(boot="b", servers=(state_of(counter), state_of(model, "another"), state_of(moved)))
    assert same_programs(plan, before) == {"resources.counter"}
    assert same_programs(plan, None) == set()


def test_a_server_has_the_address_that_its_callers_know(tmp_path: Path) -> None:
    """Free ports are those of before, whether the file asks for one or says nothing; its own ports and hosts win."""
    tables = {"resources.counter": "127.0.0.1:0", "agent.main": "127.0.0.1:7777", "model.main": "127.0.0.2:0"}
    text = "".join(f'[fleet.servers."{role}"]\nlisten = "{listen}"\n' for role, listen in tables.items())
    config = load(tmp_path, fleet=text)
    assert config.fleet is not None
    before = FleetState(boot="b", servers=tuple(map(state_of, planned(config).specs)))
    assert addresses(config, config.fleet, before) == {
        "resources.counter": "127.0.0.1:7002",
        "model.main": "127.0.0.2:0",
        "agent.main": "127.0.0.1:7777",
        "environment.main": "127.0.0.1:7004",
    }
    assert addresses(config, config.fleet, None)["environment.main"] == "127.0.0.1:0"
