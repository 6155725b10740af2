"""Every parser of what comes from outside: where it stands, what it is fed to begin with, and what it may raise.

A parser either gives a value that means the same once it has been written and read again, or raises the error of its
place. `check` says so of any bytes; hypothesis (`test_parsers`) and the guided fuzzer (`guided`) choose them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from pydantic import BaseModel, ValidationError

from orchestrator.collect.config import load_config, load_participants
from orchestrator.collect.rows import read_rows
from orchestrator.collect.segments import CorruptSegment, Found, _take_chunk
from orchestrator.deployment.failures import BadState
from orchestrator.deployment.standing import told_of
from orchestrator.deployment.state import STATE, read_state
from orchestrator.links import _parse_line
from participants import CallId, ParticipantError
from participants.channels.client import _workers_in
from participants.channels.frames import Call, MalformedFrame, frames_of, read_call, read_reply
from participants.control_http import malformed
from participants.cuts import sse
from participants.cuts.reading import read as read_stream
from participants.data_http import _identity
from participants.generations import is_storable
from participants.generations import parse as parse_generation
from participants.ledger.http import Freeze
from participants.ledger.keys import CaptureKey
from participants.ledger.lines import Found as FoundRows
from participants.ledger.lines import parse_row, scan
from participants.ledger.reading import Manifest
from participants.serving import ConfigError
from participants.serving.spec import load_document, parse_spec
from participants.staging.packs import decode_entry, encode_entry
from participants.staging.refusals import StagingRefused
from participants.telemetry.collected import Snapshot
from participants.wire import Prepare
from store import (
    AggregateManifest,
    CheckpointId,
    CorruptChain,
    CorruptCheckpoint,
    Entry,
    InvalidName,
    Life,
    Limits,
    ParticipantManifest,
    StoreError,
)
from store.alive import Beat
from store.frames import compress_bytes, decompress, sha256
from store.index import Frame, decode_index, encode_index
from store.records import encode_line
from store.root import Format
from store.sealed import Damage, load_model, seal
from store.unpack import parse, unpack_run
from store.values import BlobPlan, blobs_in, encode_value, parse_exactly, unescape

from . import seeds
from .places import scratch

MAX_MESSAGE = 3000
"""Characters of an error: whoever sends a megabyte is not told a megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """One of them."""

    name: str
    reads: str
    """For people: what comes from where."""
    place: str
    """Path of the module that it stands in."""
    read: Callable[[bytes], Any]
    seeds: Callable[[], list[bytes]]
    """Sound documents."""
    errors: tuple[type[Exception], ...] = ()
    """That it may raise; none for one that always has an answer."""
    again: Callable[[Any], Any] | None = None
    """The value, written and read once more; None where the value is none that is ever written."""
    tested: str = ""
    """The test that feeds it generated documents, where that is not `test_parsers`."""


def check(parser: Parser, data: bytes) -> bool:
    """Whether it reads these bytes. Raises AssertionError, or what the parser should not have raised."""
    try:
        value = parser.read(data)
    except parser.errors as error:
        said = len(str(error))
    else:
        if parser.again is not None:
            again = parser.again(value)
            assert again == value, f"{value!r:.500} became {again!r:.500}"
        return True
    assert said <= MAX_MESSAGE, f"an error of {said} characters"
    return False


def _document(model: type[BaseModel], damage: Damage) -> tuple[Callable[[bytes], Any], Callable[[Any], Any]]:
    """A sealed document; the seal is made right, for without it nothing behind it would be reached."""

    def read(data: bytes) -> Any:
        return load_model(model, "document", seeds.resealed(data), damage)

    def again(value: Any) -> Any:
        return load_model(model, "document", seal(value.model_dump(mode="json")), damage)

    return read, again


def _read_index(raw: bytes) -> list[Frame]:
    return decode_index(compress_bytes(raw), len(raw), seeds.part_sizes(), 10, "index", Limits())


def _index_again(frames: list[Frame]) -> list[Frame]:
    data, raw_size = encode_index(frames)
    return _read_index(decompress(data, raw_size, "index"))


@cache
def _golden_frame() -> Frame:
    return _read_index(seeds.index()[0])[0]


def _read_part(raw: bytes) -> Any:
    golden, data = _golden_frame(), compress_bytes(raw)
    frame = Frame(
        part=0, offset=0, size=len(data), raw_size=len(raw), sha256=sha256(data), lives=golden.lives, blobs=golden.blobs
    )
    return unpack_run("part", data, [(frame, list(range(len(frame.lives))))], parse, Limits())


def _part_again(records: Any) -> Any:
    plan = BlobPlan(CheckpointId(1, 1), _golden_frame().blobs, Limits())
    return _read_part(b"".join(encode_line(record, plan).data + b"\n" for record in records))


def _read_value(data: bytes) -> Any:
    return unescape(parse_exactly(data, "state"), "state")


