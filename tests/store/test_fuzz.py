"""Any bytes for any parser: it reads them, or refuses them with one of our errors that names the object; no crash."""

import contextlib
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import AggregateManifest, CorruptChain, CorruptCheckpoint, Entry, Limits, ParticipantManifest, StoreError
from store.frames import compress_bytes, decompress
from store.index import decode_index
from store.root import Format
from store.sealed import Damage, load_model, seal
from tests.golden import make_v1
from tests.support.damage import resealed, resealed_bytes

pytestmark = pytest.mark.unit

GOLDEN = Path(make_v1.__file__).parent / "v1"
AGENT = "checkpoints/1.1/agent.solver/p0/"
DOCUMENTS: dict[str, tuple[type[Any], Damage]] = {
    "format.json": (Format, CorruptCheckpoint),
    "chain/000000000001.json": (Entry, CorruptChain),
    "chain/000000000002.json": (Entry, CorruptChain),
    "chain/000000000004.json": (Entry, CorruptChain),
    "checkpoints/1.1/manifest.json": (AggregateManifest, CorruptCheckpoint),
    AGENT + "manifest.json": (ParticipantManifest, CorruptCheckpoint),
}
WILD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(
        ["1.1", "0.0", "../x", "r/1.0#0", "ab" * 32, "claim", "publication", "midflight.chain", "\ud800"]
    ),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=4), child, max_size=3),
    max_leaves=6,
)


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [path] if path else []
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += paths(child, (*path, key))
    return found


def mutated(document: Any, path: tuple[Any, ...], new: Any, act: str) -> Any:
    """The document with one place replaced, removed, or filled twice."""
    copy = orjson.loads(orjson.dumps(document))
    parent = copy
    for step in path[:-1]:
        parent = parent[step]
    if act == "remove":
        del parent[path[-1]]
    elif act == "repeat" and isinstance(parent, list):
        parent.append(parent[path[-1]])
    else:
        parent[path[-1]] = new
    return copy


def try_document(name: str, data: bytes) -> None:
    """Load it: what is read means the same once it is written; what is raised must be ours, short, and name it."""
    model, damage = DOCUMENTS[name]
    try:
        found = load_model(model, name, data, damage)
        assert load_model(model, name, seal(found.model_dump(mode="json")), damage) == found
    except StoreError as error:
        message = str(error)
        assert name in message
        assert len(message) < 1500


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.data())
@pytest.mark.fault(1, 3, 61)
def test_a_document_with_anything_in_any_place_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """One place of a sound document is replaced, removed or doubled, and the digest made right again."""
    document = orjson.loads(golden(name))
    path = data.draw(st.sampled_from([path for path in paths(document) if path != ("sha256",)]))
    changed = mutated(document, path, None, data.draw(st.sampled_from(["replace", "remove", "repeat"])))
    body = dumps({key: value for key, value in changed.items() if key != "sha256"})
    place = dumps(data.draw(WILD))
    try_document(name, resealed_bytes(body.replace(b"null", place, 1)))


def dumps(value: Any) -> bytes:
    """JSON, or what looks like it, of values that orjson refuses too."""
    return json.dumps(value, ensure_ascii=True).encode()


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.binary(max_size=200))
@pytest.mark.fault(1, 3)
def test_any_bytes_in_place_of_a_document_are_refused(name: str, data: bytes) -> None:
    """Random bytes, with and without a right digest around them."""
    try_document(name, data)
    try_document(name, resealed_bytes(data + b"}"))
    try_document(name, resealed_bytes(b'{"version":[1,0],' + data + b"}"))


@pytest.mark.parametrize("name", DOCUMENTS)
@given(wild=st.dictionaries(st.text(max_size=5), WILD, max_size=4))
def test_any_object_in_place_of_a_document_is_refused(name: str, wild: dict[str, Any]) -> None:
    """A sealed object with a right version and nothing else right."""
    body = dumps({"version": [1, 0], **{k: v for k, v in wild.items() if k not in ("sha256", "version")}})
    try_document(name, resealed_bytes(body))


def index_lines() -> tuple[list[Any], list[int]]:
    """The golden index and the sizes of its parts."""
    manifest = orjson.loads(golden(AGENT + "manifest.json"))
    raw = decompress(next((GOLDEN / AGENT).glob("index-*")).read_bytes(), manifest["index"]["raw_size"], "index")
    return [orjson.loads(line) for line in raw.splitlines()], [part["size"] for part in manifest["parts"]]


@given(data=st.data())
@pytest.mark.fault(1, 3, 61)
def test_an_index_with_anything_in_any_place_is_read_or_refused(data: st.DataObject) -> None:
    """One place of a sound index is replaced, removed or doubled."""
    lines, sizes = index_lines()
    path = data.draw(st.sampled_from([path for path in paths(lines) if len(path) > 1]))
    changed = mutated(lines, path, None, data.draw(st.sampled_from(["replace", "remove", "repeat"])))
    raw = b"".join(dumps(line) + b"\n" for line in changed).replace(b"null", dumps(data.draw(WILD)), 1)
    with contextlib.suppress(CorruptCheckpoint):
        decode_index(compress_bytes(raw), len(raw), sizes, 10, "index", Limits())


@given(st.binary(max_size=200), st.lists(st.integers(1, 10**9), max_size=3))
def test_any_bytes_in_place_of_an_index_are_refused(raw: bytes, sizes: list[int]) -> None:
    """Random lines in a sound frame, and a random frame."""
    with contextlib.suppress(CorruptCheckpoint):
        decode_index(compress_bytes(raw), len(raw), sizes, 10, "index", Limits())
    with contextlib.suppress(CorruptCheckpoint):
        decode_index(raw, len(raw), sizes, 10, "index", Limits())


@given(st.binary(max_size=300), st.integers(0, 2**65), st.integers(0, 300))
@pytest.mark.fault(1, 3, 60)
def test_any_bytes_in_place_of_a_frame_are_refused(junk: bytes, raw_size: int, cut: int) -> None:
    """Random bytes, and a sound frame cut or followed by them, unpack to exactly what was announced or not at all."""
    frame = compress_bytes(b"x" * 300)
    for data in (junk, frame[:cut], frame + junk, frame[:cut] + junk, b"\x28\xb5\x2f\xfd" + junk):
        for announced in (raw_size, 300, len(junk)):
            with contextlib.suppress(CorruptCheckpoint):
                assert len(decompress(data, announced, "part")) == announced


def test_the_golden_documents_themselves_are_read() -> None:
    """What is mutated here is sound to begin with, resealed or not."""
    for name, (model, damage) in DOCUMENTS.items():
        assert load_model(model, name, golden(name), damage)
        assert load_model(model, name, resealed(orjson.loads(golden(name))), damage)
    lines, sizes = index_lines()
    raw = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    assert len(decode_index(compress_bytes(raw), len(raw), sizes, 10, "index", Limits())) == len(lines)
