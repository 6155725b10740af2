"""The comparison with peers counts what it says, names what is missing, and its peers go on after a kill."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers import __main__ as peers_bench
from bench.peers import killed, standing
from bench.peers.killed import Load, Needed, counted
from bench.peers.peers import PEERS
from bench.peers.postgres import postgres
from bench.peers.protocol import Missing
from bench.peers.report import SAVED
from bench.peers.standing import ChildFailed, Size
from bench.peers.worlds import CALL_HEADER, Ends, finished, joined

IN_EXTRA = {"dbos_sqlite": "dbos", "dbos_postgres": "dbos", "langgraph_sqlite": "langgraph"}
SMALL = Size(episodes=6, turns=2, record_bytes=100)


@pytest.mark.unit
def test_a_peer_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It stands in the table of what is saved, and below it as not measured, with the extra to install."""
    for module in ("dbos", "langgraph.graph"):
        monkeypatch.setitem(sys.modules, module, None)
    peers_bench.main(["--peers", *IN_EXTRA, "--kills", "0", "--folder", str(tmp_path), "--json"])
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)["peers"]
    assert set(found) == set(IN_EXTRA)
    assert all("install the extra peers" in peer["missing"] for peer in found.values())
    for peer in found.values():
        assert sum(peer["title"] in line for line in lines) == 2


@pytest.mark.unit
def test_every_peer_says_all_that_it_saves() -> None:
    """No cell of the table of what is saved is empty, and no two peers have one title."""
    made = [make() for make in PEERS.values()]
    assert all(getattr(peer.saves, key) for peer in made for key in SAVED)
    assert len({peer.title for peer in made}) == len(PEERS)


def line(
    event: str, generated: int = 0, *, state: str = "finished", disconnected: bool = False, asked: bool = True
) -> str:
    """One of a backend's log."""
    headers = {CALL_HEADER: "x"} if asked else {}
    about = {"event": event, "headers": headers, "state": state, "disconnected": disconnected}
    return json.dumps(about | {"generated": generated})


@pytest.mark.unit
def test_redone_is_what_is_more_than_one_run_needs() -> None:
    """A turn cut by a kill was begun again, one that had ended is lost too; other questions count as tokens alone."""
    cut = [line("begin"), line("end", 7, state="aborted", disconnected=True)]
    unheard = [line("begin"), line("end", 10, disconnected=True)]
    whole = [line("begin"), line("end", 10)]
    other = [line("begin", asked=False), line("end", 3, asked=False)]
    found = counted([*cut, *whole, *whole, *whole, *unheard, *other], Needed(2, 20), 1, 1.0)
    assert (found.turns_again, found.turns_lost, found.tokens_again) == (3, 1, 7 + 10 + 10 + 3)


@pytest.mark.unit
def test_kills_come_at_the_same_times_for_every_peer() -> None:
    """The lives of starts are a function of the seed, and within their bounds."""
    assert Load(seed=3).lives() == Load(seed=3).lives() != Load(seed=4).lives()
    assert all(2.0 <= life_s <= 7.0 for life_s in Load(kills=50).lives())


