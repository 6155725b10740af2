"""A fleet on several hosts: what the file says, what is refused, and where each server is."""

import socket
from pathlib import Path

import pytest

from orchestrator.collect.config import Participants
from orchestrator.deployment.asking import At
from orchestrator.deployment.failures import SILENT, NotAnswering, NotThisHost, PortTaken
from orchestrator.deployment.hosts import (
    Span,
    check_host,
    host_of,
    listens_on,
    names_by_url,
    spans_of,
    urls_from,
)
from orchestrator.deployment.plan import make_plan, program_of, roles_of
from orchestrator.deployment.ports import Ports
from participants.serving import ConfigError
from participants.serving.addresses import split_address, worker_port

from .files import ROLES, load

pytestmark = pytest.mark.unit

NEEDED = 'mode = "attach"\ntoken_env = "TOKEN"\n'
HOSTS = '[fleet.hosts]\na = "10.0.0.1"\nb = "10.0.0.2"\n'
SERVER = '[fleet.servers."{}"]\n{}\n'


def spans_in(config: Participants) -> dict[str, Span]:
    """What the file says."""
    assert config.fleet is not None
    return spans_of(config.fleet, roles_of(config))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'token_env = "T"\n{HOSTS}', 'hosts needs mode = "attach"'),
        (f'mode = "adopt"\ntoken_env = "T"\n{HOSTS}', 'hosts needs mode = "attach"'),
        (f'mode = "attach"\n{HOSTS}', "hosts needs token_env"),
        ("base_port = 9000", "base_port is that of [fleet.hosts], which is missing"),
        (SERVER.format("agent.main", 'hosts = ["a"]'), "its hosts are those of [fleet.hosts], which is missing"),
        (NEEDED + HOSTS + SERVER.format("agent.main", 'hosts = ["a", "c"]'), "there is no host 'c'; there are a, b"),
        (NEEDED + HOSTS + SERVER.format("agent.main", "hosts = []"), "hosts names none; remove it for all of a, b"),
        (
            NEEDED + HOSTS + SERVER.format("agent.main", 'listen = "10.0.0.1:1"'),
            "from base_port; remove its listen",
        ),
        (NEEDED + HOSTS + SERVER.format("agent.main", 'url = "http://h:1"\nhosts = ["a"]'), "remove hosts, or the url"),
        (NEEDED + '[fleet.hosts]\na = "10.0.0.1"\nb = "10.0.0.1"', "a and b have the same address, 10.0.0.1"),
        (NEEDED + '[fleet.hosts]\na = "fd00::1"\nb = "[fd00:0::1]"', "a and b have the same address"),
        (NEEDED + '[fleet.hosts]\na = "10.0.0.1"\nb = "127.0.0.1"', "b: 127.0.0.1 is every host's own"),
        (NEEDED + '[fleet.hosts]\na = "10.0.0.1:9100"', "'10.0.0.1:9100' is no address of a host"),
        (NEEDED + '[fleet.hosts]\na = "10.0.0"', "'10.0.0' is no address of a host"),
        (NEEDED + '[fleet.hosts]\na = "http://h"', "'http://h' is no address of a host"),
        (NEEDED + '[fleet.hosts]\na = ""', "'' is no address of a host"),
        (NEEDED + '[fleet.hosts]\na = "0.0.0.0"', "name the one at which others reach this host"),
        (NEEDED + '[fleet.hosts]\na = "fe80::1%eth0"', "name the one at which others reach this host"),
        (NEEDED + '[fleet.hosts]\n"../a" = "10.0.0.1"', "'../a' is no name of a host"),
        (NEEDED + "base_port = 70000\n" + HOSTS, "less than or equal to 65535"),
        (
            NEEDED + "base_port = 65529\n" + HOSTS,
            "need the ports 65529 to 65536 on each host, and the last one is 65535; name a base_port of 65528 or less",
        ),
    ],
)
def test_hosts_that_cannot_be_are_refused_with_what_to_change(tmp_path: Path, text: str, says: str) -> None:
    """Each mistake is one sentence that names the place."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, fleet=text)
    assert says in str(caught.value)


def test_the_last_ports_that_there_are_may_be_used(tmp_path: Path) -> None:
    """Four servers with one worker each need eight."""
    spans = spans_in(load(tmp_path, fleet=NEEDED + "base_port = 65528\n" + HOSTS))
    assert worker_port(split_address(spans["environment.main"].addresses[0])[1], 0) == 65535


def test_each_role_has_a_block_of_ports_that_meets_no_other(tmp_path: Path) -> None:
    """One port for the server and one for each worker, the same on each host, whichever roles a host runs."""
    tables = SERVER.format("agent.main", "workers = 3") + SERVER.format("model.main", 'hosts = ["b"]\nworkers = 2')
    spans = spans_in(load(tmp_path, fleet=NEEDED + HOSTS + tables))
    assert {role: span.addresses for role, span in spans.items()} == {
        "model.main": ("10.0.0.2:9100",),
        "resources.counter": ("10.0.0.1:9103", "10.0.0.2:9103"),
        "agent.main": ("10.0.0.1:9105", "10.0.0.2:9105"),
        "environment.main": ("10.0.0.1:9109", "10.0.0.2:9109"),
    }
    taken = [worker_port(split_address(s.addresses[0])[1], k) for s in spans.values() for k in range(-1, s.workers)]
    assert taken == list(range(9100, 9111))


def test_each_host_calls_its_own_server_of_a_role_and_else_the_first(tmp_path: Path) -> None:
    """A controller, which is on none of them, calls the first."""
    text = NEEDED + HOSTS + SERVER.format("model.main", 'hosts = ["b"]')
    spans = spans_in(load(tmp_path, fleet=text))
    assert urls_from(spans, "a")["agent.main"] == "http://10.0.0.1:9104"
    assert urls_from(spans, "b")["agent.main"] == "http://10.0.0.2:9104"
    assert urls_from(spans, "a")["model.main"] == urls_from(spans, None)["model.main"] == "http://10.0.0.2:9100"
    assert list(listens_on(spans, "a")) == ROLES[1:]
    assert list(listens_on(spans, "b")) == ROLES


def test_every_host_makes_the_same_plan_of_where_everybody_is(tmp_path: Path) -> None:
    """Servers of a role have one span and different numbers; their peers are those of their own host."""
    text = NEEDED + HOSTS + SERVER.format("agent.main", "workers = 2")
    config = load(tmp_path, fleet=text)
    assert config.fleet is not None
    specs = []
    for host in ("a", "b"):
        listens, urls = listens_on(spans_in(config), host), urls_from(spans_in(config), host)
        specs.append(make_plan(config, config.fleet, listens, urls, None).spec("agent.main"))
    assert [spec.first_worker for spec in specs] == [0, 2]
    assert specs[0].span == specs[1].span == ("10.0.0.1:9104", "10.0.0.2:9104")
    assert [spec.peers["model.main"] for spec in specs] == ["http://10.0.0.1:9100", "http://10.0.0.2:9100"]


def test_a_server_of_another_span_is_another_program(tmp_path: Path) -> None:
    """Where a host is lost or added, those that go on must not be taken for what they were."""
    one, three = (load(tmp_path, fleet=NEEDED + HOSTS + more) for more in ('c = "10.0.0.3"\n', ""))
    digests = set()
    for config in (one, three):
        assert config.fleet is not None
        listens, urls = listens_on(spans_in(config), "a"), urls_from(spans_in(config), "a")
        digests.add(program_of(make_plan(config, config.fleet, listens, urls, None).spec("model.main")))
    assert len(digests) == 2


def test_a_server_with_a_url_has_no_ports_and_is_called_there(tmp_path: Path) -> None:
    """Somebody else runs it, for all hosts."""
    config = load(tmp_path, fleet=NEEDED + HOSTS + SERVER.format("model.main", 'url = "http://other:9000"'))
    assert list(spans_in(config)) == ROLES[1:]
    assert spans_in(config)["resources.counter"].addresses[0] == "10.0.0.1:9100"


@pytest.mark.parametrize(
    ("host", "text", "says"),
    [
        (None, HOSTS, "[fleet.hosts] names a, b: say which of them this machine is, with --host"),
        ("c", HOSTS, "--host c: [fleet.hosts] has no such host; there are a, b"),
        ("a", "", "--host a: the file has no [fleet.hosts]"),
        (
            "b",
            HOSTS + "".join(SERVER.format(role, 'hosts = ["a"]') for role in ROLES),
            "--host b: no server",
        ),
    ],
)
def test_a_host_that_is_none_of_the_file_is_refused(tmp_path: Path, host: str | None, text: str, says: str) -> None:
    """Before anything is started."""
    config = load(tmp_path, fleet=NEEDED + text)
    assert config.fleet is not None
    with pytest.raises(ConfigError) as caught:
        check_host(config.fleet, spans_in(config), host)
    assert says in str(caught.value)
    check_host(config.fleet, spans_in(config), "a" if text else None)


def test_people_are_told_the_host_of_a_server_and_of_a_worker(tmp_path: Path) -> None:
    """By the URL that did not answer, and by the name that a worker gave itself."""
    spans = spans_in(load(tmp_path, fleet=NEEDED + HOSTS + SERVER.format("agent.main", "workers = 2")))
    names = names_by_url(spans)
    assert names["http://10.0.0.2:9104"] == "agent.main on b"
    assert names["http://10.0.0.2:9106"] == "agent.main/w3 on b"
    assert names["http://10.0.0.1:9105"] == "agent.main/w0 on a"
    assert [host_of(spans, name) for name in ("agent.main/w1", "agent.main/w2", "agent.main/w4")] == ["a", "b", None]
    assert [host_of(spans, name) for name in ("agent.main", "judge.main/w0", "agent.main/main")] == [None] * 3
    assert At("agent.main", "http://h", "b").name == "agent.main on b"


def test_a_host_that_does_not_answer_is_told_with_what_to_do(tmp_path: Path) -> None:
    """Take it out, where it does not come back; of one host there is nothing to take out."""
    failures = {"agent.main on b": f"at http://10.0.0.2:9104 {SILENT} 10 s"}
    assert "taken out of [fleet.hosts]" in str(NotAnswering(failures, hosts=True))
    assert "[fleet.hosts]" not in str(NotAnswering(failures))
    assert "[fleet.hosts]" not in str(NotAnswering({"agent.main on b": "at http://h is agent.x"}, hosts=True))


@pytest.mark.anyio
async def test_an_address_of_another_machine_is_told_from_one_in_use() -> None:
    """The documentation's addresses are nobody's; what is in use is helped by another base_port."""
    ports = Ports(patience_s=0.0, host="b")
    with pytest.raises(NotThisHost, match=r"no such address, and \[fleet.hosts\] says that b has it"):
        await ports.keep("agent.main", "203.0.113.1:9100")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PortTaken, match=r"Address already in use\. .* name another base_port"):
            await ports.keep("agent.main", listen)
    ports.close()


@pytest.mark.anyio
async def test_a_name_that_means_this_machine_alone_is_refused_with_what_to_put_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Debian's 127.0.1.1 for the own name; without hosts, and by the number itself, it is what was asked for."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(NotThisHost, match=r"would listen on 127\.0\.1\.1 alone.* /etc/hosts.* Put a number there"):
        await Ports(host="b").keep("agent.main", "node-b:0")
    for ports, listen in ((Ports(), "node-b:0"), (Ports(host="b"), "127.0.1.1:0")):
        assert await ports.keep("agent.main", listen)
        ports.close()
