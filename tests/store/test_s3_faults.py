"""Checkpoints on a real S3 server behind a proxy that refuses, delays, cuts, loses and lies."""

import dataclasses
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

from store import (
    AccessDenied,
    BackendError,
    CheckpointId,
    CorruptCheckpoint,
    Life,
    OutcomeUnknown,
    Record,
    Store,
    StoreUnavailable,
    claim,
    open_checkpoint,
    open_store,
)
from store.backends import Retrying
from tests.support.checkpoints import AGENT, SMALL_PARTS, TOOLS, life, publish, records
from tests.support.fault_proxy import (
    CONFLICT,
    EXPIRED,
    INTERNAL_ERROR,
    SLOW_DOWN,
    Fault,
    FaultProxy,
    Reply,
    Request,
    fault_proxy,
)
from tests.support.seaweed import S3Server

pytestmark = [pytest.mark.real, pytest.mark.anyio]

LIMITS = dataclasses.replace(SMALL_PARTS, retry_for_s=20.0, read_timeout_s=3.0)
FIRST, SECOND = CheckpointId(1, 1), CheckpointId(1, 2)
FOREVER = 1_000_000
SHARES = {AGENT: [*records(12), Record(life("b", n=99), {"image": bytes(range(256))})], TOOLS: records(3)}
LATER = {AGENT: [Record(Life("r0", 1, 0, 0), {"later": True})]}


@pytest.fixture
async def proxy(seaweed: S3Server) -> AsyncIterator[FaultProxy]:
    async with fault_proxy(seaweed.port) as proxy:
        yield proxy


@asynccontextmanager
async def opened(seaweed: S3Server, proxy: FaultProxy | None) -> AsyncIterator[Store]:
    """The store, through the proxy where there is one."""
    options = seaweed.options(port=proxy.port if proxy else None)
    async with open_store(seaweed.url, "write", limits=LIMITS, storage_options=options) as store:
        yield store


def impatient(store: Store) -> Store:
    """The same store, whose requests give up sooner."""
    assert isinstance(store.backend, Retrying)
    return dataclasses.replace(store, backend=Retrying(store.backend.inner, 2.0))


async def restored(store: Store, which: CheckpointId | None = None) -> list[Record]:
    checkpoint = await open_checkpoint(store, which or "head")
    await checkpoint.verify()
    async with checkpoint.records() as found:
        return [record async for record in found]


async def expect_first_intact(seaweed: S3Server) -> None:
    """Another client, without the proxy, reads the first checkpoint and finds it the head."""
    async with opened(seaweed, None) as store:
        checkpoint = await open_checkpoint(store)
        assert checkpoint.ref.checkpoint == FIRST
        assert len(await restored(store)) == 16


def is_put(request: Request) -> bool:
    return request.method == "PUT"


@pytest.mark.fault(23)
async def test_a_checkpoint_is_written_and_read_through_bursts_of_refusals(
    seaweed: S3Server, proxy: FaultProxy
) -> None:
    """503 and 500 in bursts, at every kind of request, cost time and nothing else."""
    async with opened(seaweed, proxy) as store, claim(store) as controller:
        for method, part in (
            ("PUT", "jsonl"),
            ("PUT", "manifest"),
            ("PUT", "chain/"),
            ("GET", "chain/"),
            ("GET", "jso"),
        ):
            proxy.inject(Fault(method=method, key_part=part, nth=1, times=2, answer=SLOW_DOWN))
            proxy.inject(Fault(method=method, key_part=part, nth=4, times=1, answer=INTERNAL_ERROR))
        await publish(store, controller, SHARES)
        assert len(await restored(store)) == 16
        await publish(store, controller, LATER)
        assert len(await restored(store)) == 1


@pytest.mark.parametrize("part", ["00000-", "/index-", "p0/manifest", "1.2/manifest", "chain/", "blobs/"])
@pytest.mark.fault(23)
async def test_a_store_that_refuses_for_too_long_ends_in_a_clean_failure(
    part: str, seaweed: S3Server, proxy: FaultProxy
) -> None:
    """At the deadline the commit or publication fails by name, and the checkpoint before it is untouched."""
    async with opened(seaweed, proxy) as patient, claim(store := impatient(patient)) as controller:
        await publish(store, controller, SHARES)
        proxy.inject(Fault(method="PUT", key_part=part, times=FOREVER, answer=SLOW_DOWN))
        share = [Record(life("r0"), {"image": bytes(500)}), *records(9, start=1)]
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            await publish(store, controller, {AGENT: share})
        proxy.heal()
    await expect_first_intact(seaweed)


