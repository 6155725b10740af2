"""The keeper: a small process between the server and one untrusted program, which starts it, watches it and ends it.

    server ── keeper ── [bubblewrap ──] program, and whatever that starts

Rules:
- The program has nothing of the keeper but its standard streams; the keeper gives its own up once it has started.
- The keeper adopts orphans, so that each process of the program stays below it, wherever it goes: it is over when the
  keeper has no child any more. Only direct children are killed: their numbers cannot have passed to others. Where
  neither a namespace nor a user of its own ends all at one stroke, all are stopped first, or they could fork faster.
- The keeper lives on when the server is killed, in a session of its own, sees its end on the socket between them, and
  ends the program. Where the keeper itself is killed, bubblewrap dies with it and the kernel clears the namespace;
  without bubblewrap only the program's first process does.
- It is told what to run once, says once how it ended, and then ends itself.

It starts with `-I -S` and imports little, because each run pays for that: for json alone as much as for all the rest.
"""

import contextlib
import errno
import os
import resource
import signal
import stat
import time
from types import SimpleNamespace

from . import kernel, tree
from .watching import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .order import Order

NICENESS = 5
"""Of programs: many that spin shall not take the processors from the server."""
_READY_FD, _FILTER_FD = 9, 8
_UNABLE, _MISSING = 126, 127
_FAILED = b"!"


