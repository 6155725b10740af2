"""Whether another S3 client would pay: s3fs, as the store uses it, against native obstore, on what a checkpoint sends.

`python -m bench.clients --url s3://bucket/prefix`; endpoint and credentials come from AWS_*. One round is packed parts,
two at a time, written and then read, and after them small objects one after another. obstore is no dependency of the
store: install it to run this.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import anyio

from store import StoreError, open_backend

from . import command_line
from .command_line import count
from .timing import Clock

Put = Callable[[str, bytes], Awaitable[object]]
Get = Callable[[str, int], Awaitable[object]]
_IN_FLIGHT = 2
_SMALL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Client:
    """The two requests that are compared."""

    name: str
    put: Put
    get: Get


@asynccontextmanager
async def _s3fs(url: str) -> AsyncIterator[Client]:
    opened = await open_backend(url, writable=False)

    async def get(key: str, size: int) -> bytes:
        return await opened.backend.get(key, max_bytes=size)

    try:
        yield Client("s3fs", opened.backend.put, get)
    finally:
        await opened.backend.aclose()


@asynccontextmanager
async def _obstore(url: str) -> AsyncIterator[Client]:
    parts = urlsplit(url)
    kind: Any = import_module("obstore.store").S3Store
    store = kind(parts.netloc, prefix=parts.path.strip("/"), client_options={"allow_http": True})

    async def put(key: str, data: bytes) -> None:
        await store.put_async(key, data, use_multipart=False)

    async def get(key: str, size: int) -> bytes:
        return bytes(await (await store.get_async(key)).bytes_async())

    yield Client("obstore", put, get)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is sent."""

    parts: int
    part_bytes: int
    small: int


async def _parts(client: Client, shape: Shape, data: bytes, *, write: bool) -> None:
    room = anyio.Semaphore(_IN_FLIGHT)

    async def one(number: int) -> None:
        async with room:
            key = f"{client.name}/part-{number}"
            await (client.put(key, data) if write else client.get(key, len(data)))

    async with anyio.create_task_group() as group:
        for number in range(shape.parts):
            group.start_soon(one, number)


async def _small(client: Client, shape: Shape) -> None:
    for number in range(shape.small // 2):
        key = f"{client.name}/small-{number}"
        await client.put(key, bytes(_SMALL_BYTES))
        await client.get(key, _SMALL_BYTES)


async def _measure(url: str, shape: Shape, repeat: int) -> dict[str, Clock]:
    clocks: dict[str, Clock] = {}
    data = secrets.token_bytes(shape.part_bytes)
    async with _s3fs(url) as one, _obstore(url) as other:
        for _ in range(repeat):
            for client in (one, other):
                with clocks.setdefault(f"{client.name}, write", Clock()).run():
                    await _parts(client, shape, data, write=True)
                with clocks.setdefault(f"{client.name}, read", Clock()).run():
                    await _parts(client, shape, data, write=False)
                with clocks.setdefault(f"{client.name}, small", Clock()).run():
                    await _small(client, shape)
    return clocks


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = command_line.Command("bench.clients", __doc__)
    parser.add_argument(
        "--url", required=True, help="s3:// URL below which to work; endpoint and credentials come from AWS_*"
    )
    parser.add_argument("--parts", type=count, default=4, help="large objects")
    parser.add_argument("--part-bytes", type=count, default=8 * 1024 * 1024, help="of a large object")
    parser.add_argument("--small", type=count, default=30, help="small requests, one after another")
    parser.add_argument("--repeat", type=count, default=7, help="times that each is measured")
    options = parser.parse_args(arguments)
    shape = Shape(options.parts, options.part_bytes, options.small)
    try:
        clocks = anyio.run(_measure, options.url, shape, options.repeat)
    except (StoreError, ValueError) as error:
        parser.error(f"no store below {options.url}: {error}")
    print(f"{'seconds':<18}{'min':>7} {'median':>7} {'max':>7} {'cpu':>7}")
    for name, clock in sorted(clocks.items()):
        print(f"{name:<18}{clock}")


if __name__ == "__main__":
    main()
