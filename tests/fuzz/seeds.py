"""Sound documents for every parser: the golden store, the examples, and what the code itself writes."""

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import orjson
from pydantic import BaseModel

from orchestrator.collect.segments import Header, Line
from orchestrator.links import _json
from participants import OPERATIONS, ParticipantError
from participants.channels.frames import call_rest, cancel_frame, numbered, reply_frame
from participants.cuts.prefix import Segment
from participants.data import CallId, Reply, Request
from participants.ledger.lines import END, FREEZE, head_line, row_line, scan
from participants.ledger.rows import Entry, Tail, row_after
from participants.staging.packs import Entry as Staged
from participants.staging.packs import Identity, PromptRef, as_ids, encode_entry
from participants.telemetry import continuing, traceparent
from participants.telemetry.collected import bounds_of
from participants.telemetry.names import BY_NAME
from participants.wire import Beat, Began, Capabilities, Finished, Results, Status
from store import Life
from store.frames import decompress
from tests.golden import make_v1

ROOT = Path(__file__).parents[2]
GOLDEN = Path(make_v1.__file__).parent / "v1"
AGENT = GOLDEN / "checkpoints/1.1/agent.solver/p0"
LIFE = Life("r0", 1, 0, 3)
DIGEST = "ab" * 32
HEX = "0123456789abcdef" * 2
_SEAL_BYTES = len(b',"sha256":""}\n') + 64

dumps, loads = orjson.dumps, orjson.loads

_BESIDE: list[type[BaseModel]] = [Capabilities, Status, Results, Began, Finished, Beat]
_SENT: list[type[BaseModel]] = [each for pair in OPERATIONS.values() for each in pair]
MESSAGES: Mapping[str, type[BaseModel]] = {model.__name__: model for model in _SENT + _BESIDE}
"""Whatever crosses the control plane, by the name of its class."""


def resealed(body: bytes) -> bytes:
    """A right seal around any bytes."""
    return body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def documents(name: str) -> Callable[[], list[bytes]]:
    """Sealed documents of the golden store of this kind, without what seals them."""
    paths = {
        "format": "format.json",
        "entry": "chain/*.json",
        "aggregate": "checkpoints/*/manifest.json",
        "manifest": "checkpoints/*/*/*/manifest.json",
    }
    return lambda: [path.read_bytes()[:-_SEAL_BYTES] for path in sorted(GOLDEN.glob(paths[name]))]


@cache
def _manifest() -> Any:
    return loads((AGENT / "manifest.json").read_bytes())


def part_sizes() -> list[int]:
    """Of the golden agent's parts."""
    return [part["size"] for part in _manifest()["parts"]]


def index() -> list[bytes]:
    """The golden agent's index, unpacked."""
    return [decompress(next(AGENT.glob("index-*")).read_bytes(), _manifest()["index"]["raw_size"], "index")]


def part() -> list[bytes]:
    """The first frame of its first part, unpacked."""
    first, frame = _manifest()["parts"][0], loads(index()[0].split(b"\n")[0])
    data = (AGENT / first["name"]).read_bytes()[: frame["size"]]
    return [decompress(data, frame["raw_size"], "part")]


def state() -> list[bytes]:
    """Values with and without what stands for bytes and blobs."""
    blob = {"sha256": DIGEST, "written_by": "1.1", "size": 3}
    values = [{"a": [1, -1.5, None, True, "é"]}, {"b": {"$bytes": "AAEC"}, "$$c": 1}, [{"$blob": blob}], 2**64 - 1]
    return [dumps(value) for value in values]


def beat() -> list[bytes]:
    """A counter of a controller."""
    return [dumps({"format": "midflight.alive", "epoch": 1, "count": 2, "beat_s": 5.0, "host": "h", "process": "p"})]


def messages() -> list[bytes]:
    """One of each."""
    return [name.encode() + b"\n" + dumps(message) for name, message in _messages().items()]


