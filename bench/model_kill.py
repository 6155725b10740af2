"""Generations that are cut by a kill: what is continued after the restore, and what is made a second time.

The deterministic backend is a process of its own, and so is the model server, with a checkpoint store on the local
disk. Every call is held by the backend after `--cut` tokens and some, each after another number; a checkpoint is taken;
every call goes on for `--lost` tokens more; then the model server is killed with SIGKILL, and a fresh one restores and
makes all calls again. What is counted comes from the backend's own records of its calls, and every reply is compared
with that of a backend that nobody has disturbed.

    continued     tokens of the replies that were not generated again
    regenerated   tokens that were generated before the kill and once more after it
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx

from orchestrator import LocalLink, adopt, commit, discover, prepare, restore, resume
from participants import ControlPlane, Floor, ModelServer, OpenAIEndpoint, Request
from participants.backends import LazyCapabilities
from participants.data import CallId
from participants.inference import DEFAULT_MODEL
from store import DEFAULT_LIMITS, Controller, Draft, Life, claim, open_checkpoint, open_store

from .endpoint import END_S, endpoint

CHAT = "/v1/chat/completions"
SPREAD = 32
"""Calls are cut after `cut` tokens and up to so many more."""
TIMEOUT_S, LEASE_S, READY_S = 120.0, 240.0, 60.0


@dataclass(frozen=True, slots=True)
class Kill:
    """What runs."""

    calls: int = 64
    tokens: int = 200
    """Of each reply, and its end."""
    cut: int = 100
    lost: int = 16
    """Tokens of each call between the checkpoint and the kill."""

    def cut_of(self, number: int) -> int:
        """Tokens that a call has at the checkpoint."""
        return self.cut + number * 7 % SPREAD


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the backend has generated. The calls before the kill had `before` tokens, those after it `after`."""

    needed: int
    before: int
    after: int
    reported: int
    """Tokens that the restored model server says it has continued."""
    restored_s: float
    """From the start of the new process to its last reply."""

    @property
    def continued(self) -> int:
        """Tokens of the replies that were not generated again."""
        return self.needed - self.after

    @property
    def regenerated(self) -> int:
        """Tokens that were generated twice."""
        return self.before + self.after - self.needed


# The model server, a process of its own


def _request(number: int, kill: Kill, attempt: int, epoch: int) -> Request:
    script = json.dumps([{"filler": kill.tokens, "text": "done"}])
    body = {"messages": [{"role": "user", "content": f"Task {number}. <script>{script}</script>"}], "logprobs": True}
    return Request(
        route=CHAT,
        body={"model": DEFAULT_MODEL, **body},
        life=Life(f"rollout-{number}", epoch, attempt, number),
        call=CallId("agent.main", 1, 0),
    )


async def _child(url: str, folder: Path, kill: Kill, *, again: bool) -> None:
    """Make all calls; told to on stdin, take a checkpoint. The second one restores first, and prints the replies."""
    async with (
        OpenAIEndpoint(url) as upstream,
        open_store(str(folder / "store"), "write", limits=DEFAULT_LIMITS) as store,
        claim(store, take_over=True) as controller,
    ):
        model = ModelServer(upstream, cuts=LazyCapabilities(upstream, DEFAULT_MODEL))
        await model.generator.capabilities()
        async with ControlPlane(model, store).run() as plane:
            found = await discover([LocalLink(plane)], store.run_id)
            fleet = (await adopt(found, controller.epoch, Floor(controller.epoch, 0)))[0]
            if again:
                round_, head = controller.next_round(), await open_checkpoint(store)
                await restore(fleet, round_, head.ref, head.manifest.scope, timeout_s=TIMEOUT_S)
                await resume(fleet, round_)
            requests = [_request(number, kill, int(again), controller.epoch) for number in range(kill.calls)]
            replies: dict[int, Any] = {}

            async def call(number: int) -> None:
                replies[number] = (await model.handle(requests[number])).body

            async with anyio.create_task_group() as group:
                for number in range(kill.calls):
                    group.start_soon(call, number)
                if not again:
                    _say("made")
                    await anyio.to_thread.run_sync(sys.stdin.readline)
                    await _checkpoint(fleet, controller, [r.life for r in requests if r.life])
                    _say("saved")
            _say(json.dumps({"replies": replies, "counts": model.counts()}))


async def _checkpoint(fleet: Any, controller: Controller, lives: Sequence[Life]) -> None:
    round_ = controller.next_round()
    await prepare(fleet, round_, timeout_s=TIMEOUT_S, lease_s=LEASE_S)
    answers = await commit(fleet, round_, lives, None, timeout_s=TIMEOUT_S)
    await resume(fleet, round_)
    draft = Draft(checkpoint=round_, parent=None, participants=[each.manifest for each in answers], scope=lives)
    await controller.publish(draft, timeout_s=TIMEOUT_S)


