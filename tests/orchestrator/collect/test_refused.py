"""What is refused before an epoch is claimed: everything that can be seen without the store, before there is one."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.collect import Config, ConfigError, Options, collect
from orchestrator.deployment import FleetTable
from participants import ResourcesServer, ResourcesSession
from participants.servers.counter import CounterServer
from store import open_store

from .test_in_process import Events, OneTool, configured, named, run

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


async def test_a_server_that_cannot_be_imported_is_refused_before_anything_is_claimed(tmp_path: Path) -> None:
    """The refusal names the table, and leaves no store behind."""
    config = configured(tmp_path)
    broken = config.resources["counter"].model_copy(update={"server": "no_such_module:Server"})
    with pytest.raises(ConfigError, match=r"resources\.counter: server 'no_such_module:Server' cannot be imported"):
        await run(config.model_copy(update={"resources": {"counter": broken}}), OneTool())
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("class Server(", "SyntaxError"),
        ("Server = undefined", "NameError"),
        ("raise RuntimeError('no GPU')", "RuntimeError: no GPU"),
    ],
)
async def test_a_server_module_that_raises_is_refused_before_anything_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    """Whatever a module raises while it is imported is told, with the table that names it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raising_server.py").write_text(source)
    with pytest.raises(ConfigError, match=rf"resources\.counter: server 'raising_server:Server' .*{says}"):
        await run(with_server(configured(tmp_path), "raising_server:Server"), OneTool())
    assert not (tmp_path / "store").exists()


class Raising(CounterServer):
    """Cannot be made."""

    def __init__(self, name: str) -> None:
        """Miss what it needs."""
        raise RuntimeError(f"{name} needs a licence")


@pytest.mark.parametrize(
    ("attribute", "says"), [("Raising", "RuntimeError: counter needs a licence"), ("Missing", "it has no 'Missing'")]
)
async def test_a_server_that_cannot_be_made_is_refused(tmp_path: Path, attribute: str, says: str) -> None:
    """The refusal names the table and what the constructor raised, or that there is none."""
    with pytest.raises(ConfigError, match=rf"resources\.counter: .*{says}"):
        await run(with_server(configured(tmp_path), f"{__name__}:{attribute}"), OneTool())
    assert not (tmp_path / "store").exists()


def with_server(config: Config, target: str) -> Config:
    """The same with another server."""
    table = config.resources["counter"].model_copy(update={"server": target})
    return config.model_copy(update={"resources": {"counter": table}})


@pytest.mark.enumerated(2)
@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
async def test_a_field_that_does_not_exist_cannot_be_accepted(tmp_path: Path, checkpoints: bool, fresh: bool) -> None:
    """A misspelt `--accept` is refused with the fields that there are, and no call is made."""
    upstream = OneTool()
    with pytest.raises(ConfigError, match=r"--accept modle: there is no such field; there are agent, .*model, "):
        await run(configured(tmp_path, checkpoints=checkpoints), upstream, fresh=fresh, accept=("model", "modle"))
    assert upstream.calls == 0
    if checkpoints:
        async with open_store(str(tmp_path / "store")) as store:
            assert (await store.chain()).state.epoch == 0


async def test_options_that_a_server_does_not_take_are_refused_before_there_is_a_store(tmp_path: Path) -> None:
    """A misspelt option names its table; corrected, the run has epoch 1."""
    config = configured(tmp_path)
    table = config.resources["counter"].model_copy(update={"options": {"sise": 3}})
    with pytest.raises(
        ConfigError, match=r"resources\.counter: .*does not take these options: .*sise.* It takes session_ttl_s"
    ):
        await run(config.model_copy(update={"resources": {"counter": table}}), OneTool())
    assert not (tmp_path / "store").exists()


async def test_a_key_that_the_environment_lacks_is_refused_before_there_is_a_store(tmp_path: Path) -> None:
    """The refusal names the variable."""
    config = configured(tmp_path)
    model = config.model.model_copy(update={"api_key_env": "MIDFLIGHT_NO_SUCH_KEY"})
    with pytest.raises(ConfigError, match="environment variable MIDFLIGHT_NO_SUCH_KEY is not set"):
        await collect(config.model_copy(update={"model": model}), Options(), lambda *_: None)
    assert not (tmp_path / "store").exists()


async def test_a_token_that_the_environment_lacks_is_refused_before_there_is_a_store(tmp_path: Path) -> None:
    """The refusal names the variable; neither the store nor the folder of the fleet is made."""
    fleet = FleetTable(folder=str(tmp_path / "fleet"), token_env="MIDFLIGHT_NO_SUCH_TOKEN")
    with pytest.raises(ConfigError, match="environment variable MIDFLIGHT_NO_SUCH_TOKEN is not set"):
        await collect(configured(tmp_path).model_copy(update={"fleet": fleet}), Options(), lambda *_: None)
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "fleet").exists()


class Closing(CounterServer):
    """Says that it was closed."""

    closed = 0

    async def aclose(self) -> None:
        """Count."""
        type(self).closed += 1
        await super().aclose()


@pytest.mark.parametrize(("accept", "code"), [((), 0), (("modle",), None)])
async def test_a_server_is_closed_once_whether_it_ran_or_not(
    tmp_path: Path, accept: tuple[str, ...], code: int | None
) -> None:
    """After a run, and where the start was refused after it was made."""
    Closing.closed = 0
    config = with_server(configured(tmp_path), f"{__name__}:Closing")
    try:
        assert (await run(config, OneTool(), accept=accept)).exit_code == code
    except ConfigError:
        assert code is None
    assert Closing.closed == 1


class Undeclared(ResourcesServer):
    """Says nothing of checkpoints."""

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """Any answer will do."""
        return {"reward": 1.0}


class Heir(Undeclared):
    """Says as little."""


class Declared(Undeclared):
    """Says that nothing is kept."""

    checkpoint_mode = "restart"


@pytest.mark.enumerated(3)
@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize(("server", "told"), [("Undeclared", True), ("Heir", True), ("Declared", False)])
async def test_a_server_that_declares_no_mode_is_told_of_where_there_are_checkpoints(
    tmp_path: Path, checkpoints: bool, server: str, told: bool
) -> None:
    """One line at the start, which names it: its author may not know that crashes cost its episodes."""
    config = with_server(configured(tmp_path, checkpoints=checkpoints), f"{__name__}:{server}")
    events: Events = []
    await run(config, OneTool(), events)
    says = "resources.counter declares no checkpoint_mode: its episodes start over after a crash"
    found = [facts["message"] for facts in named(events, "restart_only")]
    assert found == ([says] if told and checkpoints else [])