def _messages() -> dict[str, Any]:
    call = {"run": HEX, "epoch": 1, "floor": [1, 0], "incarnation": HEX}
    turn = {**call, "round": "1.1"}
    life, ref = str(LIFE), {"checkpoint": "1.1", "digest": DIGEST, "run_id": HEX}
    blocker = {"life": life, "participant": "agent.main", "step": "s", "reason": "r"}
    manifest = {"kind": "agent", "name": "main", "process": "w0", "digest": DIGEST, "size": 9, "records": 1, "bytes": 2}
    who = {"kind": "agent", "name": "main", "process": "w0", "incarnation": HEX}
    return {
        "Adopt": call,
        "Adopted": {"incarnation": HEX, "lives": [life], "dispatched": [life], "needs": {}, "brought": [], "lost": []},
        "Prepare": {**turn, "timeout_s": 1.0, "lease_s": 2.0},
        "Prepared": {"prepared": False, "blockers": [blocker], "blocker_count": 1, "restarts": [life]},
        "Commit": {**turn, "scope": [life], "parent": ref, "left_out": []},
        "Committed": {"manifest": manifest, "bytes_written": 5,
                      "tallies": [{"kind": "model", "name": "main", "count": 1, "digest": DIGEST}]},
        "Renew": {**turn, "lease_s": 2.0},
        "Renewed": {"lease_s": 1.5},
        "Resume": turn,
        "Abort": turn,
        "Stage": {**turn, "checkpoint": ref, "scope": [life], "shard": [0, 1], "participants": ["agent.main"]},
        "Activate": turn,
        "Done": {"phase": "idle", "count": 0},
        "Retire": {**call, "lives": [life], "timeout_s": 1.0},
        "Retired": {"not_stopped": [life]},
        "Submit": {**call, "episodes": [{"life": life, "row": {"input": ["x", 1.5, None]}}]},
        "Submitted": {"refused": [{"life": life, "code": "stale_life", "message": "m", "terminal": True}]},
        "Release": {**call, "lives": [life]},
        "Work": {**call, "rollouts": ["r0"]},
        "Worked": {"lives": {"r0": [1, 2]}, "boundaries": {"r0": 1}},
        "Capabilities": {**who, "run": HEX, "epoch": 1, "modes": {"checkpoint_mode": "exported"},
                         "software": {"midflight": "0"}, "worker": 0, "workers": 1, "urls": ["http://h:1"]},
        "Status": {**who, "phase": "idle", "epoch": 1, "round": "1.1", "lease_left_s": 1.5, "counts": {"a": 1},
                   "blockers": [blocker], "blocker_count": 1, "last_errors": ["e"], "store_requests": {"get": 1}},
        "Results": {**call, "after": 0},
        "Began": {"incarnation": HEX, "epoch": 1},
        "Finished": loads(results()[0]),
        "Beat": {"beat": True},
    }  # fmt: skip


def results() -> list[bytes]:
    """Lines of a stream."""
    done = Finished(n=1, life=LIFE, row={"reward": 1.0, "x": [None]}, active_s=0.5)
    lost = Finished(n=2, life=LIFE, failure={"class": "step_failed", "message": "m"})
    return [line.model_dump_json().encode() for line in (done, lost, Beat(), Began(incarnation=HEX, epoch=1))]


def error_of(data: bytes) -> None:
    """What a link makes of an answer."""
    ParticipantError.from_body(502, _json(httpx.Response(502, content=data)))


def errors() -> list[bytes]:
    """Bodies of errors."""
    error = {"code": "stale_epoch", "message": "m", "hint": "h", "details": {"retry_after_s": 1}}
    return [dumps({"error": error}), b"Bad Gateway", b"[" * 2000]


def frames() -> list[bytes]:
    """Calls, replies, and a message of several."""
    request = Request(route="/x", body={"a": [1]}, life=LIFE, call=CallId("agent.main", 1, 0), headers={"h": "v"})
    made = [numbered(7, call_rest(request)), cancel_frame(7), reply_frame(7, Reply(200, {"a": 1}, {"h": "v"}))]
    return [*made, b"\n".join(made)]


def workers() -> list[bytes]:
    """Of a server with two."""
    return [dumps({"kind": "agent", "name": "main", "workers": ["http://h:1", "http://h:2/"]})]


def freeze() -> list[bytes]:
    """The body."""
    return [b'{"version":"7"}']


def events() -> list[bytes]:
    """Streams in several spellings."""
    return [
        b'data: {"a":1}\n\ndata: [DONE]\n\n',
        b'\xef\xbb\xbf: hello\r\n\r\nevent: error\r\ndata:{"m":1}\r\ndata:2\r\n\r\n',
        b"error: {}\r\rdata: x\r\r\ndata: \n\n",
    ]


def streams() -> list[bytes]:
    """What models stream."""
    chat = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": [1]}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
    said = {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "content_index": 0, "delta": "x"}
    done = {"type": "response.completed", "response": {"id": "r", "output": [], "usage": {"output_tokens": 1}}}
    text = {"choices": [{"index": 0, "text": "x", "finish_reason": None}]}
    return [b"".join(b"data: %b\n\n" % dumps(each) for each in some) for some in ((chat, end), (said, done), (text,))]


def generations() -> list[bytes]:
    """A whole reply, and one too deep to be kept."""
    return [dumps({"choices": [{"message": {"content": "x"}}]}), b"[" * 300 + b"]" * 300, b"no JSON"]


def snapshots() -> list[bytes]:
    """What a worker tells."""
    name = next(each.name for each in BY_NAME.values() if each.shape == "histogram")
    counts = [1] * (len(bounds_of(BY_NAME[name])) + 1)
    return [
        dumps({"counters": [["n", {"kind": "agent"}, 1.0]], "histograms": [[name, {}, [counts, 0.5]]], "gauges": []})
    ]


