"""Sealed documents: any cut, any flipped bit and anything that is not strict JSON is found and named."""

from typing import Any, Literal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from store.errors import CorruptCheckpoint, InvalidInput, UnsupportedVersion
from store.sealed import FORMAT_MAJOR, digest_of, load_model, parse_strictly, seal, unseal
from tests.support.damage import flipped, resealed_bytes

pytestmark = pytest.mark.unit

NAME = "some/manifest.json"
DOCUMENT = {"format": "x", "version": [FORMAT_MAJOR, 0], "features": [], "n": 1, "text": "ä\n"}
SEALED = seal(DOCUMENT)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda child: st.lists(child) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), child),
    max_leaves=10,
)  # fmt: skip


class Example(BaseModel):
    model_config = ConfigDict(strict=True)

    format: Literal["x"] = "x"
    version: tuple[int, int]
    n: int


@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda k: k != "sha256"), JSON, min_size=1)
)
def test_a_document_is_read_back_exactly(document: dict[str, Any]) -> None:
    """What is sealed is what is unsealed, in the same order, whatever it holds."""
    found = unseal(NAME, seal(document), CorruptCheckpoint)
    assert orjson.dumps(found) == orjson.dumps(document)


@pytest.mark.fault(1)
def test_a_document_cut_anywhere_is_damage() -> None:
    """No prefix of a sealed document passes, the empty one included, and the error names the document."""
    for length in range(len(SEALED)):
        with pytest.raises(CorruptCheckpoint, match=NAME):
            unseal(NAME, SEALED[:length], CorruptCheckpoint)


@pytest.mark.fault(3)
def test_a_document_with_any_bit_flipped_is_damage() -> None:
    """Each single bit of content, digest and framing is covered."""
    for bit in range(len(SEALED) * 8):
        with pytest.raises(CorruptCheckpoint, match=NAME):
            unseal(NAME, flipped(SEALED, bit), CorruptCheckpoint)


@pytest.mark.parametrize("data", [b"", bytes(len(SEALED)), SEALED + b"x", SEALED + b"\n", SEALED * 2, b" " + SEALED])
@pytest.mark.fault(2)
def test_a_document_of_zeros_or_with_something_more_is_damage(data: bytes) -> None:
    """Zero length, zero bytes, and anything before or after the document are found."""
    with pytest.raises(CorruptCheckpoint, match=NAME):
        unseal(NAME, data, CorruptCheckpoint)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"a":1,"a":2}', "twice"),
        (b'{"a":{"b":1,"b":1}}', "twice"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":Infinity}', "Infinity"),
        (b'{"a":1e999}', "too large"),
        (b'{"a":-1e999}', "too large"),
        (b'{"a":18446744073709551616}', "64 bits"),
        (b'{"a":-9223372036854775809}', "64 bits"),
        (b'{"a":' + b"9" * 5000 + b"}", "strict JSON"),
        (b'{"a":"\xff"}', "strict JSON"),
        (b'{"a":1', "strict JSON"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'["a"}', "strict JSON"),
    ],
)
@pytest.mark.fault(61)
def test_a_hostile_document_with_a_right_digest_is_damage(body: bytes, says: str) -> None:
    """A digest proves only that nothing changed; what cannot be read exactly is refused by name all the same."""
    with pytest.raises(CorruptCheckpoint, match=says) as caught:
        unseal(NAME, resealed_bytes(body), CorruptCheckpoint)
    assert caught.value.name == NAME


@pytest.mark.parametrize("data", [b"[]", b"1", b'"x"', b"null"])
def test_a_document_is_an_object(data: bytes) -> None:
    """Other JSON values are no documents."""
    with pytest.raises(CorruptCheckpoint, match="not a JSON object"):
        parse_strictly(NAME, data, CorruptCheckpoint)


def changed(**fields: Any) -> bytes:
    """The document with some fields replaced, sealed anew."""
    return seal({**DOCUMENT, **fields})


@pytest.mark.parametrize(
    ("data", "needs"),
    [
        (changed(version=[FORMAT_MAJOR + 1, 0]), f"format version {FORMAT_MAJOR + 1}.0"),
        (changed(version=[0, 9]), "format version 0.9"),
        (changed(version=[FORMAT_MAJOR + 1, 0], n="another type"), f"format version {FORMAT_MAJOR + 1}.0"),
        (changed(features=["deltas"]), "the feature 'deltas'"),
    ],
)
@pytest.mark.fault(62)
def test_what_a_newer_midflight_wrote_is_refused_by_name(data: bytes, needs: str) -> None:
    """Another major version or an unknown feature says what is needed, before any field is looked at."""
    with pytest.raises(UnsupportedVersion, match=f"{NAME} needs {needs}"):
        load_model(Example, NAME, data, CorruptCheckpoint)


@pytest.mark.fault(62)
def test_what_a_newer_minor_version_added_is_ignored() -> None:
    """A minor version only adds fields, and an older reader reads the rest."""
    assert load_model(Example, NAME, changed(version=[FORMAT_MAJOR, 9], more={"x": 1}), CorruptCheckpoint).n == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"version": None}, {"version": [1]}, {"version": [True, 0]}, {"version": "1.0"}, {"version": [1, 0, 0]},
        {"features": "x"}, {"features": [1]}, {"features": [["x"]]}, {"features": None},
        {"n": "1"}, {"n": None}, {"format": "y"},
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_kind_is_damage(fields: dict[str, Any]) -> None:
    """A version, feature list or field that is malformed is named; nothing else is raised."""
    with pytest.raises(CorruptCheckpoint, match=NAME):
        load_model(Example, NAME, changed(**fields), CorruptCheckpoint)


def test_an_error_stays_short_whatever_the_document_holds() -> None:
    """A hostile document cannot flood a log through the message about it."""

    class Texts(BaseModel):
        texts: dict[str, int]

    with pytest.raises(CorruptCheckpoint) as caught:
        load_model(Texts, NAME, changed(texts={"k" * 100_000: "x"}), CorruptCheckpoint)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", ["\ud800", 2**64, {1, 2}])
def test_what_has_no_json_form_is_refused_when_it_is_sealed(value: Any) -> None:
    """The writer's own mistake is an error of the store with a reason, not a bare TypeError."""
    with pytest.raises(InvalidInput, match="cannot be written"):
        seal({"a": value})


def test_a_document_carries_the_digest_that_others_pin() -> None:
    """`digest_of` is the digest inside the document."""
    assert digest_of(SEALED) == orjson.loads(SEALED)["sha256"]
