"""Parts of tests that want a process of their own: one that is killed, has no rights, or whose memory is measured.

python -m tests.participants.workfolder.alone serve ROOT           a session that runs a command, until it is killed
python -m tests.participants.workfolder.alone locked ROOT          folders and files without permission, there and back
python -m tests.participants.workfolder.alone memory ROOT COUNT MIB    a checkpoint and a restore of so many sessions
"""

import os
import resource
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from participants.data import CallId, Request
from participants.plane import ControlPlane
from participants.servers import ShellServer
from participants.wire import Activate, Adopt, Commit, Prepare, Renew, Resume, Stage
from participants.workfolder import remove_tree, tree_of, write_tree
from store import Controller, Draft, Life, Ref, Store, claim, open_store
from tests.support.shells import HandShell

from .trees import LIMITS, stored


def say(what: object) -> None:
    print(what, flush=True)  # noqa: T201


async def serve(root: str) -> None:
    """Say where the session's folder is, then run a command that does not end."""
    server = ShellServer(root=root)
    life = Life("r0", 1, 0, 0)
    await server.handle(Request(route="/seed_session", body={"files": {"a": "x"}}, life=life, call=CallId("a.b", 1, 0)))
    [session] = server.held()[0].state.open.values()
    say(session.state.folder)
    body = {"command": "echo > begun; (setsid sleep 100000 &); sleep 100000", "timeout_s": 100}
    await server.handle(Request(route="/run_command", body=body, life=life, call=CallId("a.b", 2, 0)))


def locked(root: str) -> None:
    """What even its owner may not read goes to a record and back, and keeps its modes."""
    if os.geteuid() == 0:
        os.chown(root, 65534, 65534)
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    folder, again = Path(root, "folder"), Path(root, "again")
    for each in (folder / "shut" / "inner", folder / "blind", again):
        each.mkdir(parents=True)
    for path in ("unreadable", "shut/inner/file", "blind/file"):
        (folder / path).write_text(path)
    modes = {"unreadable": 0, "shut/inner/file": 0o200, "shut/inner": 0o100, "shut": 0, "blind/file": 0, "blind": 0o400}
    for path, mode in modes.items():
        (folder / path).chmod(mode)
    folder.chmod(0o300)
    write_tree(again, tree_of(stored(folder), LIMITS))
    for top in (folder, again):
        say(oct(top.stat().st_mode & 0o777))
        top.chmod(0o700)
        for path, mode in reversed(modes.items()):
            assert (top / path).stat().st_mode & 0o777 == mode, (top, path)
            (top / path).chmod(0o700)
        assert (top / "shut/inner/file").read_text() == "shut/inner/file"
        (top / "shut").chmod(0)
        remove_tree(top)
        assert not top.exists()


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


async def memory(root: str, count: int, mib: int) -> None:
    """Say how much more memory than before its sessions a checkpoint took, and how much with a restore."""
    lives = [Life(f"r{n}", 1, 0, n) for n in range(count)]
    async with open_store(f"{root}/store", "write") as store:
        server = HandShell(root=f"{root}/work")
        for n, life in enumerate(lives):
            await server.handle(Request(route="/seed_session", body={}, life=life, call=CallId("a.b", 1, 0)))
            [session] = server.held()[-1].state.open.values()
            await anyio.to_thread.run_sync(fill, session.state.folder, n, mib)
        before = peak_mib()
        ref = await written(server, store, lives)
        await server.aclose()
        say(peak_mib() - before)
        again = HandShell(root=f"{root}/work")
        await restored(again, store, ref, lives)
        await again.aclose()
        say(peak_mib() - before)


async def written(server: HandShell, store: Store, lives: list[Life]) -> Ref:
    """A checkpoint."""
    async with claim(store) as controller, ControlPlane(server, store).run() as plane:
        call = await adopted(plane, store, controller)
        assert (await plane.prepare(Prepare(**call, timeout_s=100, lease_s=200))).restarts == ()
        committed = await plane.commit(Commit(**call, scope=tuple(lives), parent=None))
        await plane.renew(Renew(**call, lease_s=100))
        draft = Draft(checkpoint=call["round"], parent=None, participants=[committed.manifest], scope=lives)
        ref = await controller.publish(draft, timeout_s=100)
        await plane.resume(Resume(**call))
        return ref


async def restored(server: HandShell, store: Store, ref: Ref, lives: list[Life]) -> None:
    """It again, in a new epoch."""
    async with claim(store) as controller, ControlPlane(server, store).run() as plane:
        call = await adopted(plane, store, controller)
        await plane.stage(Stage(**call, checkpoint=ref, scope=tuple(lives)))
        await plane.activate(Activate(**call))
        await plane.resume(Resume(**call))


async def adopted(plane: ControlPlane, store: Store, controller: Controller) -> dict[str, Any]:
    """What every call of a round carries."""
    await plane.adopt(Adopt(run=store.run_id, epoch=controller.epoch))
    base: dict[str, Any] = {"run": store.run_id, "epoch": controller.epoch, "incarnation": plane.book.incarnation}
    return {**base, "round": controller.next_round()}


def fill(folder: Path, number: int, mib: int) -> None:
    """One file that does not compress and is nobody else's."""
    piece = os.urandom(1 << 20)
    with open(folder / f"large{number}", "wb") as file:
        for _ in range(mib):
            file.write(piece)


def main() -> None:
    what, root, *numbers = sys.argv[1:]
    match what:
        case "locked":
            locked(root)
        case "serve":
            anyio.run(serve, root)
        case _:
            count, mib = map(int, numbers)
            anyio.run(memory, root, count, mib)


if __name__ == "__main__":
    main()
