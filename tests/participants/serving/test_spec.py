"""What a server is started from: what is refused, and that the words say what to change."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from participants import HttpPeer, Peer
from participants.servers.counter import CounterServer
from participants.serving import ConfigError, ServerSpec, parse_spec
from participants.serving.addresses import split_address
from participants.serving.holders import check_spec, open_holder
from participants.serving.spec import load_document

pytestmark = pytest.mark.unit

MODEL = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
AGENT = {"kind": "agent", "peers": {"model.main": "http://h:1", "resources.counter": "http://h:2"}}
COUNTER = {"kind": "resources", "server": "participants.servers.counter:CounterServer"}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "kind: Field required"),
        ({"kind": "frog"}, "kind: Input should be"),
        ({"kind": "resources"}, "a resources server needs its class"),
        ({**COUNTER, "server": "counter"}, "is no module:Class"),
        ({**COUNTER, "server": "counter:"}, "is no module:Class"),
        ({**COUNTER, "peers": {"agent.main": "http://h:1"}}, "no peer of resources.main, which calls model.<name>"),
        (
            {"kind": "model", "model": MODEL, "peers": {"model.b": "http://h:1"}},
            "model.main calls nobody, and peers names",
        ),
        ({**COUNTER, "model": MODEL}, "model and capture are those of a model server"),
        ({**COUNTER, "dialect": "chat"}, "dialect is that of an agent, and this is resources.main"),
        ({**COUNTER, "capture": "/tmp/x"}, "model and capture are those of a model server"),
        ({**COUNTER, "name": "Counter"}, "[a-z0-9]"),
        ({**COUNTER, "workers": 0}, "workers: "),
        ({**COUNTER, "wokers": 1}, "wokers: there is no such key; there are kind, name"),
        ({**COUNTER, "wokers": 1}, ". Did you mean workers?"),
        ({**COUNTER, "workers": "2"}, "workers: Input should be a valid integer"),
        ({**COUNTER, "single_writer": "yes"}, "single_writer: Input should be a valid boolean"),
        ({**COUNTER, "span": "127.0.0.1:1"}, "span: Input should be a valid tuple"),
        ({**COUNTER, "listen": "127.0.0.1"}, "listen: '127.0.0.1' is no host:port"),
        ({**COUNTER, "listen": "0.0.0.0:80"}, "name the one at which others reach this host"),
        ({**COUNTER, "otlp": "http://me:hidden@h"}, "otlp: it is no http:// or https:// URL without credentials"),
        ({**COUNTER, "options": {"day": float("nan")}}, "options: day cannot be written as JSON"),
        ({**COUNTER, "store": "/tmp/x"}, "store is of no use without token_env"),
        ({"kind": "model"}, "a model server needs model"),
        ({"kind": "model", "model": MODEL, "server": "a:B"}, "take server and options away"),
        ({"kind": "model", "model": {**MODEL, "modle": 1}}, "model.modle: there is no such key; there are base_url"),
        ({"kind": "agent"}, "agent.main needs exactly one peer model.<name>, and has 0"),
        ({"kind": "environment", "peers": {"agent.a": "http://h:1", "agent.b": "http://h:2"}}, "and has 2"),
        ({**AGENT, "peers": {**AGENT["peers"], "agent.b": "http://h:3"}}, "'agent.b' is no peer of agent.main"),  # type: ignore[dict-item]
        ({**AGENT, "peers": {"model.main": "h:1"}}, 'peers."model.main": it is no http:// or https:// URL'),
    ],
)
def test_what_is_no_server_is_refused_with_what_to_change(document: dict[str, Any], says: str) -> None:
    """Each mistake is one error that names the place."""
    with pytest.raises(ConfigError) as caught:
        parse_spec(document, "here")
    assert str(caught.value).startswith("here: ")
    assert says in str(caught.value)


class Asking(CounterServer):
    """Calls the model."""

    def __init__(self, name: str = "main", *, peers: Mapping[str, Peer], **options: Any) -> None:
        super().__init__(name, **options)
        self.peers = peers


class AskingToo(Asking):
    """Hands on what it does not name."""

    def __init__(self, name: str = "main", *, more: int = 0, **options: Any) -> None:
        super().__init__(name, **options)


class AskingNobody(Asking):
    """Has peers of its own."""

    def __init__(self, name: str = "main") -> None:
        super().__init__(name, peers={})


@pytest.mark.anyio
@pytest.mark.parametrize(("server", "given"), [(Asking, True), (AskingToo, True), (AskingNobody, False)])
async def test_a_resources_server_that_takes_peers_is_given_those_that_it_may_call(server: type, given: bool) -> None:
    """Whoever's constructor takes them; the others are made without."""
    model: Peer = HttpPeer("http://h:1", "model.main", httpx.AsyncClient())
    spec = parse_spec({**COUNTER, "server": f"{__name__}:{server.__name__}", "peers": {"model.main": "http://h:1"}}, "")
    async with open_holder(spec, {"model.main": model}) as made:
        assert isinstance(made, Asking)
        assert made.peers == ({"model.main": model} if given else {})


