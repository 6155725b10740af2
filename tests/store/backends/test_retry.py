"""The retry layer: what is repeated, until when, and how it ends."""

import anyio
import pytest

from store.backends import Backend, Call, Fault, MemoryBackend, MemorySpace, ObjectInfo, Retrying, create_once
from store.errors import (
    AccessDenied,
    AlreadyExists,
    BackendError,
    NotFound,
    ObjectConflict,
    OutcomeUnknown,
    StoreUnavailable,
    TransientError,
)

pytestmark = [pytest.mark.unit, pytest.mark.anyio]

SHORT_S = 0.3
"""Long enough for several tries."""


def refused(call: Call) -> BackendError:
    """The store has said no: nothing happened."""
    return TransientError(call.verb, call.key, "SlowDown", applied=False)


def unclear(call: Call) -> BackendError:
    """Nobody can say whether it happened."""
    return TransientError(call.verb, call.key, "reset", applied=None)


@pytest.fixture
def memory() -> MemoryBackend:
    return MemoryBackend(space=MemorySpace())


async def test_a_transient_error_is_repeated_until_it_is_over(memory: MemoryBackend) -> None:
    """Every verb is tried again, and succeeds once the store does."""
    backend = Retrying(memory, 10)
    for verb in ("create", "put", "get", "get_range", "stat", "list", "delete"):
        memory.inject(Fault(verb=verb, times=3, error=refused))
    await backend.create("k", b"1")
    await backend.put("k", b"22")
    assert await backend.get("k", max_bytes=2) == b"22"
    assert await backend.get_range("k", 1, 1) == b"2"
    assert (await backend.stat("k")).size == 2
    assert [info.key for info in await backend.list("")] == ["k"]
    await backend.delete(["k"])
    assert [memory.count(verb) for verb in ("create", "put", "get", "stat", "list", "delete")] == [4] * 6


@pytest.mark.parametrize("error", [AccessDenied, NotFound, AlreadyExists])
async def test_an_answer_is_not_repeated(memory: MemoryBackend, error: type[BackendError]) -> None:
    """What the store has decided is passed on after one call."""
    memory.inject(Fault(times=100, error=lambda call: error(call.verb, call.key)))
    with pytest.raises(error):
        await Retrying(memory, 10).put("k", b"x")
    assert len(memory.calls) == 1


@pytest.mark.parametrize("operation", ["create", "put", "delete"])
async def test_a_write_that_was_always_refused_has_changed_nothing(memory: MemoryBackend, operation: str) -> None:
    """Where every try was answered with no, the end is StoreUnavailable, with the last error as its cause."""
    memory.inject(Fault(times=10_000, error=refused))
    backend = Retrying(memory, SHORT_S)
    with pytest.raises(StoreUnavailable, match="SlowDown") as raised:
        await _write(backend, operation)
    assert isinstance(raised.value.__cause__, TransientError)
    assert len(memory.calls) > 1
    assert memory.space.objects == {}


@pytest.mark.parametrize("operation", ["create", "put", "delete"])
async def test_one_unclear_try_makes_the_outcome_unknown(memory: MemoryBackend, operation: str) -> None:
    """A single try that may have taken effect is remembered, however many refusals follow it."""
    memory.inject(Fault(nth=1, error=unclear))
    memory.inject(Fault(nth=2, times=10_000, error=refused))
    with pytest.raises(OutcomeUnknown):
        await _write(Retrying(memory, SHORT_S), operation)
    assert len(memory.calls) > 1


async def _write(backend: Backend, operation: str) -> None:
    if operation == "delete":
        await backend.delete(["k"])
    else:
        await getattr(backend, operation)("k", b"x")


async def test_an_unclear_read_is_only_unavailable(memory: MemoryBackend) -> None:
    """A read changes nothing, so its outcome is never unknown."""
    memory.inject(Fault(times=10_000, error=unclear))
    with pytest.raises(StoreUnavailable):
        await Retrying(memory, SHORT_S).get("k", max_bytes=1)


@pytest.mark.parametrize(("operation", "expected"), [("put", OutcomeUnknown), ("stat", StoreUnavailable)])
async def test_a_call_that_hangs_ends_in_a_typed_error(
    memory: MemoryBackend, operation: str, expected: type[BackendError]
) -> None:
    """A store that never answers costs the time allowed, and no more."""
    memory.inject(Fault())
    backend = Retrying(memory, SHORT_S)
    before = anyio.current_time()
    with pytest.raises(expected, match="hung"):
        await (backend.put("k", b"x") if operation == "put" else backend.stat("k"))
    assert SHORT_S * 0.9 <= anyio.current_time() - before < SHORT_S + 1


async def test_the_end_comes_before_the_callers_deadline(memory: MemoryBackend) -> None:
    """Under an earlier deadline of the caller the typed error comes first, and leaves time to act on it."""
    memory.inject(Fault(times=10_000, error=unclear))
    with anyio.fail_after(SHORT_S) as scope:
        with pytest.raises(OutcomeUnknown):
            await Retrying(memory, 60).put("k", b"x")
        assert anyio.current_time() < scope.deadline
        await anyio.lowlevel.checkpoint()
    assert not scope.cancelled_caught


