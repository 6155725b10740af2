"""S3 through a proxy that refuses, delays, cuts, loses and lies: what the backend and its retries make of it."""

import gc
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from store.backends import Backend, Retrying, create_once, make_backend, open_backend
from store.errors import (
    AccessDenied,
    AlreadyExists,
    BackendError,
    IOFailed,
    NotFound,
    ObjectConflict,
    ObjectTooLarge,
    OutcomeUnknown,
    RootMissing,
    StoreUnavailable,
    TransientError,
    UnsupportedStore,
)
from store.limits import DEFAULT_LIMITS, MIB, Limits
from tests.support.fault_proxy import (
    CONFLICT,
    DENIED,
    EXPIRED,
    INTERNAL_ERROR,
    SLOW_DOWN,
    Fault,
    FaultProxy,
    Reply,
    fault_proxy,
)
from tests.support.seaweed import S3Server

pytestmark = [pytest.mark.real, pytest.mark.anyio]

FOREVER = 1_000_000
SHORT_S = 3.0
"""Time for some tries, on a busy machine too."""
ENTRY = "chain/00000007.json"


@asynccontextmanager
async def connected(
    server: S3Server, *, port: int | None = None, limits: Limits = DEFAULT_LIMITS, **options: Any
) -> AsyncIterator[Backend]:
    """A backend without retries."""
    chosen = {**server.options(port=port), **options}
    backend = await anyio.to_thread.run_sync(lambda: make_backend(server.url, limits=limits, storage_options=chosen))
    try:
        yield backend
    finally:
        await backend.aclose()


@pytest.fixture
async def proxy(seaweed: S3Server) -> AsyncIterator[FaultProxy]:
    async with fault_proxy(seaweed.port) as proxy:
        yield proxy


@pytest.fixture
async def spoiled(seaweed: S3Server, proxy: FaultProxy) -> AsyncIterator[Backend]:
    """A client behind the proxy; one call is one try."""
    async with connected(seaweed, port=proxy.port) as backend:
        await backend.list("")  # connected now, so that no test's deadline pays for it
        proxy.requests.clear()
        yield backend


@pytest.fixture
async def direct(seaweed: S3Server) -> AsyncIterator[Backend]:
    """A client that goes round the proxy, to see what is really there."""
    async with connected(seaweed) as backend:
        yield backend


async def _is_there(backend: Backend, key: str) -> bool:
    try:
        await backend.stat(key)
    except NotFound:
        return False
    return True


@pytest.mark.parametrize(
    ("fault", "applied", "is_there", "sent"),
    [
        (Fault(answer=SLOW_DOWN), False, False, 1),
        (Fault(answer=CONFLICT), False, False, 1),
        (Fault(answer=INTERNAL_ERROR), None, False, 1),
        (Fault(drop=True, times=2), None, False, 2),
        (Fault(lose_reply=True, times=2), None, True, 2),
    ],
    ids=["503", "409", "500", "dropped", "reply lost"],
)
@pytest.mark.parametrize("operation", ["create", "put"])
async def test_one_call_is_one_try_and_says_what_is_known(
    spoiled: Backend,
    direct: Backend,
    proxy: FaultProxy,
    operation: str,
    fault: Fault,
    applied: bool | None,
    is_there: bool,
    sent: int,
) -> None:
    """An answer is never repeated, a connection that broke once at most; the error says what may have happened."""
    proxy.inject(replace(fault, method="PUT"))
    with pytest.raises(TransientError) as raised:
        await getattr(spoiled, operation)(ENTRY, b"entry")
    assert raised.value.applied is applied
    assert await _is_there(direct, ENTRY) is is_there
    assert proxy.count("PUT") == sent


@pytest.mark.parametrize("fault", [Fault(answer=SLOW_DOWN, times=4), Fault(answer=INTERNAL_ERROR, times=4)])
async def test_a_burst_of_refusals_is_waited_out(spoiled: Backend, proxy: FaultProxy, fault: Fault) -> None:
    """503 and 500 in a row are retried with growing pauses, until the store serves again."""
    proxy.inject(fault)
    assert await create_once(Retrying(spoiled, 30), ENTRY, b"entry") is True
    assert proxy.count("PUT") == 5