def _say(line: str) -> None:
    print(line, flush=True)


# The kill


class Backend:
    """The control routes of the backend."""

    def __init__(self, base_url: str) -> None:
        self._client = httpx.Client(base_url=base_url.removesuffix("/v1") + "/control", timeout=READY_S * 2)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def order(self, name: str, **fields: Any) -> Any:
        """One order. Raises httpx.HTTPStatusError where it is refused, or not met in time."""
        return self._client.post(f"/{name}", json=fields).raise_for_status().json()

    def calls(self) -> list[dict[str, Any]]:
        """Every call since the last reset."""
        found: list[dict[str, Any]] = self._client.get("/calls").raise_for_status().json()["calls"]
        return found

    def hold(self, kill: Kill, more: int) -> list[int]:
        """Hold every call, each after its own number of tokens and `more`."""
        return [
            self.order("holds", match={"substring": f"Task {n}. "}, after_tokens=kill.cut_of(n) + more)["hold"]
            for n in range(kill.calls)
        ]


@contextmanager
def _model_server(url: str, folder: Path, kill: Kill, *, again: bool) -> Iterator[subprocess.Popen[str]]:
    """The child; killed at the end, if it still runs."""
    numbers = [str(each) for each in (kill.calls, kill.tokens, kill.cut, kill.lost, int(again))]
    command = [sys.executable, "-m", "bench.model_kill", url, str(folder), *numbers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(END_S)


def _hear(process: subprocess.Popen[str], wanted: str = "") -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line or (wanted and line.strip() != wanted):
        raise RuntimeError(f"the model server said {line!r}")
    return line


def measure(folder: Path, kill: Kill) -> Outcome:
    """Cut, kill, restore, count."""
    with endpoint(folder, control=True) as served, closing(Backend(served.base_url)) as backend:
        holds = backend.hold(kill, 0)
        with _model_server(served.base_url, folder, kill, again=False) as first:
            _hear(first, "made")
            backend.order("wait", held=kill.calls, timeout_s=READY_S)
            assert first.stdin is not None
            first.stdin.write("\n")
            first.stdin.flush()
            _hear(first, "saved")
            backend.hold(kill, kill.lost)
            for hold in holds:
                backend.order("release", hold=hold)
            for record in _ours(backend):
                wanted = kill.cut_of(_number(record)) + kill.lost
                backend.order("wait", call=record["number"], generated=wanted, timeout_s=READY_S)
        backend.order("wait", live_at_most=0, timeout_s=READY_S)
        before = sum(record["generated"] for record in _ours(backend))
        backend.order("reset")
        began = time.perf_counter()
        with _model_server(served.base_url, folder, kill, again=True) as second:
            said = json.loads(_hear(second))
            restored_s = time.perf_counter() - began
        after = sum(record["generated"] for record in _ours(backend))
        needed = _compare(said["replies"], served.base_url, kill)
    return Outcome(needed, before, after, said["counts"]["tokens_continued"], restored_s)


def _ours(backend: Backend) -> list[dict[str, Any]]:
    """Calls of lives: not those that probe."""
    return [record for record in backend.calls() if "x-midflight-life" in record["headers"]]


def _number(record: dict[str, Any]) -> int:
    return Life.parse(record["headers"]["x-midflight-life"]).n


def _compare(replies: dict[str, Any], url: str, kill: Kill) -> int:
    """Tokens of all replies, each as an undisturbed backend gives it."""
    needed = 0
    for number in range(kill.calls):
        body = _request(number, kill, 0, 1).body
        whole = httpx.post(f"{url}/chat/completions", json=body, timeout=READY_S).raise_for_status().json()
        for part in ("message", "logprobs", "finish_reason"):
            if replies[str(number)]["choices"][0][part] != whole["choices"][0][part]:
                raise RuntimeError(f"call {number} has another {part} than the uncut one")
        if replies[str(number)]["usage"] != whole["usage"]:
            raise RuntimeError(f"call {number} has another usage than the uncut one")
        needed += whole["usage"]["completion_tokens"]
    return needed


def main() -> None:
    """Be the model server."""
    url, folder, *numbers = sys.argv[1:]
    calls, tokens, cut, lost, again = map(int, numbers)
    anyio.run(lambda: _child(url, Path(folder), Kill(calls, tokens, cut, lost), again=bool(again)))


if __name__ == "__main__":
    main()