@pytest.mark.parametrize("fault", [Fault(), Fault(times=10_000, error=unclear)], ids=["in a try", "between two"])
async def test_a_cancellation_is_no_error_of_the_store(memory: MemoryBackend, fault: Fault) -> None:
    """A caller that is cancelled gets its cancellation, at once, and no error in its place."""
    memory.inject(fault)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Retrying(memory, 60).put, "k", b"x")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert memory.space.objects == {}


async def test_a_lost_reply_is_met_again_as_existing(memory: MemoryBackend) -> None:
    """A create that took effect before its reply was lost is refused when it is repeated: the caller compares."""
    memory.inject(Fault(verb="create", after=True, error=unclear))
    with pytest.raises(AlreadyExists):
        await Retrying(memory, 10).create("k", b"mine")
    assert memory.space.objects["k"].data == b"mine"


async def test_create_once_recognises_its_own_lost_reply(memory: MemoryBackend) -> None:
    """After a lost reply the same bytes are found: no second object, no delete, no error."""
    memory.inject(Fault(verb="create", after=True, error=unclear))
    assert await create_once(Retrying(memory, 10), "k", b"mine") is False
    assert memory.count("delete") == 0
    assert memory.count("create") == 2


async def test_create_once_tells_created_from_found(memory: MemoryBackend) -> None:
    """True for a new object, False for one that stands there with the same bytes."""
    assert await create_once(memory, "k", b"x") is True
    assert await create_once(memory, "k", b"x") is False
    assert memory.space.objects["k"].data == b"x"


@pytest.mark.parametrize("theirs", [b"theirs", b"", b"mine and more"])
async def test_create_once_hands_over_what_differs(memory: MemoryBackend, theirs: bytes) -> None:
    """Other content is a conflict that carries it, and stays as it is."""
    await memory.create("k", theirs)
    with pytest.raises(ObjectConflict) as raised:
        await create_once(memory, "k", b"mine")
    assert (raised.value.key, raised.value.existing) == ("k", theirs)
    assert memory.space.objects["k"].data == theirs


async def test_create_once_reads_no_giant(memory: MemoryBackend) -> None:
    """Content larger than anybody expects is a conflict without it."""
    await memory.create("k", b"x" * 1000)
    with pytest.raises(ObjectConflict) as raised:
        await create_once(memory, "k", b"mine", max_bytes=100)
    assert raised.value.existing is None


async def test_create_once_takes_a_slot_that_was_freed(memory: MemoryBackend) -> None:
    """An object that is deleted between the refusal and the look leaves the slot free: it is taken."""
    await memory.create("k", b"theirs")
    other = MemoryBackend(space=memory.space)

    class Deleting(Retrying):
        async def get(self, key: str, *, max_bytes: int) -> bytes:
            await other.delete([key])
            return await super().get(key, max_bytes=max_bytes)

    assert await create_once(Deleting(memory, 10), "k", b"mine") is True


async def test_each_verb_and_trait_goes_to_the_wrapped_backend(memory: MemoryBackend) -> None:
    """The wrapper shows the url, the traits and the lock of what it wraps."""
    backend = Retrying(memory)
    assert (backend.url, backend.traits, backend.inner) == (memory.url, memory.traits, memory)
    async with backend.lock("l") as first, memory.lock("l") as second:
        assert (first, second) == (True, False)
    await backend.aclose()


async def test_a_fake_shares_objects_by_name_and_faults_with_nobody() -> None:
    """Two clients of one name see the same objects, but each its own bad network."""
    first, second = MemoryBackend("shared-in-this-test"), MemoryBackend("shared-in-this-test")
    first.inject(Fault(times=10, error=refused))
    await second.create("k", b"x")
    with pytest.raises(TransientError):
        await first.get("k", max_bytes=1)
    assert await second.get("k", max_bytes=1) == b"x"
    assert (first.count("get"), second.count("get")) == (1, 1)
    assert MemoryBackend("another").space.objects == {}


async def test_a_frozen_listing_shows_the_past(memory: MemoryBackend) -> None:
    """A stale listing hides new objects and shows deleted ones; single objects are never stale."""
    await memory.create("old", b"x")
    memory.freeze_listing()
    await memory.create("new", b"x")
    await memory.delete(["old"])
    assert [info.key for info in await memory.list("")] == ["old"]
    assert await memory.get("new", max_bytes=1) == b"x"
    memory.thaw_listing()
    assert [info.key for info in await memory.list("")] == ["new"]


async def test_the_clock_of_a_fake_is_given() -> None:
    """Times in a memory store are those of the clock that it was given."""
    now = [100.0]
    backend = MemoryBackend(space=MemorySpace(), clock=lambda: now[0])
    await backend.create("k", b"")
    now[0] = 200.0
    await backend.create("l", b"")
    assert await backend.list("") == [ObjectInfo("k", 0, 100.0), ObjectInfo("l", 0, 200.0)]