@pytest.mark.fault(24)
async def test_a_lost_reply_after_any_write_took_effect_ends_in_success_exactly_once(
    seaweed: S3Server, proxy: FaultProxy
) -> None:
    """The entry, a manifest or a part is there although its reply was lost: one checkpoint, nothing deleted."""
    async with opened(seaweed, proxy) as store, claim(store) as controller:
        for part in ("chain/", "1.1/manifest", "p0/manifest", "00000-"):
            proxy.inject(Fault(method="PUT", key_part=part, lose_reply=True))
        await publish(store, controller, SHARES)
        assert [entry.action.kind for entry in (await store.chain()).entries] == ["claim", "publication"]
        deleted = [r.path for r in proxy.requests if r.method in ("DELETE", "POST") and "/alive/" not in r.path]
        assert [path for path in deleted if "checkpoints" in path or "chain" in path] == []
    await expect_first_intact(seaweed)


@pytest.mark.fault(24)
async def test_replies_lost_until_the_deadline_are_settled_by_the_same_draft(
    seaweed: S3Server, proxy: FaultProxy
) -> None:
    """The outcome stays unknown, nothing is deleted, and whoever reads on finds the checkpoint published once."""
    async with opened(seaweed, proxy) as patient, claim(store := impatient(patient)) as controller:
        entry = "chain/000000000002"
        proxy.inject(Fault(method="PUT", key_part=entry, times=FOREVER, lose_reply=True))
        sent = lambda request: request.method == "GET" and proxy.count("PUT", entry) > 0  # noqa: E731
        proxy.inject(Fault(where=sent, key_part="chain/", times=FOREVER, drop=True))
        with pytest.raises((OutcomeUnknown, StoreUnavailable)), anyio.fail_after(8):
            await publish(store, controller, SHARES)
        proxy.heal()
        await controller.refresh()
        assert controller.head is not None
        assert [entry.action.kind for entry in (await store.chain()).entries] == ["claim", "publication"]
    await expect_first_intact(seaweed)


@pytest.mark.parametrize("part", ["chain/", "1.1/manifest", "p0/manifest"])
@pytest.mark.fault(26)
async def test_a_conflict_of_concurrent_writes_is_tried_again(part: str, seaweed: S3Server, proxy: FaultProxy) -> None:
    """409 ConditionalRequestConflict says nothing about what stands there, so the create is sent again."""
    async with opened(seaweed, proxy) as store, claim(store) as controller:
        proxy.inject(Fault(method="PUT", key_part=part, times=2, answer=CONFLICT))
        await publish(store, controller, SHARES)
        assert proxy.count("PUT", part) >= 3
    await expect_first_intact(seaweed)


@pytest.mark.parametrize("part", ["00000-", "/index-", "p0/manifest", "1.1/manifest", "chain/", "blobs/"])
@pytest.mark.fault(29)
async def test_a_body_that_breaks_off_is_read_again(part: str, seaweed: S3Server, proxy: FaultProxy) -> None:
    """A connection that closes in the middle of an object is no damage; the next try reads it whole."""
    async with opened(seaweed, proxy) as store:
        async with claim(store) as controller:
            await publish(store, controller, SHARES)
        proxy.inject(Fault(method="GET", key_part=part, times=1, cut_body_at=20))
        assert len(await restored(store)) == 16


