"""Addresses of servers and of roles that span several: what is refused, and who is where."""

import pytest

from participants.serving import ConfigError, parse_spec
from participants.serving.addresses import (
    check_span,
    join_address,
    place_in,
    split_address,
    url_at,
    worker_port,
    worker_urls,
)
from participants.serving.board import Board, Stage

pytestmark = pytest.mark.unit

COUNTER = {"kind": "resources", "name": "counter", "server": "participants.servers.counter:CounterServer"}
TWO = ("10.0.0.1:9100", "10.0.0.2:9100")


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"listen": "10.0.0.3:9100", "span": TWO}, "and 10.0.0.3:9100, where this server listens, is not among them"),
        ({"listen": "10.0.0.1:9101", "span": TWO}, "and 10.0.0.1:9101, where this server listens, is not among them"),
        ({"span": TWO}, "and 127.0.0.1:0, where this server listens, is not among them"),
        ({"listen": "10.0.0.1:0", "span": ("10.0.0.1:0", "10.0.0.2:9100")}, "10.0.0.1:0 has no port of its own"),
        ({"listen": TWO[0], "span": (*TWO, TWO[0])}, "span names 10.0.0.1:9100 twice"),
        ({"listen": "[fd00::1]:9", "span": ("[fd00::1]:9", "[fd00:0::0:1]:9")}, "span names [fd00::1]:9 twice"),
        ({"listen": "HOST:9", "span": ("host:9", "HOST:9")}, "span names host:9 twice"),
        (
            {"listen": TWO[0], "span": (TWO[0], "10.0.0.1:9102"), "workers": 2},
            "10.0.0.1:9100 with 2 workers has the ports to 9102; another server has 9102",
        ),
        (
            {"listen": TWO[0], "span": (TWO[0], "10.0.0.2:65534"), "workers": 2},
            "10.0.0.2:65534 with 2 workers needs the ports to 65536; there are 65535",
        ),
        ({"listen": TWO[0], "span": (TWO[0], "[fe80::1%eth0]:9100")}, "is another address on each host"),
        ({"listen": TWO[0], "span": (TWO[0], "0.0.0.0:9100")}, "name the one at which others reach this host"),
        ({"listen": TWO[0], "span": (TWO[0], "[0:0::0]:9100")}, "name the one at which others reach this host"),
        ({"listen": TWO[0], "span": (TWO[0], "10.0.0.2")}, "'10.0.0.2' is no host:port"),
        ({"listen": TWO[0], "span": (TWO[0], "fd00::2:9100")}, "'fd00::2:9100' is no host:port"),
        ({"listen": TWO[0], "span": (TWO[0], "")}, "'' is no host:port"),
        ({"listen": "10.0.0.1:99999"}, "'10.0.0.1:99999' is no host:port"),
    ],
)
def test_a_span_that_cannot_be_is_refused_with_what_is_wrong(document: dict[str, object], says: str) -> None:
    """Addresses that are not this server's, twice the same in whatever form, without a port, or in each other's way."""
    with pytest.raises(ConfigError) as caught:
        parse_spec({**COUNTER, **document}, "here")
    assert says in str(caught.value)


def test_the_workers_of_a_role_are_numbered_through_its_servers() -> None:
    """Each server's first worker, and each worker's URL, follow from the span and the number of workers alone."""
    spans = [parse_spec({**COUNTER, "workers": 2, "listen": at, "span": TWO}, "here") for at in TWO]
    assert [spec.first_worker for spec in spans] == [0, 2]
    assert worker_urls(TWO, 2) == tuple(
        f"http://{host}:{port}" for host in ("10.0.0.1", "10.0.0.2") for port in (9101, 9102)
    )
    assert worker_urls(("[fd00::1]:9100",), 1) == ("http://[fd00::1]:9101",)
    assert parse_spec({**COUNTER, "workers": 2}, "here").first_worker == 0


def test_servers_of_one_role_may_share_a_host_where_their_ports_do_not_meet() -> None:
    """The next one begins behind the last worker of the one before."""
    span = ("127.0.0.1:9100", "127.0.0.1:9103")
    check_span(span, 2)
    assert place_in(span, span[1]) == 1
    assert worker_port(9100, 1) + 1 == 9103


def test_an_address_is_known_in_every_form_of_it() -> None:
    """IPv6 has many; a name has no case."""
    assert place_in(("[fd00::1]:9", "[fd00::2]:9"), "[FD00:0:0::2]:9") == 1
    assert place_in(("Host:9",), "hOST:9") == 0
    assert split_address("[fd00::2]:9") == ("fd00::2", 9)
    assert url_at("[fd00::2]:9") == "http://[fd00::2]:9"
    assert join_address("h", 9) == "h:9"


def test_a_board_counts_the_workers_of_its_server_alone() -> None:
    """By the numbers that they have in the role."""
    board = Board(2, first=4)
    for number in (4, 5, 4):
        board.begin(number)
    board.put(5, Stage.READY)
    assert (board.stage(4), board.stage(5)) == (Stage.STARTING, Stage.READY)
    assert (board.workers, board.ready, board.replaced) == (2, 1, 1)
