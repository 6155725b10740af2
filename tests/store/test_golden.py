"""The golden store of format version 1 loads with its contents exact, and a newer one is refused by name, for ever."""

import re
import shutil
from pathlib import Path

import anyio
import orjson
import pytest

from store import CheckpointId, Store, UnsupportedVersion, open_checkpoint, open_store
from store.layout import CHECKPOINTS_PREFIX, FORMAT_KEY
from tests.golden import make_v1
from tests.store.test_values import same
from tests.support.damage import resealed

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

GOLDEN = Path(make_v1.__file__).parent / "v1"
FIRST, SECOND = make_v1.FIRST, make_v1.SECOND


async def payloads(store: Store, checkpoint: CheckpointId) -> dict[str, object]:
    """Everything that a checkpoint holds, by participant and rollout."""
    opened = await open_checkpoint(store, checkpoint)
    await opened.verify()
    found: dict[str, object] = {}
    for process in opened.processes:
        async with opened.records([process]) as records:
            async for record in records:
                found[f"{process.name} {record.life}"] = record.payload
    return found


async def test_the_golden_store_of_version_1_is_read_exactly() -> None:
    """Records with every odd value, blobs, states, sets, chain and all other fields are what was written then."""
    async with open_store(GOLDEN) as store:
        chain = await store.chain()
        assert [entry.token for entry in chain.entries] == make_v1.TOKENS[:4]
        assert store.run_id == make_v1.RUN_ID
        agents = {f"{make_v1.AGENT} {r.life}": r.payload for r in make_v1.agent_records()}
        tools = {f"{make_v1.TOOLS} {r.life}": r.payload for r in make_v1.tools_records()}
        assert same(await payloads(store, FIRST), {**agents, **tools})
        assert await payloads(store, SECOND) == {f"{make_v1.AGENT} image/1.0#9": {"image": make_v1.IMAGE}}
        opened = await open_checkpoint(store)
        assert opened.ref.checkpoint == SECOND
        assert opened.manifest.parent == FIRST
        assert await opened.state() == make_v1.STATE
        assert await opened.process_state(opened.processes[0]) == {"n": 1}
        assert opened.manifest.fingerprint == make_v1.FINGERPRINT
        assert [str(life) for life in opened.manifest.restarts] == ["restarted/1.0#20"]
        assert [dropped.reason for dropped in opened.manifest.dropped] == ["its verifier is gone"]
        assert (opened.manifest.tags, opened.manifest.output[0].length) == (("golden",), 123)
        assert {str(ref.written_by) for ref in opened.processes[0].blobs} == {"1.1"}


async def test_this_version_still_writes_format_version_1(tmp_path: Path) -> None:
    """What the golden script writes today has the same objects by name, so the format has not moved unnoticed."""
    await make_v1.make(tmp_path / "new")

    def names(root: Path) -> list[str]:
        files = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
        return sorted(re.sub(r"-[0-9a-f]{16}\.jsonl", ".jsonl", str(path)) for path in files)

    new, old = await anyio.to_thread.run_sync(names, tmp_path / "new"), await anyio.to_thread.run_sync(names, GOLDEN)
    assert new == old
    for name in ("manifest.json", "agent.solver/p0/manifest.json"):
        key = f"{CHECKPOINTS_PREFIX}1.1/{name}"
        fields = [orjson.loads(await anyio.Path(root / key).read_bytes()) for root in (tmp_path / "new", GOLDEN)]
        assert list(fields[0]) == list(fields[1])
        assert fields[0]["version"] == fields[1]["version"] == [1, 0]


@pytest.mark.parametrize("name", ["format.json", "chain/000000000004.json", "checkpoints/1.2/manifest.json"])
@pytest.mark.fault(62)
async def test_a_golden_store_with_a_raised_major_version_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """The same store, said to be of version 2 in one document, is not read, and the document is named."""
    root = tmp_path / "raised"
    await anyio.to_thread.run_sync(shutil.copytree, GOLDEN, root)
    path = anyio.Path(root / name)
    await path.write_bytes(resealed({**orjson.loads(await path.read_bytes()), "version": [2, 0]}))
    with pytest.raises(UnsupportedVersion, match=rf"{name} needs format version 2\.0"):
        await _open(root)


async def _open(root: Path) -> None:
    async with open_store(root) as store:
        await open_checkpoint(store)


async def test_a_golden_store_with_a_raised_minor_version_is_read(tmp_path: Path) -> None:
    """A later minor version with fields of its own is still read."""
    root = tmp_path / "raised"
    await anyio.to_thread.run_sync(shutil.copytree, GOLDEN, root)
    path = anyio.Path(root / FORMAT_KEY)
    document = orjson.loads(await path.read_bytes())
    await path.write_bytes(resealed({**document, "version": [1, 3], "more": [1]}))
    await _open(root)