@pytest.mark.unit
def test_a_stream_is_joined_to_its_message() -> None:
    """Text and the parts of a call come together; a message without calls has no such key."""
    call = {"index": 0, "id": "c", "function": {"name": "add", "arguments": "{"}}
    rest = {"index": 0, "function": {"arguments": "}"}}
    said = joined([{"content": "a"}, {"content": "b"}, {"tool_calls": [call]}, {"tool_calls": [rest]}, {}])
    function = {"name": "add", "arguments": "{}"}
    assert said == {
        "role": "assistant",
        "content": "ab",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    assert joined([{"content": "a"}]) == {"role": "assistant", "content": "a"}


@pytest.mark.unit
def test_a_torn_row_is_not_finished(tmp_path: Path) -> None:
    """The last line without its end does not count, and neither does a file that is not there."""
    path = tmp_path / "finished.jsonl"
    assert finished(path) == set()
    path.write_bytes(b'{"episode": 1}\n{"episode": 4}\n{"episode": 7')
    assert finished(path) == {1, 4}


@pytest.mark.unit
@pytest.mark.anyio
async def test_only_episodes_that_have_not_ended_run() -> None:
    """Each of them once; whoever waits for one hears of its end, and a second end is none."""
    ends, ran = Ends(range(4), {1}, 2), list[int]()

    async def run(episode: int) -> None:
        ran.append(episode)
        assert ends.end(episode)
        await ends.ended(episode)

    await ends.each(run)
    assert sorted(ran) == [0, 2, 3]
    assert not ends.end(2)


@pytest.mark.process
@pytest.mark.parametrize("name", ["midflight", "sqlite_rows"])
def test_a_killed_peer_goes_on_from_where_it_was(name: str, tmp_path: Path) -> None:
    """All messages of all held episodes are the same after SIGKILL, with no turn made again."""
    stood = standing.measure(name, SMALL, tmp_path / name, None)
    assert (stood.equal, stood.calls_again) == (True, 0)
    assert stood.bytes > 0
    assert stood.restore.wall_s > 0


@pytest.mark.process
def test_a_peer_that_takes_too_long_is_ended_and_said_to(tmp_path: Path) -> None:
    """Whatever it was doing; a process that dies of something else is told of as that."""
    with pytest.raises(ChildFailed, match=r"^it was not through after 0\.01 s$"):
        standing.measure("sqlite_rows", replace(SMALL, longest_s=0.01), tmp_path / "late", None)
    with pytest.raises(ChildFailed, match="instead of ready"):
        standing.measure("no such peer", SMALL, tmp_path / "none", None)


@pytest.mark.process
def test_finished_rows_alone_save_nothing_in_flight(tmp_path: Path) -> None:
    """Every turn is made again, and nothing was stored for it."""
    stood = standing.measure("finished_rows", SMALL, tmp_path / "rows", None)
    assert (stood.equal, stood.calls_again, stood.bytes) == (True, 12, 0)


@pytest.mark.process
@pytest.mark.parametrize("name", ["midflight", "sqlite_rows"])
def test_a_peer_that_is_killed_at_a_random_time_ends_all_episodes(name: str, tmp_path: Path) -> None:
    """What was needed is what one episode needs, times their number; nothing that was generated is left out."""
    load = Load(episodes=4, at_once=4, turns=2, filler=30, kills=1, life_s=(0.8, 0.9))
    needed = killed.need(load, tmp_path / "needed")
    found = killed.measure(name, load, needed, tmp_path / "killed", None)
    assert (found.turns, found.kills) == (12, 1)
    assert found.tokens > 12 * 30
    assert found.tokens_again >= 0
    assert found.turns_lost <= found.turns_again


def reachable(folder: Path) -> None:
    """Let the user that a database server runs as through to a folder of this test."""
    for path in (folder, *folder.parents):
        if "pytest-" in str(path):
            path.chmod(0o711)


@pytest.mark.real
@pytest.mark.parametrize("name", IN_EXTRA)
def test_a_peer_of_the_extra_goes_on_from_where_it_was(name: str, tmp_path: Path) -> None:
    """No turn is made again, and every message is the same, with the libraries themselves."""
    pytest.importorskip(IN_EXTRA[name], reason=f"{IN_EXTRA[name]} is not installed; it is in the extra peers")
    reachable(tmp_path)
    found = peers_bench.measured(name, SMALL, {}, tmp_path / name)
    if found.missing:
        pytest.skip(found.missing)
    assert found.stood is not None
    assert (found.stood.equal, found.stood.calls_again) == (True, 0)


@pytest.mark.real
def test_a_server_of_the_comparison_starts_and_ends(tmp_path: Path) -> None:
    """A new database is in it, what it computes is counted, and its socket is gone afterwards."""
    reachable(tmp_path)
    try:
        with postgres(tmp_path / "postgres") as server:
            server.create("one")
            assert server.bytes("one") > 1_000_000
            assert server.cpu_s() > 0
            assert server.url("one").endswith(f"@/one?host={server.socket}")
    except Missing as missing:
        pytest.skip(str(missing))
    assert not server.socket.exists()