def shortened(reply: Reply) -> Reply:
    """Half of the body, announced as if it were all."""
    return reply.with_body(reply.body[: len(reply.body) // 2])


@pytest.mark.parametrize("part", ["00000-", "/index-", "p0/manifest", "1.1/manifest", "blobs/"])
@pytest.mark.fault(29)
async def test_an_object_that_comes_short_is_refused_by_name_after_one_more_try(
    part: str, seaweed: S3Server, proxy: FaultProxy
) -> None:
    """A short object with a right Content-Length is read once more and then refused; once alone does no harm."""
    async with opened(seaweed, proxy) as store:
        async with claim(store) as controller:
            await publish(store, controller, SHARES)
        proxy.inject(Fault(method="GET", key_part=part, times=1, rewrite=shortened))
        assert len(await restored(store)) == 16
        proxy.heal()
        proxy.inject(Fault(method="GET", key_part=part, times=FOREVER, rewrite=shortened))
        before = len(proxy.requests)
        with pytest.raises(CorruptCheckpoint) as caught:
            await restored(store)
        assert part in str(caught.value)
        asked = [r.path for r in proxy.requests[before:] if r.method == "GET" and part in r.path]
        assert max(map(asked.count, asked)) == 2


@pytest.mark.fault(28)
async def test_a_stale_or_partial_listing_hides_no_checkpoint(seaweed: S3Server, proxy: FaultProxy) -> None:
    """Every listing is as it was before the second checkpoint, or empty: a restore still finds the newest."""
    async with opened(seaweed, proxy) as store, claim(store) as controller:
        await publish(store, controller, SHARES)
        old: list[Reply] = []

        def remember(reply: Reply) -> Reply:
            old.append(reply)
            return old[0]

        proxy.inject(Fault(where=lambda r: r.lists, times=FOREVER, rewrite=remember))
        assert len(await restored(store)) == 16
        await publish(store, controller, LATER)
        assert len(await restored(store)) == 1
        proxy.heal()
        proxy.inject(Fault(where=lambda r: r.lists, times=FOREVER, rewrite=emptied))
        assert len(await restored(store)) == 1
        assert len(await restored(store, FIRST)) == 16


def emptied(reply: Reply) -> Reply:
    """A listing that shows nothing."""
    body = re.sub(rb"<Contents>.*</Contents>", b"", reply.body, flags=re.DOTALL)
    return reply.with_body(re.sub(rb"<KeyCount>\d+</KeyCount>", b"<KeyCount>0</KeyCount>", body))


@pytest.mark.fault(30)
async def test_credentials_that_expire_between_records_and_manifest_fail_before_the_publication(
    seaweed: S3Server, proxy: FaultProxy
) -> None:
    """From the manifest on everything is refused: nothing is published, and the checkpoint before is intact."""
    async with opened(seaweed, proxy) as store, claim(store) as controller:
        await publish(store, controller, SHARES)
        proxy.inject(Fault(method="PUT", key_part="1.2/agent.solver/p0/manifest", times=FOREVER, answer=EXPIRED))
        proxy.inject(Fault(method="PUT", key_part="chain/", times=FOREVER, answer=EXPIRED))
        with pytest.raises(AccessDenied, match="credentials"):
            await publish(store, controller, LATER)
        assert proxy.count("PUT", "chain/000000000003") == 0
        proxy.heal()
    await expect_first_intact(seaweed)


@pytest.mark.parametrize("part", ["00000-", "/index-", "p0/manifest", "1.1/manifest", "blobs/"])
@pytest.mark.fault(33)
async def test_an_object_that_another_tool_deleted_is_named(part: str, seaweed: S3Server) -> None:
    """A lifecycle rule took one object away: the restore is refused, and it says which."""
    async with opened(seaweed, None) as store:
        async with claim(store) as controller:
            await publish(store, controller, SHARES)
        listed = await store.backend.list("")
        key = next(info.key for info in listed if part in info.key)

        def delete() -> None:
            client = seaweed.client()
            client.delete_object(Bucket=seaweed.bucket, Key=f"{seaweed.prefix}/{key}")
            client.close()

        await anyio.to_thread.run_sync(delete)
        with pytest.raises(CorruptCheckpoint, match=f"{re.escape(key)} is damaged: .*missing"):
            await restored(store)


def with_etag(reply: Reply) -> Reply:
    return reply.with_header("ETag", '"0123456789abcdef0123456789abcdef-7"')


@pytest.mark.fault(35)
async def test_an_etag_that_is_no_digest_of_the_content_changes_nothing(seaweed: S3Server, proxy: FaultProxy) -> None:
    """Encrypted and multipart objects have other ETags; only our own digests are trusted."""
    proxy.inject(Fault(times=FOREVER, where=lambda r: not r.lists, rewrite=with_etag))
    async with opened(seaweed, proxy) as store, claim(store) as controller:
        await publish(store, controller, SHARES)
        assert len(await restored(store)) == 16


@pytest.mark.parametrize("spoil", [{"answer": SLOW_DOWN}, {"lose_reply": True}, {"drop": True}, {"answer": EXPIRED}])
@pytest.mark.fault(23, 24, 30)
async def test_a_fault_at_any_single_write_leaves_the_old_or_the_new_checkpoint(
    spoil: dict[str, Any], seaweed: S3Server, proxy: FaultProxy
) -> None:
    """For every n, the n-th write is spoiled; afterwards another client reads one of the two, whole."""
    async with opened(seaweed, proxy) as store, claim(store) as controller:
        await publish(store, controller, SHARES)
        expected = 16
        for nth in range(1, 9):
            proxy.heal()
            proxy.inject(Fault(nth=nth, where=lambda r: is_put(r) and "/alive/" not in r.path, **spoil))
            count = nth + 1
            try:
                await publish(store, controller, {AGENT: records(count, turns=1)})
                expected = count
            except BackendError:
                pass
            proxy.heal()
            assert len(await restored(store)) == expected
