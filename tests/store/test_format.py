"""docs/format.md is enough to read a store: a reader written from it alone finds what the store wrote."""

import ast
import json
import re
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from store import CheckpointId, Record, Retention, copy_checkpoint, open_checkpoint, open_store, prune
from store.layout import CHECKPOINT_RULE
from store.manifest import AggregateManifest, ParticipantManifest
from tests.golden import make_v1
from tests.store.test_values import same
from tests.support import page_reader
from tests.support.checkpoints import AGENT, SMALL_PARTS, TOOLS, life, publish_rounds, records
from tests.support.page_reader import DamageError, PageReader

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
GOLDEN = Path(make_v1.__file__).parent / "v1"
ODD: dict[str, Any] = {
    "$bytes": 1,
    "$$": b"\x00",
    "deep": [{"n": 2**64 - 1}, -(2**63), 0.1],
    "text": "ä\n\u2028💩",
    "": None,
}


def read_page(root: Path, checkpoint: str = "") -> dict[tuple[str, str], Any]:
    """Every record by process and life, with the reader of the page."""
    return {(owner, life): payload for owner, life, payload in PageReader(root).checkpoint(checkpoint).records()}


async def read_store(root: Path, checkpoint: str) -> dict[tuple[str, str], Any]:
    """The same with the store's own reader."""
    found = {}
    async with open_store(root) as store:
        opened = await open_checkpoint(store, CheckpointId.parse(checkpoint))
        for process in opened.processes:
            async with opened.records([process]) as all_records:
                async for record in all_records:
                    found[str(process.name), str(record.life)] = record.payload
    return found


async def write(root: Path) -> None:
    """Three checkpoints of two participants, with blobs, states, a deletion, and an import."""
    large = bytes(range(256))
    shares = {
        AGENT: records(9),
        TOOLS: [Record(life("r1", n=1), ODD), Record(life("r2", n=2), {"a": large, "b": [large]})],
    }
    async with (
        open_store(root, "write", limits=SMALL_PARTS) as store,
        open_store(root.with_name("other"), "write", limits=SMALL_PARTS) as other,
    ):
        state = {"cursor": 3, "rng": large, "pad": "x" * 300_000}
        await publish_rounds(store, [shares, {AGENT: records(2)}, shares], state=state, dropped={life("gone"): "why"})
        await prune(store, Retention(keep_last=1, drop=frozenset({CheckpointId(1, 2)})))
        await publish_rounds(other, [{AGENT: records(1)}], state=[1])
        await publish_rounds(other, [{AGENT: records(3)}], state=[1])
        await copy_checkpoint(other, store, CheckpointId(2, 1))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    anyio.run(write, tmp_path / "store")
    return tmp_path / "store"


def test_the_reader_of_the_page_knows_nothing_of_the_store() -> None:
    """It imports the standard library and zstandard, so what it knows is on the page."""
    tree = ast.parse(Path(page_reader.__file__).read_text(encoding="utf-8"))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or "."] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert not imported & {"store", "participants", "orchestrator", "midflight", "tests", "."}


def test_a_reader_written_from_the_page_reads_everything_exactly(root: Path) -> None:
    """Records, blobs, escapes and states of every checkpoint that exists are what the store reads itself."""
    reader = PageReader(root)
    assert sorted(reader.existing) == ["1.3", "2.1"]
    for checkpoint in reader.existing:
        expected = anyio.run(read_store, root, checkpoint)
        assert same(read_page(root, checkpoint), expected)
    assert same(read_page(root)["resources.tools/p0", "r1/1.0#1"], ODD)
    state = reader.checkpoint().state()
    assert (state["cursor"], state["rng"], len(state["pad"])) == (3, bytes(range(256)), 300_000)
    assert reader.existing["2.1"]["run_id"] != reader.run_id


def test_a_reader_written_from_the_page_reads_the_golden_store() -> None:
    """Version 1 is described as it was released."""
    found = read_page(GOLDEN, "1.1")
    expected = {(str(make_v1.AGENT), str(r.life)): r.payload for r in make_v1.agent_records()}
    expected |= {(str(make_v1.TOOLS), str(r.life)): r.payload for r in make_v1.tools_records()}
    assert same(found, expected)
    assert PageReader(GOLDEN).checkpoint("1.1").state() == make_v1.STATE


def test_the_page_describes_every_check_that_finds_a_flipped_bit(root: Path, tmp_path: Path) -> None:
    """One flipped bit in any object that belongs to the head or the chain is damage to the page's reader too."""
    whole = read_page(root)
    keys = [path.relative_to(root) for path in root.rglob("*") if path.is_file() and path.parts[-2] != "alive"]
    found = 0
    for key in keys:
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        data = bytearray((copy / key).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / key).write_bytes(data)
        try:
            assert same(read_page(copy), whole), key
            PageReader(copy).checkpoint().state()
        except DamageError:
            found += 1
        shutil.rmtree(copy)
    assert found > 15


def fields_on_page(section: str) -> set[str]:
    """The fields that the first table of a section names."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    return {name for row in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    ("section", "model"), [("Aggregate manifest", AggregateManifest), ("Participant manifest", ParticipantManifest)]
)
def test_the_page_names_every_field(section: str, model: type[AggregateManifest | ParticipantManifest]) -> None:
    """A field that a manifest gains must come onto the page, and none stands there that does not exist."""
    common = {"format", "version", "features", "run_id"}
    assert fields_on_page(section) == set(model.model_fields) - common


def test_the_examples_of_the_page_are_the_golden_bytes() -> None:
    """What it quotes of the golden store stands there."""
    objects = [path.read_bytes() for path in sorted(GOLDEN.rglob("*")) if path.is_file()]
    golden = b"".join(objects).decode(errors="replace")
    quoted = PAGE.split("## Worked example")[1]
    lines = [line for block in re.findall(r"```text\n(.*?)```", quoted, re.DOTALL) for line in block.splitlines()]
    assert len(lines) == 6
    plain = [line for line in lines if not line.startswith(('{"part"', '{"life"'))]
    assert all(line in golden for line in plain)
    frames = PageReader(GOLDEN).checkpoint("1.1").shares[0][1]
    [index_line] = [line for line in lines if line.startswith('{"part"')]
    assert json.loads(index_line) == frames[-1]
    assert CHECKPOINT_RULE.startswith("<epoch>.<k>")
