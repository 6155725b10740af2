"""Damage in the chain: whatever happened to an entry, it is named, and never taken for the end of the chain."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from store import (
    Chain,
    CorruptChain,
    MemoryBackend,
    Publication,
    Retention,
    UnsupportedVersion,
    claim,
    open_store,
    prune,
    verify_store,
)
from store.layout import entry_key
from store.sealed import seal, unseal
from tests.support.checkpoints import AGENT, publish_rounds, records

from .test_chain import RUN, client, read, ref, sealing, started

pytestmark = [pytest.mark.unit, pytest.mark.anyio]


HUGE = 999_999_999_999


async def replace(backend: MemoryBackend, n: int, data: bytes) -> None:
    """Put other bytes in place of an entry."""
    await backend.put(entry_key(n), data)


async def edited(backend: MemoryBackend, n: int, edit: Callable[[dict[str, Any]], Any]) -> MemoryBackend:
    """Change an entry and give it a digest that fits."""
    data = await backend.get(entry_key(n), max_bytes=10_000)
    document = unseal("entry", data, CorruptChain)
    edit(document)
    await replace(backend, n, seal(document))
    return backend


async def expect_corrupt(backend: MemoryBackend, n: int) -> None:
    """Reading the chain names this entry as damaged."""
    with pytest.raises(CorruptChain, match=entry_key(n)):
        await read(backend)


async def test_an_entry_cut_at_any_byte_is_named() -> None:
    """However much of it is left, an entry is whole or damage; none at all is a gap."""
    backend = await started(Publication(ref=ref("1.1")), sealing(7))
    whole = await backend.get(entry_key(2), max_bytes=10_000)
    for length in range(len(whole)):
        await replace(backend, 2, whole[:length])
        await expect_corrupt(backend, 2)


async def test_a_flipped_bit_anywhere_is_named() -> None:
    """One bit in any byte of an entry, and it is damage."""
    backend = await started(Publication(ref=ref("1.1")), sealing(7))
    whole = await backend.get(entry_key(2), max_bytes=10_000)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        await replace(backend, 2, bytes(damaged))
        await expect_corrupt(backend, 2)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0" * 600, b"{}", b"[1]\n", b"x" * 10_000_000])
async def test_anything_else_in_an_entrys_place_is_named(data: bytes) -> None:
    """Zeroes, nothing at all, other JSON or far too much is never taken for the end of the chain."""
    backend = await started(sealing(7))
    await replace(backend, 2, data)
    await expect_corrupt(backend, 2)


@pytest.mark.parametrize("missing", [1, 2, 3])
async def test_a_gap_is_found(missing: int) -> None:
    """A missing entry before one that is listed is damage and not the end."""
    backend = await started(sealing(1), sealing(2), sealing(3))
    await backend.delete([entry_key(missing)])
    await expect_corrupt(backend, missing)


async def test_a_stray_object_with_a_huge_number_costs_little() -> None:
    """What a listing shows bounds the work no longer than entries are really there."""
    backend = await started(sealing(1))
    await replace(backend, HUGE, b"{}")
    reader = client(backend)
    with pytest.raises(CorruptChain, match=entry_key(3)):
        await Chain(reader, RUN).refresh()
    assert reader.count("get") <= 1000


@pytest.mark.parametrize(
    "edit",
    [
        lambda entry: entry.update(run_id="c" * 32),
        lambda entry: entry.update(n=3),
        lambda entry: entry["state"].update(epoch=2),
        lambda entry: entry["state"].update(head=None),
        lambda entry: entry["state"].update(plans=[{"n": 1, "checkpoints": ["1.1"]}]),
        lambda entry: entry["action"].update(kind="something"),
        lambda entry: entry["action"]["ref"].update(checkpoint="../../x"),
        lambda entry: entry["action"]["ref"].update(checkpoint="1.01"),
        lambda entry: entry.pop("token"),
        lambda entry: entry.update(version="1.0"),
        lambda entry: entry.update(epoch=-1),
    ],
)
async def test_an_entry_that_does_not_belong_there_is_named(edit: Callable[[dict[str, Any]], Any]) -> None:
    """Another run, another number, a state that does not follow, a field out of its rule: all with a right digest."""
    backend = await edited(await started(Publication(ref=ref("1.1")), sealing(7)), 2, edit)
    await expect_corrupt(backend, 2)


@pytest.mark.parametrize(
    ("edit", "needs"),
    [
        (lambda entry: entry.update(version=[2, 0]), "format version 2.0"),
        (lambda entry: entry.update(features=["branches"]), "the feature 'branches'"),
        (lambda entry: entry.update(version=[2, 0], action={"kind": "unheard of"}), "format version 2.0"),
    ],
)
async def test_an_entry_of_a_newer_format_is_refused_by_name(edit: Callable[[dict[str, Any]], Any], needs: str) -> None:
    """The message says which entry and what it needs; it is no damage."""
    backend = await edited(await started(sealing(7)), 2, edit)
    with pytest.raises(UnsupportedVersion, match=f"{entry_key(2)} needs {needs}"):
        await read(backend)


async def test_a_newer_minor_version_may_add_fields() -> None:
    """What a reader may ignore does not stop it."""
    backend = await edited(await started(sealing(7)), 2, lambda entry: entry.update(version=[1, 9], more=[1]))
    assert len((await read(backend)).entries) == 2


@pytest.mark.parametrize("obstacle", ["folder", "full folder", "link", "pipe"])
@pytest.mark.parametrize("n", [1, 3])
async def test_what_is_no_file_in_the_place_of_an_entry_is_damage_of_the_chain(
    obstacle: str, n: int, tmp_path: Path
) -> None:
    """Nothing can be appended there: reading, claiming and verifying all say so, and name the slot."""
    async with open_store(tmp_path / "root", "write") as store:
        await publish_rounds(store, [{AGENT: records(1)}])
        await anyio.to_thread.run_sync(block, tmp_path / "root" / entry_key(n), obstacle)
        with pytest.raises(CorruptChain, match=entry_key(n)):
            await store.chain()
        with pytest.raises(CorruptChain, match=entry_key(n)):
            async with claim(store, take_over=True):
                pass
        with pytest.raises(CorruptChain, match=entry_key(n)):
            await prune(store, Retention())
        damage = {found.object for found in (await verify_store(store)).findings if found.severity == "damage"}
        assert damage == {entry_key(n)}


def block(path: Path, obstacle: str) -> None:
    """Put something there that is no regular file."""
    path.unlink(missing_ok=True)
    if obstacle == "link":
        path.symlink_to("/dev/null")
    elif obstacle == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
        if obstacle == "full folder":
            (path / "x").write_bytes(b"x")
