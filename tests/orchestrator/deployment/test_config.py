"""What `[fleet]` says, and what is refused in it."""

from pathlib import Path

import pytest

from orchestrator.collect.config import load_config, load_participants
from orchestrator.deployment import FleetTable, ServerTable
from participants.serving import ConfigError

from .files import load, write_file

pytestmark = pytest.mark.unit


TWO = """[fleet.servers."model.main"]
listen = "{}"
[fleet.servers."agent.main"]
listen = "127.0.0.1:7001"
"""


def test_a_role_without_a_table_has_one_worker_on_a_free_port(tmp_path: Path) -> None:
    """Nothing need be said of a server."""
    fleet = load(tmp_path).fleet
    assert fleet is not None
    assert fleet.server("agent.main") == ServerTable(workers=1, listen="127.0.0.1:0", server=None, url=None)
    assert fleet.mode == "start"


def test_the_folder_is_beside_the_file(tmp_path: Path) -> None:
    """A relative folder does not depend on where the command is run."""
    fleet = load(tmp_path, fleet='folder = "mine"').fleet
    assert fleet is not None
    assert fleet.folder == str(tmp_path / "mine")


def test_a_file_without_a_run_is_one_of_servers_alone(tmp_path: Path) -> None:
    """`up` needs no `[run]`, and a collection does."""
    path = write_file(tmp_path)
    assert load_participants(path).run is None
    with pytest.raises(ConfigError, match="run: Field required"):
        load_config(path)


def test_without_the_table_there_are_no_servers() -> None:
    """The example of a run in one process stays one."""
    assert load_config("examples/collect/run.toml").fleet is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[fleet.servers."agent"]', 'there is no role "agent"; there are environment.main, agent.main, model.main'),
        ('[fleet.servers."judge.main"]', 'no role "judge.main"'),
        ('[fleet.servers."resources."]', 'no role "resources."'),
        ('[fleet.servers."resources.chess"]', "no table [resources.chess]; there are resources.counter"),
        ('[fleet.servers."agent.main"]\nworkers = 0', "greater than or equal to 1"),
        ('[fleet.servers."agent.main"]\nworkers = 100000', "less than or equal to"),
        ('[fleet.servers."agent.main"]\nworkers = "two"', "valid integer"),
        ('[fleet.servers."agent.main"]\nport = 80', "no such key; there are workers, listen, hosts, server, url"),
        ('[fleet.servers."agent.main"]\nport = 80', 'run.toml: fleet.servers."agent.main".port: there is no such key'),
        ('[fleet.servers."resources.chess"]', 'run.toml: fleet.servers."resources.chess": there is no table'),
        ('[fleet.servers."agent.main"]\nlisten = "8000"', "no host:port"),
        ('[fleet.servers."agent.main"]\nlisten = "127.0.0.1"', "no host:port"),
        ('[fleet.servers."environment.main"]\nserver = "mine"', "no module:Class"),
        ('[fleet.servers."environment.main"]\nserver = "my own:One"', "no module:Class"),
        ('[fleet.servers."agent.main"]\nserver = "a:B"', "what it serves stands in [agent]; remove its server here"),
        ('[fleet.servers."model.main"]\nserver = "models:Model"', "what it serves stands in [model]"),
        ('[fleet.servers."resources.counter"]\nserver = "a:B"', "what it serves stands in [resources.counter]"),
        ('[fleet.servers."model.main"]\nurl = "http://h:1"\nworkers = 2', "remove workers, or the url"),
        ('[fleet.servers."model.main"]\nurl = "http://h:1"\nlisten = "127.0.0.1:1"', "remove listen, or the url"),
        ('[fleet.servers."model.main"]\nurl = "h:1"', "no http:// or https:// URL"),
        ('[fleet.servers."model.main"]\nurl = "http://h:port"', "no http:// or https:// URL"),
        ('[fleet.servers."model.main"]\nurl = "http://me:secret@h:1"', "URL without credentials"),
        ('[fleet.servers."model.judge"]\nworkers = 2', "no table [models.judge]; there are none"),
        ('[fleet.servers."model."]', 'no role "model."'),
        ('[fleet.servers."model.judge"]\nserver = "a:B"', "what it serves stands in [models.judge]"),
        (
            TWO.format("127.0.0.1:7001"),
            '"model.main" and "agent.main" both listen on port 7001',
        ),
        ('[fleet.servers."agent.main"]\nlisten = "0.0.0.0:9000"', "no address to be called at"),
        ('mode = "restart"', "'start', 'attach' or 'adopt'"),
        ('folder = "s3://bucket/fleet"', "name a folder on a local disk"),
        ('token_env = "not a name"', "no name of an environment variable"),
        ("keep = true", "no such key; there are mode, folder, token_env"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    """Each mistake is one sentence that says where it is and what there is instead."""
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, fleet=text)
    assert says in str(refused.value)
    assert "fleet" in str(refused.value).removeprefix(str(tmp_path))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:7001", "[::1]:0"])
def test_addresses_of_every_form_are_taken(listen: str) -> None:
    """Names, and both families."""
    assert ServerTable(listen=listen).listen == listen


def test_one_port_at_two_addresses_is_two_places() -> None:
    """A host with several addresses may have the same port at each."""
    servers = {"model.main": ServerTable(listen="127.0.0.1:7001"), "agent.main": ServerTable(listen="127.0.0.2:7001")}
    assert len(FleetTable(servers=servers).servers) == 2