async def test_a_conflict_of_creates_is_retried(spoiled: Backend, proxy: FaultProxy) -> None:
    """409 means that two creates were under way at once, not that an object exists."""
    proxy.inject(Fault(answer=CONFLICT, method="PUT"))
    await Retrying(spoiled, 30).create(ENTRY, b"entry")
    assert proxy.count("PUT") == 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(SLOW_DOWN, StoreUnavailable), (INTERNAL_ERROR, OutcomeUnknown)],
    ids=["503", "500"],
)
async def test_a_store_that_stays_down_is_a_clean_failure(
    spoiled: Backend, direct: Backend, proxy: FaultProxy, answer: Reply, expected: type[BackendError]
) -> None:
    """At the deadline there is one typed error, more than one try behind it, and no object."""
    proxy.inject(Fault(answer=answer, times=FOREVER))
    with pytest.raises(expected):
        await Retrying(spoiled, SHORT_S).create(ENTRY, b"entry")
    assert proxy.count("PUT") > 1
    assert not await _is_there(direct, ENTRY)


async def test_a_lost_reply_is_settled_by_reading_the_slot(
    spoiled: Backend, direct: Backend, proxy: FaultProxy
) -> None:
    """The entry's PUT succeeded and its reply was lost: repeated, refused, compared, and found to be one's own."""
    proxy.inject(Fault(lose_reply=True, method="PUT"))
    assert await create_once(Retrying(spoiled, 30), ENTRY, b"own token") is False
    assert await direct.get(ENTRY, max_bytes=100) == b"own token"
    assert (proxy.count("PUT"), proxy.count("DELETE"), proxy.count("POST")) == (2, 0, 0)


async def test_an_entry_of_another_writer_is_handed_over(spoiled: Backend, direct: Backend) -> None:
    """412 with another writer's content: the caller gets it, to read on from there."""
    await direct.create(ENTRY, b"theirs")
    with pytest.raises(AlreadyExists):
        await spoiled.create(ENTRY, b"mine")
    with pytest.raises(ObjectConflict) as raised:
        await create_once(spoiled, ENTRY, b"mine")
    assert raised.value.existing == b"theirs"
    assert await direct.get(ENTRY, max_bytes=100) == b"theirs"


async def test_a_request_without_an_answer_times_out(seaweed: S3Server, proxy: FaultProxy) -> None:
    """A server that takes the request and says nothing leaves the outcome unknown, after the read timeout."""
    proxy.inject(Fault(hang=True, method="PUT", times=FOREVER))
    async with connected(seaweed, port=proxy.port, limits=Limits(read_timeout_s=0.3)) as backend:
        with pytest.raises(TransientError) as raised:
            await backend.put("k", b"x")
        assert raised.value.applied is None


async def test_a_deadline_cuts_off_a_request_that_hangs(spoiled: Backend, proxy: FaultProxy) -> None:
    """The caller's deadline is earlier than any timeout of the client, and gets its typed error in time."""
    proxy.inject(Fault(hang=True, method="PUT", times=FOREVER))
    with anyio.fail_after(SHORT_S), pytest.raises(OutcomeUnknown):
        await Retrying(spoiled, 60).put("k", b"x")


async def test_a_server_that_is_not_there_has_changed_nothing(seaweed: S3Server) -> None:
    """A refused connection has sent nothing: the retries end in StoreUnavailable."""
    async with connected(replace(seaweed, port=1)) as backend:
        with pytest.raises(TransientError) as raised:
            await backend.create("k", b"x")
        assert raised.value.applied is False
        with pytest.raises(StoreUnavailable):
            await Retrying(backend, SHORT_S).create("k", b"x")