def _value_again(value: Any) -> Any:
    encoded = encode_value(value, BlobPlan(CheckpointId(1, 1), blobs_in(value), Limits()), "state")
    found = parse_exactly(encoded.data, "state")
    return unescape(found, "state") if encoded.escaped else found


def _read_message(data: bytes) -> BaseModel:
    """The first line names the message, as a route does; what is sent is behind it."""
    name, _, message = data.partition(b"\n")
    return _body(seeds.MESSAGES.get(name.decode(errors="replace"), Prepare), message)


def _body(kind: type[BaseModel], data: bytes) -> BaseModel:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise malformed(error) from error


def _message_again(message: BaseModel) -> BaseModel:
    return type(message).model_validate_json(message.model_dump_json())


def _read_ledger(data: bytes) -> tuple[Any, ...]:
    found = scan(data)
    assert 0 <= found.good <= len(data)
    rows = [parse_row(line) for line in found.rows]
    assert len(rows) == found.tail.count
    if found.life is not None:  # What is asked over HTTP is made of it.
        seeds.dumps(Manifest.of(found.life, found).to_json())
    return found.life, found.source, rows, found.frozen, found.good


def _scanned_again(data: bytes) -> FoundRows:
    """What is cut off at the last good line has the same in it."""
    whole = scan(data)
    if not whole.good:
        return whole
    cut = scan(data[: whole.good])
    assert (cut.life, cut.rows, cut.frozen, cut.good) == (whole.life, whole.rows, whole.frozen, whole.good)
    return whole


def _read_events(data: bytes) -> list[bytes]:
    found = sse.payloads(data)
    for size in (1, 3) if len(data) < 2000 else (997,):
        parser, pieces = sse.Parser(), [data[at : at + size] for at in range(0, len(data), size)]
        assert [payload for piece in pieces for payload in parser.feed(piece)] == found, f"in pieces of {size}"
    return found


def _read_streams(data: bytes) -> None:
    for route in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        read_stream(route, [data])


def _read_frames(data: bytes) -> None:
    """As the server's end reads them, or else as the client's."""
    for frame in frames_of(data):
        try:
            call = read_call(frame)
        except MalformedFrame:
            number, reply = read_reply(frame)
            headers, status = reply.headers, reply.status
        else:
            number, status = call.number, 200
            headers = call.headers if isinstance(call, Call) else {}
        assert type(number) is type(status) is int
        assert all(isinstance(value, str) for value in headers.values()), headers


def _read_identity(data: bytes) -> Any:
    path, _, named = data.decode(errors="replace").partition("\n")
    life, route = _identity(path, named or None)
    assert route.startswith("/") or route == path
    return life


def _read_generation(data: bytes) -> None:
    assert is_storable(parse_generation(data))


def _read_segment(data: bytes) -> None:
    _take_chunk(Found(), "key", "url", data)


def _read_snapshot(data: bytes) -> Snapshot:
    return Snapshot.parse(seeds.loads(data))


