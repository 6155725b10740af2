"""A recorder of one's own: it is given every span, counter and histogram, and prints what a checkpoint did.

python examples/own_recorder.py [FOLDER]
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread

from midflight import (
    ControlPlane,
    Life,
    LocalLink,
    Request,
    RoundLimits,
    adopt,
    checkpoint,
    claim,
    discover,
    open_store,
)
from participants.servers.counter import CounterServer
from participants.telemetry import Readings, Span, install, uninstall


class Printer:
    """Prints spans and counts as they come, and leaves the rest."""

    def span(self, span: Span) -> None:
        """A piece of work has ended; `parent_id` says inside which other one it was."""
        print(f"{1000 * span.duration_s:8.1f} ms  {span.name}  {span.error or dict(span.attributes)}")

    def add(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """A counter has risen."""
        print(f"{value:+8.0f}     {name}  {dict(labels)}")

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        """A histogram has one more value."""

    def gauge(self, name: str, read: Callable[[], Readings]) -> None:
        """`read` may be called at any time, from any thread."""


async def main(folder: str) -> None:
    """One resources server with one session, and a checkpoint of it."""
    server = CounterServer(name="counter")
    async with (
        open_store(Path(folder) / "checkpoints", "write") as store,
        ControlPlane(server, store).run() as plane,
        claim(store) as controller,
    ):
        fleet, _ = await adopt(await discover([LocalLink(plane)], store.run_id), controller.epoch)
        life = Life("rollout-0", controller.epoch, 0, 0)
        await server.handle(Request(route="/seed_session", body={"initial_count": 3}, life=life))
        printer = Printer()
        install(printer)
        async with checkpoint(fleet, controller, RoundLimits()) as standing:
            standing.take(scope=[life])
        await anyio.to_thread.run_sync(uninstall, printer)


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else scratch)