@pytest.mark.parametrize("cut", [0, 1, 9_999])
async def test_a_body_that_breaks_off_is_read_again(
    spoiled: Backend, direct: Backend, proxy: FaultProxy, cut: int
) -> None:
    """Fewer bytes than announced are never returned: an error for one try, the whole object for the next."""
    data = bytes(range(250)) * 40
    await direct.create("k", data)
    proxy.inject(Fault(method="GET", cut_body_at=cut, times=4))
    for _ in range(2):
        with pytest.raises(TransientError):
            await spoiled.get("k", max_bytes=len(data))
    with pytest.raises(TransientError):
        await spoiled.get_range("k", 0, len(data))
    assert await Retrying(spoiled, 30).get("k", max_bytes=len(data)) == data


async def test_a_body_that_stays_short_is_refused(spoiled: Backend, direct: Backend, proxy: FaultProxy) -> None:
    """A truncated object is retried until the deadline, and then it is an error and not a shorter object."""
    await direct.create("k", b"0123456789")
    proxy.inject(Fault(method="GET", cut_body_at=4, times=FOREVER))
    with pytest.raises(StoreUnavailable):
        await Retrying(spoiled, SHORT_S).get("k", max_bytes=10)
    assert proxy.count("GET") > 1


async def test_a_giant_is_refused_before_its_body(spoiled: Backend, direct: Backend, proxy: FaultProxy) -> None:
    """The announced length decides: a body that would break off at once is never even looked at."""
    await direct.create("k", b"x" * MIB)
    proxy.inject(Fault(method="GET", cut_body_at=0, times=FOREVER))
    with pytest.raises(ObjectTooLarge):
        await spoiled.get("k", max_bytes=MIB - 1)


async def test_a_large_object_is_one_put(spoiled: Backend, proxy: FaultProxy, seaweed: S3Server) -> None:
    """There is no multipart upload that could be left unfinished, whatever the size."""
    await spoiled.create("large", b"x" * (16 * MIB))
    await spoiled.put("large", b"y" * (16 * MIB))
    assert [request.method for request in proxy.requests] == ["PUT", "PUT"]
    names = {name for request in proxy.requests for name, _ in request.query}
    assert not names & {"uploads", "uploadId", "partNumber"}
    uploads = await anyio.to_thread.run_sync(lambda: seaweed.client().list_multipart_uploads(Bucket=seaweed.bucket))
    assert uploads.get("Uploads", []) == []


async def test_a_create_names_its_condition_and_a_put_none(spoiled: Backend, proxy: FaultProxy) -> None:
    """Exclusive create is If-None-Match in the request itself, and not a look before it."""
    await spoiled.create("k", b"x")
    await spoiled.put("k", b"x")
    create, put = proxy.requests
    assert re.search(rb"(?i)\r\nif-none-match: \*\r\n", create.head)
    assert b"if-none-match" not in put.head.lower()


async def test_an_etag_that_is_no_digest_is_of_no_interest(spoiled: Backend, proxy: FaultProxy) -> None:
    """With server-side encryption an ETag is anything: nothing is concluded from it."""
    proxy.inject(Fault(rewrite=lambda reply: reply.with_header("ETag", '"not-a-digest-7"'), times=FOREVER))
    await spoiled.create("k", b"content")
    await spoiled.put("k", b"content2")
    assert await spoiled.get("k", max_bytes=100) == b"content2"
    assert (await spoiled.stat("k")).size == 8


async def test_a_stale_listing_hides_no_object_from_a_look(
    spoiled: Backend, direct: Backend, proxy: FaultProxy
) -> None:
    """A listing recorded earlier is served: what it lacks is still found by key, and only the listing is wrong."""
    await direct.create("chain/1", b"x")
    old: list[Reply] = []

    def serve_old(reply: Reply) -> Reply:
        old.append(reply)
        return old[0]

    proxy.inject(Fault(where=lambda request: request.lists, rewrite=serve_old, times=FOREVER))
    assert [info.key for info in await spoiled.list("chain/")] == ["chain/1"]
    await direct.create("chain/2", b"x")
    assert [info.key for info in await spoiled.list("chain/")] == ["chain/1"]
    assert await spoiled.get("chain/2", max_bytes=1) == b"x"
    assert await _is_there(spoiled, "chain/2")
    with pytest.raises(AlreadyExists):
        await spoiled.create("chain/2", b"y")