def continued(header: str) -> None:
    """A header that is none, or of no trace, begins a trace of its own; any other is gone on with."""
    with continuing(header):
        place = traceparent()
    assert place is None or (place[3:-3] == header[3:-3] and set(place[3:35]) != {"0"} != set(place[36:52])), place


def traceparents() -> list[bytes]:
    """Sound and unsound."""
    return [b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"]


def lives() -> list[bytes]:
    """As written."""
    return [b"r0/1.0#3", b"a.b-c_d/999999999999999999.0#0"]


def rounds() -> list[bytes]:
    """As written."""
    return [b"1.1", b"12.345"]


def calls() -> list[bytes]:
    """As written."""
    return [b"agent.main:2.0", b"resources.x:1.0@agent.main:2.0"]


def keys() -> list[bytes]:
    """As written."""
    return [b"r0", b"r0-a7"]


def identities() -> list[bytes]:
    """Path and header."""
    return [
        b"/rollouts/r0/1.0.3/x\nr0/1.0#3",
        b"/rollouts/r0/1.0.3/v1/models",
        b"/x\nr0/1.0#3",
        b"/rollouts/../1.0.3/x",
    ]


def ledger() -> list[bytes]:
    """A life with two calls, a freeze and an end; and a first line alone."""
    tail, data = Tail(), head_line(LIFE, None, [])
    for k in range(2):
        entry = Entry(call=f"agent.main:{k}.0", route="/v1/chat/completions", request_digest=DIGEST, prompt=(1, 2),
                      output=(3,), segments=(Segment(0, 1, "7"),))  # fmt: skip
        row = row_after(tail, LIFE, entry)
        tail, data = tail.after(row), data + row_line(row)
    data += scan(data).receipt(FREEZE, data, version="7").line()
    return [data, data + scan(data).receipt(END, data, reason="retired").line(), head_line(LIFE, None, [])]


def toml() -> list[bytes]:
    """The examples, and one with most tables."""
    whole = """
[run]
output = "out.jsonl"
task_set = { name = "basic_arithmetic", size = 3 }
[model]
base_url = "http://127.0.0.1:8000/v1"
model = "m"
[models.judge]
base_url = "http://127.0.0.1:8001/v1"
model = "j"
[resources.counter]
server = "a.b:C"
options = { x = 1 }
[checkpoint]
enabled = true
url = "checkpoints"
[capture]
folder = "ledger"
[fleet]
token_env = "TOKEN"
folder = "fleet"
[fleet.servers."agent.main"]
workers = 2
listen = "127.0.0.1:9000"
"""
    return [whole.encode(), *(path.read_bytes() for path in sorted((ROOT / "examples").rglob("*.toml")))]


def specs() -> list[bytes]:
    """Of each kind that has something of its own."""
    model = {"kind": "model", "model": {"base_url": "http://h:1/v1", "model": "m"}, "capture": "ledger"}
    agent = {"kind": "agent", "peers": {"model.main": "http://h:1"}, "dialect": "chat", "token_env": "T", "store": "s"}
    tools = {"kind": "resources", "server": "a:B", "options": {"x": [1]}, "workers": 2, "listen": "127.0.0.1:9000",
             "span": ["127.0.0.1:9000", "10.0.0.1:9000"], "otlp": "http://h:4318"}  # fmt: skip
    return [dumps(each) for each in (model, agent, tools)]


def fleet_states() -> list[bytes]:
    """With one server."""
    server = {"role": "agent.main", "url": "http://h:1", "listen": "h:1", "pid": 1, "started": 2, "workers": 1,
              "log": "l", "program": "p"}  # fmt: skip
    return [dumps({"version": 1, "boot": "b", "host": "h", "controller": 1, "servers": [server]})]


def log_lines() -> list[bytes]:
    """Of those that are passed on."""
    return [b'{"event":"worker_died","process":"w0","pid":1,"exit_code":3}', b'{"event":"worker_started","replaced":1}']


def rows() -> list[bytes]:
    """The example's, and one with everything that is looked at."""
    rich = {"responses_create_params": {"input": "x"}, "n": 12345678901234567890, "agent_ref": {"name": "main"}}
    return [(ROOT / "examples/collect/rows.jsonl").read_bytes().split(b"\n")[0], dumps(rich) + b"\n\n" + dumps(rich)]


def segments() -> list[bytes]:
    """A header and two lines."""
    lines = [
        Line(rollout_id="r0", life=str(LIFE), failed=False, final=True, row={"reward": 1.0}),
        Line(rollout_id="r1", life="r1/1.0#4", failed=True, final=True, row={"failure": {"class": "c"}}),
    ]
    return [Header({"a": "b"}, ["a"], True).encode() + b"".join(line.encode() for line in lines)]


def staged() -> list[bytes]:
    """One prefix."""
    return [encode_entry(Staged(Identity(LIFE, "agent.main:1.0"), PromptRef.of([1, 2]), as_ids([3, 4])))]