@pytest.mark.anyio
async def test_a_resources_server_that_takes_no_peers_is_made_without() -> None:
    """A fleet tells every one of them where the model is."""
    spec = parse_spec({**COUNTER, "peers": {"model.main": "http://h:1"}}, "")
    async with open_holder(spec, {"model.main": HttpPeer("http://h:1", "model.main", httpx.AsyncClient())}) as made:
        assert isinstance(made, CounterServer)


def test_a_server_says_itself_again() -> None:
    """What a spec writes makes the same spec, of every kind."""
    for document in (COUNTER, AGENT, {"kind": "model", "model": MODEL}, {**COUNTER, "options": {"a": [1, None]}}):
        spec = parse_spec(document, "here")
        assert ServerSpec.model_validate_json(spec.model_dump_json()) == spec


def test_addresses_are_split() -> None:
    """With names, with IPv6, and with a free port."""
    assert split_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert split_address("localhost:80") == ("localhost", 80)
    assert split_address("[::1]:8000") == ("::1", 8000)
    for wrong in ("", ":80", "h", "h:x", "h:1/x", "u@h:1", "[::]:1"):
        with pytest.raises(ValueError, match=r"host:port|others reach|port|Port"):
            split_address(wrong)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({**COUNTER, "server": "nowhere:X"}, "server 'nowhere:X' cannot be imported: ModuleNotFoundError"),
        ({**COUNTER, "server": "participants.servers.counter:X"}, "it has no 'X'"),
        ({**COUNTER, "server": "participants:SimpleAgent"}, "'participants:SimpleAgent' is not a ResourcesServer"),
        ({**AGENT, "server": "participants:ModelServer"}, "'participants:ModelServer' is not an Agent"),
        ({**COUNTER, "token_env": "MIDFLIGHT_NO_SUCH"}, "the environment variable MIDFLIGHT_NO_SUCH is not set"),
        ({"kind": "model", "model": {**MODEL, "api_key_env": "MIDFLIGHT_NO_SUCH"}}, "MIDFLIGHT_NO_SUCH is not set"),
    ],
)
def test_what_a_server_lacks_shows_before_anything_is_started(document: dict[str, Any], says: str) -> None:
    """Classes and secrets are looked for at once."""
    with pytest.raises(ConfigError) as caught:
        check_spec(parse_spec(document, "here"))
    assert says in str(caught.value)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    """No file, no JSON, and JSON that is no object."""
    file = tmp_path / "spec.json"
    for text, says in ((None, "cannot be read"), ("{", "cannot be read"), ("[]", "holds no JSON object")):
        if text is not None:
            file.write_text(text)
        with pytest.raises(ConfigError, match=says):
            load_document(file)
    file.write_text(json.dumps(COUNTER))
    assert load_document(file) == COUNTER
