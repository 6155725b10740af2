"""Servers of one and of several processes, as an operator has them: started, asked, killed and stopped."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from participants import CONTROL_PREFIX
from participants.ledger.http import LEDGER_PREFIX
from participants.routing import worker_of
from participants.sessions import SESSION_COOKIE, SESSION_HEADER
from tests.support.fleet import Server
from tests.support.processes import program
from tests.support.waiting import let_run, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

TOKEN = "a-token"
CONTROL = {"authorization": f"Bearer {TOKEN}"}
PARTS = "tests.support.served_parts"
ASK_S = 20.0
START_S = 90.0
Begin = Callable[..., Server]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts servers of one test, and kills them at its end."""
    with ExitStack() as stack:

        def start(workers: int = 1, server: str = "HeldServer", *, wait: bool = True, **more: Any) -> Server:
            options = {"folder": str(tmp_path), **more.pop("options", {})}
            spec = {"server": f"{PARTS}:{server}", "workers": workers, "options": options, "token_env": "TOKEN", **more}
            served = Server("resources.held", spec, tmp_path, {"TOKEN": TOKEN})
            stack.callback(served.kill)
            served.begin()
            if wait:
                served.await_ready()
            return served

        yield start


def get(url: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
    """One request on a connection of its own, which any worker may take."""
    return httpx.get(url, headers=headers, timeout=ASK_S)


def post(url: str, body: Any = None, headers: Mapping[str, str] | None = None) -> httpx.Response:
    """As `get`."""
    return httpx.post(url, json=body or {}, headers=headers, timeout=ASK_S)


def private_urls(served: Server) -> list[str]:
    """Where each worker is."""
    return list(get(f"{served.url}/midflight/v1/workers").json()["workers"])


def seeded(served: Server) -> str:
    """A session that a client without a life has got."""
    answer = post(f"{served.url}/seed_session")
    assert answer.status_code == 200, answer.text
    return answer.cookies[SESSION_COOKIE]


def runs(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("workers", [1, 3])
def test_a_server_is_ready_once_all_its_workers_serve(begin: Begin, workers: int) -> None:
    """The ready line stands alone on stdout; each worker has an address, a process and an incarnation of its own."""
    served = begin(workers)
    assert served._out.read_text() == f"ready: {served.url}\n"
    urls = private_urls(served)
    found = [get(f"{url}/health").json() for url in urls]
    assert [document["process"] for document in found] == [f"w{number}" for number in range(workers)]
    assert len({document["pid"] for document in found} | {served.process and served.process.pid}) == workers + 1
    assert len({document["incarnation"] for document in found}) == workers
    capabilities = [get(f"{url}{CONTROL_PREFIX}/capabilities", CONTROL).json() for url in urls]
    assert [(c["worker"], c["workers"], c["urls"]) for c in capabilities] == [
        (n, workers, urls) for n in range(workers)
    ]
    assert [c["incarnation"] for c in capabilities] == [document["incarnation"] for document in found]
    for path in ("/", "/health", "/healthz", "/livez", "/readyz"):
        answer = get(f"{served.url}{path}")
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")


def test_everything_that_a_server_says_is_json(begin: Begin) -> None:
    """One object a line with who says it; only what somebody's module prints is beside it, and not on stdout."""
    served = begin(2)
    served.signal(signal.SIGTERM)
    assert served.process is not None
    assert served.process.wait(ASK_S) == 0
    printed, *lines = served.log.read_text().splitlines()
    assert printed == "what a module prints when it is imported"
    events = [json.loads(line) for line in lines]
    for event in events:
        assert {"ts", "level", "event", "kind", "name", "process", "pid"} <= event.keys()
        assert (event["kind"], event["name"]) == ("resources", "held")
    names = [event["event"] for event in events]
    assert names == ["worker_started"] * 2 + ["ready", "stopping"] + ["worker_stopped"] * 2 + ["stopped"]


def test_a_server_is_not_ready_while_one_of_its_workers_is_not(begin: Begin, tmp_path: Path) -> None:
    """The one that serves says so, and nothing is on stdout yet."""
    served = begin(2, wait=False, options={"slow": True})
    until(lambda: served.events("worker_started"), START_S, served.told)
    answer = get(f"{served.url}/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (503, 1)
    assert get(f"{served.url}/health").status_code == 200
    assert served._out.read_text() == ""
    (tmp_path / "go").touch()
    served.await_ready()
    assert get(f"{served.url}/readyz").status_code == 200


def test_a_session_is_found_wherever_a_call_comes_in(begin: Begin) -> None:
    """Clients that know nothing of workers: each call is on a connection of its own, which any worker may take."""
    served = begin(3)
    owners = set()
    for _ in range(8):
        session = seeded(served)
        urls = [served.url, *private_urls(served)]
        pids = {post(f"{url}/pid", headers={SESSION_HEADER: session}).text for url in urls}
        assert len(pids) == 1, pids
        assert "pid" in next(iter(pids))
        owners |= pids
    assert len(owners) > 1


def test_a_worker_that_is_killed_is_replaced_and_the_log_says_so(begin: Begin) -> None:
    """At the same address, as another incarnation, while the other ones go on; health counts it."""
    served = begin(3)
    urls = private_urls(served)
    before = [get(f"{url}/health").json() for url in urls]
    served.kill_worker(1)
    after = [get(f"{url}/health").json() for url in urls]
    assert private_urls(served) == urls
    assert [a["incarnation"] == b["incarnation"] for a, b in zip(after, before, strict=True)] == [True, False, True]
    assert [document["replaced"] for document in after] == [1, 1, 1]
    [died] = served.events("worker_died")
    assert (died["level"], died["process"], died["pid"], died["signal"]) == ("error", "w1", before[1]["pid"], "SIGKILL")
    started = served.events("worker_started")[-1]
    assert (started["process"], started["incarnation"]) == ("w1", after[1]["incarnation"])
    assert get(f"{served.url}/readyz").status_code == 200


@pytest.mark.parametrize("workers", [1, 3])
def test_no_worker_outlives_its_supervisor(begin: Begin, workers: int) -> None:
    """Killed with SIGKILL alone, it leaves no process, and its port is free."""
    served = begin(workers)
    pids = [served.worker(number) for number in range(workers)]
    assert all(map(runs, pids))
    served.signal(signal.SIGKILL)
    until(lambda: not any(map(runs, pids)), ASK_S)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", served.port))


def hold(served: Server, folder: Path) -> subprocess.Popen[bytes]:
    """A client whose call is held at the owner of its session, and is so when this returns."""
    session, urls = seeded(served), private_urls(served)
    url = urls[worker_of(session, len(urls))]
    command = ["curl", "-s", "-X", "POST", "-d", "{}", "-H", f"{SESSION_HEADER}: {session}", f"{url}/hold"]
    client = subprocess.Popen(command, stdout=subprocess.PIPE)
    until((folder / f"held-{session}").exists, told=served.told)
    return client


def test_a_server_stops_inside_its_time_with_calls_held(begin: Begin, tmp_path: Path) -> None:
    """Held calls are given a part of it; then sessions are closed, and the exit code is 0."""
    served = begin(2, shutdown_s=4.0)
    with hold(served, tmp_path) as client:
        at = time.monotonic()
        served.signal(signal.SIGTERM)
        assert served.process is not None
        assert served.process.wait(ASK_S) == 0
        assert time.monotonic() - at < 4.5
        client.wait(ASK_S)
    assert served.events("worker_killed") == []
    assert len(list(tmp_path.glob("closed-*"))) == 1
    assert served.events("stopped")[0]["exit_code"] == 0


def test_a_call_that_ends_in_time_is_answered_though_the_server_stops(begin: Begin, tmp_path: Path) -> None:
    """SIGTERM breaks off nothing that ends by itself; nobody else is let in meanwhile."""
    served = begin(1, shutdown_s=60.0)
    with hold(served, tmp_path) as client:
        served.signal(signal.SIGTERM)
        until(lambda: not connects(served.port), told=served.told)
        let_run(0.5)
        (tmp_path / "release").touch()
        assert client.communicate(timeout=ASK_S)[0] == b"{}"
    assert served.process is not None
    assert served.process.wait(ASK_S) == 0


def test_what_a_hook_forks_holds_no_client_and_no_port(begin: Begin, tmp_path: Path) -> None:
    """While the child runs, a killed worker's clients are told at once, and a stopped server's port is free."""
    served = begin(1)
    with hold(served, tmp_path) as client:
        answer = post(f"{served.url}/fork", headers={SESSION_HEADER: seeded(served)})
        child = answer.json()["pid"]
        try:
            served.kill_worker(0)
            client.wait(ASK_S)
            served.signal(signal.SIGTERM)
            assert served.process is not None
            assert served.process.wait(ASK_S) == 0
            assert runs(child)
            assert not connects(served.port)
        finally:
            client.kill()
            os.kill(child, signal.SIGKILL)


def connects(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_worker_that_is_told_to_end_ends_its_calls_and_is_replaced(begin: Begin, tmp_path: Path) -> None:
    """Until then the server is not ready, as the other worker says."""
    served = begin(2, shutdown_s=60.0)
    with hold(served, tmp_path) as client:
        [session] = [file.name.removeprefix("held-") for file in tmp_path.glob("held-*")]
        owner = worker_of(session, 2)
        readiness = f"{private_urls(served)[1 - owner]}/readyz"
        os.kill(served.worker(owner), signal.SIGTERM)
        until(lambda: get(readiness).status_code == 503, told=served.told)
        let_run(0.5)
        (tmp_path / "release").touch()
        assert client.communicate(timeout=ASK_S)[0] == b"{}"
    until(lambda: get(readiness).status_code == 200, START_S, served.told)
    [died] = served.events("worker_died")
    assert (died["process"], died["exit_code"]) == (f"w{owner}", 0)


def test_who_does_not_stop_in_time_is_killed(begin: Begin, tmp_path: Path) -> None:
    """The log names it, and the server has stopped as it was told to."""
    served = begin(1, "StubbornServer", shutdown_s=2.0)
    seeded(served)
    served.signal(signal.SIGTERM)
    assert served.process is not None
    assert served.process.wait(ASK_S) == 0
    assert [event["process"] for event in served.events("worker_killed")] == ["w0"]
    assert [event["signal"] for event in served.events("worker_stopped")] == ["SIGKILL"]


def test_a_second_signal_stops_a_server_at_once(begin: Begin, tmp_path: Path) -> None:
    """Whatever is left of the time."""
    served = begin(1, "StubbornServer", shutdown_s=600.0)
    seeded(served)
    served.signal(signal.SIGTERM)
    until((tmp_path / "closing").exists, told=served.told)
    served.signal(signal.SIGTERM)
    assert served.process is not None
    assert served.process.wait(ASK_S) == 0
    assert len(served.events("worker_killed")) == 1


def test_the_control_plane_lets_in_nobody_without_the_token(begin: Begin) -> None:
    """None, or a wrong one; and a server that was given none has no control plane at all."""
    served = begin(1)
    capabilities = f"{served.url}{CONTROL_PREFIX}/capabilities"
    assert get(capabilities).status_code == 401
    assert get(capabilities, {"authorization": "Bearer another"}).status_code == 401
    assert get(capabilities, CONTROL).status_code == 200
    served.kill()
    without = begin(1, token_env=None)
    answer = get(f"{without.url}{CONTROL_PREFIX}/capabilities", CONTROL)
    assert "incarnation" not in answer.json(), answer.text
    assert not answer.is_success


def test_a_server_that_nobody_has_adopted_answers_for_no_life(begin: Begin) -> None:
    """It may stand in the place of one that had its sessions. After the adopt it does."""
    served = begin(1)
    life = {"x-midflight-life": "task-1/1.0#1"}
    refused = post(f"{served.url}/seed_session", headers=life)
    assert (refused.status_code, refused.json()["error"]["code"]) == (410, "lost_session")
    assert post(f"{served.url}/seed_session").status_code == 200
    adopted = post(f"{served.url}{CONTROL_PREFIX}/adopt", {"run": "r", "epoch": 1}, CONTROL)
    assert adopted.status_code == 200, adopted.text
    taken = post(f"{served.url}/seed_session", headers=life)
    assert taken.status_code == 200, taken.text


def test_a_model_server_says_that_its_endpoint_does_not_answer(tmp_path: Path) -> None:
    """In its log, while it serves; its ledger is there for whoever has the token."""
    spec = {"model": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}, "capture": str(tmp_path / "rows")}
    served = Server("model.main", {**spec, "token_env": "TOKEN"}, tmp_path, {"TOKEN": TOKEN})
    served.begin()
    try:
        served.await_ready()
        until(lambda: served.events("endpoint"), START_S, served.told)
        assert "http://127.0.0.1:9/v1 does not answer" in served.events("endpoint")[0]["message"]
        manifest = f"{served.url}{LEDGER_PREFIX}/r0/manifest"
        assert get(manifest).status_code == 401
        assert get(manifest, CONTROL).status_code not in (401, 404)
    finally:
        served.kill()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere:X"], "server 'nowhere:X' cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ([f"{PARTS}:Nobody"], "it has no 'Nobody'"),
        ([f"{PARTS}:HeldServer", "--option", "wrong=1"], "does not take these options"),
        ([f"{PARTS}:HeldServer", "--option", "folder=x", "--workers", "0"], "workers: "),
        ([f"{PARTS}:HeldServer", "--option", "folder=x", "--listen", "127.0.0.1:{port}"], "Address already in use"),
    ],
    ids=["module", "class", "options", "workers", "port"],
)
def test_why_a_server_cannot_start_is_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    """On stderr, with exit code 2; stdout has nothing."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        given = [argument.format(port=taken.getsockname()[1]) for argument in arguments]
        root = str(Path(__file__).parents[3])
        command = [str(program("midflight")), "serve", "resources", *given, "--name", "held", "--path", root]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    [line] = [line for line in done.stderr.splitlines() if line != "what a module prints when it is imported"]
    told = json.loads(line)
    assert (told["event"], told["level"], told["name"]) == ("cannot_start", "error", "held")
    assert says in told["message"]


@pytest.mark.parametrize(("options", "says"), [([], ""), (["--spec", "spec.json"], "; spec.json has no kind either")])
def test_a_server_of_no_kind_is_told_which_there_are(options: list[str], says: str, tmp_path: Path) -> None:
    """In the words of the command, with exit code 2."""
    (tmp_path / "spec.json").write_text("{}")
    command = [str(program("midflight")), "serve", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    told = json.loads(done.stderr)
    assert told["event"] == "cannot_start"
    assert told["message"] == f"KIND is missing: environment, agent, model or resources{says}"


def test_flags_overrule_the_file(tmp_path: Path) -> None:
    """One at a time, and single options within those of the file; a module beside the file's `path` is found."""
    (tmp_path / "mine.py").write_text(
        "from tests.support.served_parts import HeldServer\n\n\nclass Mine(HeldServer):\n"
        "    def __init__(self, name='main', *, other, **options):\n        super().__init__(name, **options)\n"
        "        print(f'made with {other}', flush=True)\n"
    )
    spec = {"kind": "resources", "name": "a", "server": "mine:Mine", "options": {"folder": "x", "other": 1}}
    (tmp_path / "spec.json").write_text(json.dumps({**spec, "path": str(tmp_path)}))
    command = [str(program("midflight")), "serve", "--spec", "spec.json", "--name", "b", "--option", "other=[2]"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with (
        (tmp_path / "err").open("w") as err,
        subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=err, text=True
        ) as process,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("ready: ").strip()
        try:
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url), (tmp_path / "err").read_text()
            assert get(f"{url}/health").json()["name"] == "b"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(ASK_S) == 0
    assert "made with [2]" in (tmp_path / "err").read_text()
