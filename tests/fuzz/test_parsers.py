"""Any bytes for any parser: a value that means the same once it has been written again, or the error of its place."""

import re
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.ledger.lines import scan
from participants.telemetry import install, uninstall
from tests.support.recording import Recording

from . import seeds
from .mutations import mutated
from .parsers import PARSERS, Parser, check

pytestmark = pytest.mark.unit

OWN = [parser for parser in PARSERS.values() if not parser.tested]
EVERY = pytest.mark.parametrize("parser", PARSERS.values(), ids=lambda parser: parser.name.replace(" ", "-"))
MANY = 6_000
HOSTILE = {
    "brackets": b"[" * MANY,
    "objects": b'{"a":' * MANY,
    "empty lists": b"[" + b"[]," * MANY + b"[]]",
    "digits": b'{"n":' + b"9" * MANY + b"}",
    "TOML digits": b"n = " + b"9" * MANY,
    "TOML brackets": b"n = " + b"[" * MANY,
    "lines": b"\n" * MANY,
    "half lines": b"{}\r" * MANY,
    "backslashes": b'"' + b"\\" * (MANY + 1),
    "zeros": bytes(MANY),
    "letters": b"a" * MANY,
    "colons": b":" * MANY,
}
MAX_SECONDS, MAX_BYTES = 3.0, 32 * 2**20
"""Of this process, for some thousand bytes of anything: a tenth of that is usual, and what is quadratic, minutes."""


@pytest.fixture(autouse=True, scope="module")
def recording() -> Iterator[None]:
    """Where nobody records, no header is looked at."""
    recorder = Recording()
    install(recorder)
    yield
    uninstall(recorder)


@EVERY
def test_a_sound_document_is_read(parser: Parser) -> None:
    """What is changed here is sound to begin with, so that changes reach what is behind the first look."""
    assert check(parser, parser.seeds()[0])


@pytest.mark.parametrize("parser", OWN, ids=lambda parser: parser.name.replace(" ", "-"))
@given(data=st.data())
@pytest.mark.fault(58, 61)
def test_whatever_is_parsed_is_read_or_refused(parser: Parser, data: st.DataObject) -> None:
    """Any bytes, and sound documents with something in them changed."""
    check(parser, data.draw(mutated(parser.seeds())))


@EVERY
def test_what_is_large_or_deep_costs_neither_memory_nor_time(parser: Parser) -> None:
    """Whatever a parser makes of it, it ends soon and takes a bounded multiple of what it was given."""
    for name, hostile in HOSTILE.items():
        tracemalloc.start()
        began = time.process_time()
        try:
            check(parser, hostile)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert time.process_time() - began < MAX_SECONDS, name
        assert peak < MAX_BYTES, f"{name}: {peak / 2**20:.0f} MiB"


FOUND: list[tuple[str, bytes]] = [
    ("collect", b"n = " + b"9" * 5000),
    ("collect", b"n = " + b"[" * 5000),
    ("collect", seeds.toml()[0].replace(b'folder = "fleet"', b'folder = "\\u0000"')),
    ("spec", b"[" * 5000),
    ("spec", seeds.dumps({"kind": "agent", "k" * 5000: 1})),
    ("error", b"[" * 5000),
    ("error", b'{"error":{"code":"internal","details":5}}'),
    ("frames", b'{"i":true,"route":"/"}'),
    ("frames", b'{"i":1,"status":200,"headers":{"a":null}}'),
    ("frames", b'{"i":1,"status":true}'),
    ("ledger", b"1\n"),
    ("ledger", seeds.ledger()[2].replace(b'"carried":0', b'"carried":null')),
    ("ledger", seeds.ledger()[2].replace(b'"source":""', b'"source":[1]')),
    ("ledger", seeds.ledger()[1].replace(b'"reason":"retired"', b'"reason":[]')),
    *(("wire", next(seed for seed in seeds.messages() if seed.startswith(b"Submit\n")).replace(b"1.5", odd))
      for odd in (b"NaN", b"1e999", b"-Infinity", b"1" + b"0" * 30)),
    ("wire", next(seed for seed in seeds.messages() if seed.startswith(b"Status\n")).replace(b"1.5", b"Infinity")),
    ("results", seeds.results()[0].replace(b"0.5", b"Infinity")),
    *(("wire", next(seed for seed in seeds.messages() if seed.startswith(kind)).replace(b'"checkpoint":"1.1"', odd))
      for kind in (b"Stage", b"Commit\n") for odd in (b'"checkpoint":{"epoch":0,"k":0}', b'"checkpoint":{"epoch":1}')),
    ("aggregate", re.sub(rb'"scope":\["[^"]*"', b'"scope":[{"rollout_id":"r","epoch":0,"attempt":0,"n":-1}',
                         seeds.documents("aggregate")()[0])),
]  # fmt: skip
"""What was once read wrongly, or raised what it should not."""


@pytest.mark.parametrize(("name", "data"), FOUND, ids=lambda value: value if isinstance(value, str) else "")
def test_what_was_found_once_is_refused(name: str, data: bytes) -> None:
    """Each of these has a place that says what is wrong, where it has not a way to go on."""
    assert check(PARSERS[name], data) is not bool(PARSERS[name].errors)


def test_a_bad_line_of_a_ledger_changes_nothing_of_what_stands_before_it() -> None:
    """A row whose chain is that of another place is not counted, neither are carried ones that are others."""
    first, *rest = seeds.ledger()[0].splitlines(keepends=True)
    carried = first.replace(b'"carried":0', b'"carried":1').replace(b'"carried_chain":"0', b'"carried_chain":"1')
    found = scan(carried + b"".join(rest))
    assert (found.rows, found.tail.count, found.good) == ([], 0, len(carried))