def main(control_fd: int, order_fd: int, server: int) -> None:
    """Run what the order says and report to the server, whose process id is given."""
    with open(order_fd, encoding="utf-8") as file:
        fields = eval(file.read(), {"__builtins__": {}})  # A literal, by the server, which this process is a part of.
    order: Order = SimpleNamespace(**fields)  # type: ignore[assignment]
    os.set_inheritable(control_fd, False)  # Whoever has it can speak for the keeper.
    try:
        report = _run(order, control_fd, server)
    except Exception as error:
        report = {"failed": f"{type(error).__name__}: {error}"}
    finally:
        if order.fresh and order.folder is not None:
            _remove(order.folder)
    os.set_blocking(control_fd, False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.write(control_fd, repr(report).encode())


def _run(order: "Order", control: int, server: int) -> dict[str, object]:
    """Start it, watch it, end all of it."""
    kernel.adopt_orphans()
    _prepare_folder(order)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        _be_program(order, tell)
    os.close(tell)
    _give_up_streams()
    watch = Watch(order, child, told)
    cause = watch.until_over(control, server)
    wall_s = time.monotonic() - watch.began
    watch.look(tree.descendants())
    status = _end_all(child, order)
    watch.look([])
    watch.hear()
    if order.uid is not None and order.folder is not None and not order.fresh:
        os.chown(order.folder, os.getuid(), os.getgid())
    if watch.said.startswith(_FAILED):
        return {"failed": watch.said[1:].decode(errors="replace")}
    if order.bubblewrap and not watch.said and cause != "told":
        return {"failed": ""}
    peak = max(watch.peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
    return {"cause": cause, "status": status, "wall_s": wall_s, "cpu_s": watch.cpu_s, "peak_bytes": peak}


def _prepare_folder(order: "Order") -> None:
    """Make the fresh folder; give the working folder to the user that the program will be."""
    if order.folder is None:
        return
    if order.fresh:
        os.mkdir(order.folder, 0o700)
    if os.path.islink(order.folder) or not os.path.isdir(order.folder):
        raise NotADirectoryError(f"{order.folder} is no folder")
    with contextlib.suppress(PermissionError):  # The program before this one may have locked it.
        os.chmod(order.folder, stat.S_IMODE(os.stat(order.folder).st_mode) | 0o700)
    if order.uid is not None and order.fresh:
        os.chown(order.folder, order.uid, order.uid)
    elif order.uid is not None:
        _call(["chown", "-R", "-h", f"{order.uid}:{order.uid}", "--", order.folder])


def _call(command: list[str]) -> int:
    """The exit code of a program of the system that says nothing and is told nothing."""
    closed = [(os.POSIX_SPAWN_OPEN, stream, "/dev/null", os.O_RDWR, 0) for stream in (0, 1, 2)]
    pid = os.posix_spawnp(command[0], command, {"PATH": "/usr/bin:/bin", "LANG": "C"}, file_actions=closed)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _remove(folder: str) -> None:
    """Remove a folder however deep it is, and whatever its rights."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)
    if os.path.lexists(folder) and _call(["rm", "-rf", "--", folder]):
        _call(["chmod", "-R", "u+rwx", "--", folder])
        _call(["rm", "-rf", "--", folder])


def _give_up_streams() -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _be_program(order: "Order", tell: int) -> None:
    """In the keeper's child: take on all restrictions, and become the program."""
    try:
        os.setsid()
        _become(order, tell)
    except Exception as error:
        os.write(tell, _FAILED + str(error).encode())
    finally:
        os._exit(_UNABLE)


def _become(order: "Order", tell: int) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # Where memory runs out all the same, let the kernel end this one.
    os.nice(NICENESS)
    filter_code = bytes.fromhex(order.filter)
    if order.staged:
        kernel.stage([list(mount) for mount in order.staged], os.path.dirname(order.staged[0][1]))
    if order.bubblewrap:
        os.dup2(tell, _READY_FD)
        if filter_code:
            _offer(filter_code)
    elif not order.network and order.uid is not None:
        _try_leaving_network()
    if order.folder is not None and not order.bubblewrap:
        os.chdir(order.folder)
    for name, value in order.rlimits.items():
        _limit(getattr(resource, name), value)
    if order.uid is not None:
        os.setgroups([])
        os.setresgid(order.uid, order.uid, order.uid)
        os.setresuid(order.uid, order.uid, order.uid)
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(_UNABLE)
    if not order.bubblewrap:
        _restrict(order, filter_code)
    try:
        _execute(list(order.argv), dict(order.environment))
    except OSError as error:
        if order.bubblewrap:
            os.write(tell, b"+")
        os.write(2, f"{order.argv[0]}: {error.strerror}\n".encode(errors="replace"))
        os._exit(_MISSING if isinstance(error, FileNotFoundError) else _UNABLE)


def _execute(argv: list[str], environment: dict[str, str]) -> None:
    """As os.execvpe does it, which would import more of Python: by now that can be out of reach."""
    paths = environment.get("PATH", "").split(":")
    for path in [argv[0]] if "/" in argv[0] else [f"{folder}/{argv[0]}" for folder in paths]:
        try:
            os.execve(path, argv, environment)
        except FileNotFoundError:
            continue
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _limit(which: int, value: int) -> None:
    """Lower a limit for good; one that is lower already stays."""
    _, most = resource.getrlimit(which)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(which, (value, value))


def _offer(filter_code: bytes) -> None:
    """Put the filter where bubblewrap reads it."""
    read_end, write_end = os.pipe()
    os.write(write_end, filter_code)
    os.dup2(read_end, _FILTER_FD)


def _try_leaving_network() -> None:
    """Root of a container may not; the filter of calls forbids sockets in any case."""
    with contextlib.suppress(OSError):
        kernel.leave_network()


def _restrict(order: "Order", filter_code: bytes) -> None:
    """Without bubblewrap: what a process can give up by itself."""
    kernel.no_new_privileges()
    processes = order.processes + (0 if order.uid is not None else _processes_of_user() - 1)
    _limit(resource.RLIMIT_NPROC, processes)
    own = [order.folder] if order.folder is not None else []
    kernel.restrict_files(list(order.readable), [*own, *order.devices], network=order.network)
    if filter_code:
        kernel.install_filter(filter_code)


def _processes_of_user() -> int:
    """Threads that this user has already, this one among them, which count against the limit."""
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return count


def _end_all(child: int, order: "Order") -> int:
    """Kill until nothing is left below this process; the wait status of `child`."""
    status = 0
    if not order.bubblewrap and order.uid is None:
        tree.stop_all()
    while True:
        if not order.bubblewrap and order.uid is not None:
            _kill_user(order.uid)
        for pid in tree.children():
            os.kill(pid, signal.SIGKILL)
        while True:
            try:
                pid, ended = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return status
            if pid == child:
                status = ended
            if pid == 0:
                break
        time.sleep(0.001)


def _kill_user(uid: int) -> None:
    """Kill all processes of a user that only this run has, at one stroke."""
    killer = os.fork()
    if killer == 0:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(killer, 0)