def _cut_short(reply: Reply) -> Reply:
    return reply.with_body(reply.body.replace(b"<IsTruncated>false<", b"<IsTruncated>true<"))


async def test_a_listing_cut_short_is_an_error(spoiled: Backend, direct: Backend, proxy: FaultProxy) -> None:
    """A page that says there is more and not where is never taken for the whole, and never asked for for ever."""
    await direct.create("a/1", b"x")
    proxy.inject(Fault(where=lambda request: request.lists, rewrite=_cut_short, times=FOREVER))
    with pytest.raises(IOFailed, match="cut its listing short"):
        await spoiled.list("a/")


async def test_a_failing_page_is_not_a_short_listing(spoiled: Backend, direct: Backend, proxy: FaultProxy) -> None:
    """An error on a listing is an error of the listing; repeated, it is complete."""
    await direct.create("a/1", b"x")
    proxy.inject(Fault(where=lambda request: request.lists, answer=SLOW_DOWN, times=2))
    with pytest.raises(TransientError):
        await spoiled.list("a/")
    assert [info.key for info in await Retrying(spoiled, 30).list("a/")] == ["a/1"]


async def test_permission_to_write_alone_works_with_warnings(seaweed: S3Server, proxy: FaultProxy) -> None:
    """Where listing and deleting are denied, opening succeeds and says what will not work."""
    proxy.inject(Fault(where=lambda request: request.lists, answer=DENIED, times=FOREVER))
    proxy.inject(Fault(method="DELETE", answer=DENIED, times=FOREVER))
    opened = await open_backend(seaweed.url, storage_options=seaweed.options(port=proxy.port), writable=True)
    try:
        assert (opened.report.can_list, opened.report.can_delete) == (False, False)
        assert len(opened.report.warnings) == 2
        await opened.backend.create(ENTRY, b"entry")
        assert await opened.backend.get(ENTRY, max_bytes=10) == b"entry"
        with pytest.raises(AccessDenied):
            await opened.backend.delete([ENTRY])
    finally:
        await opened.backend.aclose()


async def test_a_key_refused_in_a_bulk_delete_is_an_error(spoiled: Backend, direct: Backend, proxy: FaultProxy) -> None:
    """A bulk delete answers 200 and refuses single keys in its body: that is not a success."""
    for key in ("a", "b"):
        await direct.create(key, b"x")
    refusal = b"<Error><Key>t/a</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"

    def refuse(reply: Reply) -> Reply:
        return reply.with_body(re.sub(rb"(/>|</DeleteResult>)\s*$", b"", reply.body) + _open(reply) + refusal)

    proxy.inject(Fault(method="POST", rewrite=refuse))
    with pytest.raises(AccessDenied):
        await spoiled.delete(["a", "b"])
    await spoiled.delete(["a", "b"])
    assert await direct.list("") == []


def _open(reply: Reply) -> bytes:
    return b">" if reply.body.rstrip().endswith(b"/>") else b""


async def test_a_missing_bucket_is_no_missing_object(seaweed: S3Server) -> None:
    """Every way of reading and listing says that there is no bucket. (This server makes one for a write.)"""
    async with connected(replace(seaweed, bucket="no-such-bucket")) as backend:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: backend.get("k", max_bytes=1),
            lambda: backend.get_range("k", 0, 1),
            lambda: backend.stat("k"),
            lambda: backend.list(""),
        ]
        for call in calls:
            with pytest.raises(RootMissing):
                await call()