def _text(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: parse(data.decode(errors="replace"))


def _written(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: parse(str(value))


def _file(load: Callable[[Any], Any], name: str = "file") -> Callable[[bytes], Any]:
    """A parser that is given a path."""

    def read(data: bytes) -> Any:
        path = scratch() / name
        path.write_bytes(data)
        return load(path)

    return read


def _settings_again(settings: BaseModel) -> BaseModel:
    return type(settings).model_validate(settings.model_dump(exclude_unset=True))


def _parsers() -> list[Parser]:
    found: list[Parser] = []

    def add(name: str, reads: str, place: str, read: Callable[[bytes], Any], of: Callable[[], list[bytes]],
            *errors: type[Exception], **more: Any) -> None:  # fmt: skip
        found.append(Parser(name=name, reads=reads, place=place, read=read, seeds=of, errors=errors, **more))

    _add_store(add)
    _add_wire(add)
    _add_names(add)
    _add_files(add)
    return found


def _add_store(add: Callable[..., None]) -> None:
    documents: Mapping[str, tuple[type[BaseModel], Damage, str]] = {
        "format": (Format, CorruptCheckpoint, "store/root.py"),
        "entry": (Entry, CorruptChain, "store/entries.py"),
        "aggregate": (AggregateManifest, CorruptCheckpoint, "store/manifest.py"),
        "manifest": (ParticipantManifest, CorruptCheckpoint, "store/manifest.py"),
    }
    said = {"format": "`format.json` of a store", "entry": "an entry of the chain",
            "aggregate": "the manifest of a checkpoint", "manifest": "the manifest of a process"}  # fmt: skip
    fuzz = "tests/store/test_fuzz.py"
    for name, (model, damage, place) in documents.items():
        read, again = _document(model, damage)
        add(name, said[name], place, read, seeds.documents(name), StoreError, again=again, tested=fuzz)
    add("index", "the index over a process's parts", "store/index.py", _read_index, seeds.index, CorruptCheckpoint,
        again=_index_again, tested=fuzz)  # fmt: skip
    add("part", "the records of a part", "store/unpack.py", _read_part, seeds.part, CorruptCheckpoint,
        again=_part_again)  # fmt: skip
    add("state", "own state and payloads, with their escapes", "store/values.py", _read_value, seeds.state,
        CorruptCheckpoint, again=_value_again)  # fmt: skip
    add("beat", "the sign of life of a controller", "store/alive.py", Beat.model_validate_json, seeds.beat,
        ValidationError, again=_message_again)  # fmt: skip


def _add_wire(add: Callable[..., None]) -> None:
    add("wire", "every message and answer of the control plane", "participants/wire.py", _read_message, seeds.messages,
        ParticipantError, again=_message_again)  # fmt: skip
    add("results", "a line of the stream of results", "orchestrator/links.py", _text(_parse_line), seeds.results,
        ParticipantError, again=lambda found: found and _parse_line(found.model_dump_json()))  # fmt: skip
    add("error", "an answer that is an error", "participants/errors.py", seeds.error_of, seeds.errors)
    add("frames", "what goes over a channel", "participants/channels/frames.py", _read_frames, seeds.frames,
        MalformedFrame)  # fmt: skip
    add("workers", "where a server says that its workers are", "participants/channels/client.py", _workers_in,
        seeds.workers)  # fmt: skip
    add("freeze", "a freeze of a ledger", "participants/ledger/http.py", partial(_body, Freeze), seeds.freeze,
        ParticipantError, again=_message_again)  # fmt: skip
    add("sse", "server-sent events, whole and in pieces", "participants/cuts/sse.py", _read_events, seeds.events)
    add("streams", "the events of a model's stream", "participants/cuts/reading.py", _read_streams, seeds.streams,
        tested="tests/participants/cuts/test_reading.py")  # fmt: skip
    add("generation", "a model's whole reply", "participants/generations.py", _read_generation, seeds.generations)
    add("snapshot", "what another worker has counted", "participants/telemetry/collected.py", _read_snapshot,
        seeds.snapshots, ValueError, tested="tests/participants/telemetry/test_collected.py")  # fmt: skip
    add("traceparent", "the header of that name", "participants/telemetry/hook.py", _text(seeds.continued),
        seeds.traceparents)  # fmt: skip


def _add_names(add: Callable[..., None]) -> None:
    add("life", "a life", "store/layout.py", _text(Life.parse), seeds.lives, InvalidName, again=_written(Life.parse))
    add("round", "a checkpoint or round", "store/layout.py", _text(CheckpointId.parse), seeds.rounds, InvalidName,
        again=_written(CheckpointId.parse))  # fmt: skip
    add("call", "the id of a data call", "participants/data.py", _text(CallId.parse), seeds.calls, ParticipantError,
        again=_written(CallId.parse))  # fmt: skip
    add("key", "a capture key", "participants/ledger/keys.py", _text(CaptureKey.parse), seeds.keys, ParticipantError,
        again=_written(CaptureKey.parse))  # fmt: skip
    add("identity", "path and header of a data call", "participants/data_http.py", _read_identity, seeds.identities,
        ParticipantError)  # fmt: skip


def _add_files(add: Callable[..., None]) -> None:
    add("ledger", "a file of the capture ledger", "participants/ledger/lines.py",
        lambda data: (_scanned_again(data), _read_ledger(data)), seeds.ledger)  # fmt: skip
    add("collect", "the TOML of a run", "orchestrator/collect/config.py", _file(load_config, "run.toml"), seeds.toml,
        ConfigError, again=_settings_again)  # fmt: skip
    add("fleet", "the same for `midflight up`", "orchestrator/collect/config.py", _file(load_participants, "up.toml"),
        seeds.toml, ConfigError, again=_settings_again)  # fmt: skip
    add("spec", "the specification of a server", "participants/serving/spec.py",
        _file(lambda path: parse_spec(load_document(path), "spec"), "spec.json"), seeds.specs, ConfigError,
        again=_settings_again)  # fmt: skip
    add("fleet state", "`fleet.json`", "orchestrator/deployment/state.py",
        _file(lambda path: read_state(path.parent), STATE), seeds.fleet_states, BadState,
        again=_message_again)  # fmt: skip
    add("log", "a line of a server's log", "orchestrator/deployment/standing.py", told_of, seeds.log_lines)
    add("rows", "the input of a run", "orchestrator/collect/rows.py", _file(lambda path: read_rows(str(path)), "rows"),
        seeds.rows, ConfigError)  # fmt: skip
    add("segment", "output of a run", "orchestrator/collect/segments.py", _read_segment, seeds.segments,
        CorruptSegment)  # fmt: skip
    add("staged", "staged tokens", "participants/staging/packs.py", decode_entry, seeds.staged, StagingRefused,
        again=lambda entry: decode_entry(encode_entry(entry)),
        tested="tests/participants/staging/test_packs.py")  # fmt: skip


PARSERS: Mapping[str, Parser] = {parser.name: parser for parser in _parsers()}