@pytest.mark.parametrize("wrong", [{"secret": "wrong-secret-0"}, {"key": "nobody"}], ids=["secret", "key"])
async def test_wrong_credentials_fail_at_opening(seaweed: S3Server, wrong: dict[str, str]) -> None:
    """A wrong key or secret is AccessDenied with what to do, before anything is prepared, and without the secret."""
    with pytest.raises(AccessDenied) as raised:
        await open_backend(seaweed.url, storage_options={**seaweed.options(), **wrong}, writable=True)
    assert "wrong-secret-0" not in str(raised.value)


async def test_expired_credentials_are_read_again(
    seaweed: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where new credentials were put in place of the expired ones, the same backend goes on with them."""
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    proxy.inject(Fault(where=lambda request: b"Credential=OLDKEY" in request.head, answer=EXPIRED, times=FOREVER))
    _write_credentials(file, "OLDKEY", "old-secret")
    async with connected(seaweed, port=proxy.port, key=None, secret=None) as backend:
        with pytest.raises(AccessDenied, match="ExpiredToken"):
            await backend.create("k", b"x")
        assert proxy.count("PUT") == 2
        _write_credentials(file, seaweed.access_key, seaweed.secret_key)
        await backend.create("k", b"x")
        assert await backend.get("k", max_bytes=1) == b"x"


def _write_credentials(file: Path, key: str, secret: str) -> None:
    file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")


async def test_many_requests_at_once_refresh_together(spoiled: Backend, proxy: FaultProxy) -> None:
    """When credentials expire under many requests in flight, each is repeated once and all succeed."""
    proxy.inject(Fault(method="PUT", answer=EXPIRED, times=8))
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(spoiled.create, f"k/{number}", b"x")
    assert len(await spoiled.list("k/")) == 8
    assert proxy.count("PUT") <= 16


async def test_credentials_that_cannot_be_refreshed_fail_before_publication(
    spoiled: Backend, direct: Backend, proxy: FaultProxy
) -> None:
    """Records are written, then the credentials expire: the manifest's write is denied, and nothing is published."""
    retrying = Retrying(spoiled, 30)
    await retrying.create("checkpoints/1.1/part", b"x")
    proxy.inject(Fault(answer=EXPIRED, times=FOREVER))
    with pytest.raises(AccessDenied):
        await retrying.create("checkpoints/1.1/manifest.json", b"x")
    assert [info.key for info in await direct.list("")] == ["checkpoints/1.1/part"]


async def test_a_store_that_ignores_conditions_is_refused(rclone_server: S3Server) -> None:
    """`rclone serve s3` takes If-None-Match and overwrites: refused, unless a single writer was promised."""
    options = rclone_server.options()
    with pytest.raises(UnsupportedStore, match="ignores the condition"):
        await open_backend(rclone_server.url, storage_options=options, writable=True)
    opened = await open_backend(rclone_server.url, storage_options=options, writable=True, single_writer=True)
    assert not opened.report.exclusive_create
    assert await opened.backend.list("") == []
    await opened.backend.aclose()


async def test_the_endpoint_and_credentials_come_from_the_environment(
    seaweed: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard variables of AWS are enough: no option needs to be given."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweed.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweed.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweed.secret_key)
    opened = await open_backend(seaweed.url, writable=True)
    assert opened.report.warnings == ()
    await opened.backend.aclose()


async def test_closing_leaves_no_connection(seaweed: S3Server, proxy: FaultProxy) -> None:
    """After aclose nothing is left for the garbage collector to warn of, also where clients were replaced."""
    proxy.inject(Fault(method="PUT", answer=EXPIRED))
    async with connected(seaweed, port=proxy.port) as backend:
        await backend.create("k", b"x")
    del backend
    gc.collect()


async def test_a_cancelled_request_leaves_the_client_usable(spoiled: Backend, proxy: FaultProxy) -> None:
    """A call that is cancelled in any state of its request harms none of the next ones."""
    proxy.inject(Fault(hang=True, times=3))
    for call in (spoiled.create, spoiled.put, spoiled.create):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "k", b"x" * MIB)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    proxy.heal()
    await spoiled.put("k", b"fine")
    assert await spoiled.get("k", max_bytes=4) == b"fine"
