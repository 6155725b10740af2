"""Programs that reach for what is not theirs: the server, its secrets, the network, a life of their own."""

from participants.sandbox import SandboxLimits

from .hostile import Hostile

_ADMINISTRATOR = """
import os
if os.getuid() == 0: print("ESCAPED as the administrator"); raise SystemExit
"""
"""Nothing dangerous is tried by one who could do harm with it."""

SIGNALS = (
    Hostile("signals", "python", _ADMINISTRATOR + """
import signal
for pid in {os.getppid(), int(os.environ["TARGET_PID"])} - {os.getpid(), 0, 1, 2}:
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        try: os.kill(pid, number); print("ESCAPED", pid, number)
        except OSError: pass
print("over", flush=True)
"""),
    Hostile("kill-everybody", "python", _ADMINISTRATOR + """
print("over", flush=True)
try: os.kill(-1, 9)
except OSError: pass
""", frozenset({"exited", "signalled"}), says="over"),
    Hostile("kill-everybody", "cpp", """
int main() { if (getuid() == 0) { puts("ESCAPED"); return 0; } puts("over"); fflush(stdout); kill(-1, SIGKILL); }
""", frozenset({"exited", "signalled"}), says="over"),
    Hostile("kill-everybody", "sh", '[ "$(id -u)" = 0 ] && echo ESCAPED && exit; echo over; kill -9 -1',
            frozenset({"exited", "signalled"}), says="over"),
    Hostile("kill-its-group", "sh", "echo over; kill -9 0", frozenset({"signalled"}), says="over"),
    Hostile("ptrace", "python", """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in (os.getppid(), int(os.environ["TARGET_PID"]), 1):
    for request in (16, 0x4206):
        if libc.ptrace(request, pid, None, None) == 0: print("ESCAPED", pid)
    room = ctypes.create_string_buffer(8)
    vector = (ctypes.c_size_t * 2)(ctypes.addressof(room), 8)
    if libc.process_vm_readv(pid, vector, 1, vector, 1, 0) >= 0: print("ESCAPED")
    try: open(f"/proc/{pid}/mem", "rb").read(1); print("ESCAPED")
    except OSError: pass
print("over")
""", says="over"),
)  # fmt: skip

SECRETS = (
    Hostile("reads-secrets", "python", """
import glob, os
aims = ["/etc/shadow", "/etc/passwd", "/etc/ssh", os.environ["TARGET_FILE"], "/root", "/home", "/var/log", "/run"]
aims += [os.path.dirname(os.environ["TARGET_FILE"]), f"/proc/{os.environ['TARGET_PID']}/environ", "/proc/kcore"]
aims += [f"/proc/{os.environ['TARGET_PID']}/maps", f"/proc/{os.environ['TARGET_PID']}/fd", "/dev/mem", "/dev/kmsg"]
for aim in aims:
    try:
        if os.path.isdir(aim):
            if os.listdir(aim): print("ESCAPED", aim, os.listdir(aim)[:3])
        elif open(aim, "rb").read(100): print("ESCAPED", aim)
    except OSError: pass
print("over")
""", says="over"),
    Hostile("reads-secrets", "sh", """
for aim in /etc/shadow /etc/passwd "$TARGET_FILE" "/proc/$TARGET_PID/environ" "/proc/$PPID/environ"; do
    cat "$aim" 2>/dev/null | grep -aqv SANDBOX_TEST && echo "ESCAPED $aim"
done
echo over
""", says="over"),
    Hostile("reads-secrets", "cpp", """
int main() {
    const char *aims[] = {"/etc/shadow", "/etc/passwd", getenv("TARGET_FILE"), "/dev/mem", "/proc/kcore"};
    char room[64];
    for (const char *aim : aims) {
        int f = open(aim, O_RDONLY);
        if (f >= 0 && read(f, room, 64) > 0) printf("ESCAPED %s\\n", aim);
    }
    puts("over");
}
""", says="over"),
    Hostile("environment", "python", """
import os
fixed = {*"PATH HOME LANG TMPDIR LC_CTYPE PWD OLDPWD SHLVL _ MALLOC_ARENA_MAX SANDBOX_TEST".split()}
print("ESCAPED" if [name for name in os.environ if name not in fixed and not name.startswith("TARGET_")] else "over")
""", says="over"),
    Hostile("open-descriptors", "python", """
import os
for number in range(3, 4096):
    try: os.fstat(number); print("ESCAPED", number)
    except OSError: pass
print("over")
""", says="over"),
    Hostile("links", "sh", """
ln -s "$TARGET_FILE" soft; cat soft 2>/dev/null && echo ESCAPED; ln "$TARGET_FILE" hard 2>/dev/null && echo ESCAPED
ln -s / root; ls root/root 2>/dev/null | grep -q . && echo ESCAPED; ( echo x > soft ) 2>/dev/null && echo ESCAPED
ln -s ../../../../../../ up; rm -rf up/etc 2>/dev/null; echo over
""", says="over"),
    Hostile("other-root", "python", """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print("ESCAPED" if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0 else "over")
for call in (lambda: os.chroot("."), lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0])):
    try: call(); print("ESCAPED") if os.getuid() == 0 or os.getgid() == 0 else None
    except OSError: pass
""", says="over"),
)  # fmt: skip

SOCKETS = (
    Hostile("sockets", "python", """
import os, socket
port = int(os.environ["TARGET_PORT"])
aims = [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET, ("192.0.2.1", 80)), (socket.AF_INET6, ("::1", port))]
aims += [(socket.AF_UNIX, os.environ["TARGET_UNIX"]), (socket.AF_UNIX, "\\0" + os.environ["TARGET_ABSTRACT"])]
for family, address in aims:
    try: made = socket.socket(family); made.settimeout(1); made.connect(address); print("ESCAPED", address)
    except OSError: pass
try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53)); print("ESCAPED")
except OSError: pass
try: socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print("ESCAPED")
except OSError: pass
print("over")
""", says="over"),
    Hostile("sockets", "cpp", """
int main() {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(atoi(getenv("TARGET_PORT")));
    to.sin_addr.s_addr = htonl(0x7f000001);
    int made = socket(AF_INET, SOCK_STREAM, 0);
    puts(made >= 0 && connect(made, (sockaddr *)&to, sizeof to) == 0 ? "ESCAPED" : "over");
}
""", says="over"),
    Hostile("sockets", "sh", """
bash -c "echo x > /dev/tcp/127.0.0.1/$TARGET_PORT" 2>/dev/null && echo ESCAPED
echo over
""", says="over"),
)  # fmt: skip

SURVIVORS = (
    Hostile("daemon", "python", """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (0, 1, 2): os.close(number)
        time.sleep(10**6)
    os._exit(0)
print("over")
""", says="over"),
    Hostile("daemon", "cpp", """
int main() {
    if (fork() == 0) {
        setsid();
        if (fork() == 0) { close(0); close(1); close(2); for (;;) pause(); }
        _exit(0);
    }
    puts("over");
}
""", says="over"),
    Hostile("daemon", "sh", """
setsid sleep 100000 &
(setsid sleep 100000 >/dev/null 2>&1 &)
nohup sleep 100000 &
echo over
""", says="over"),
    Hostile("daemon-that-holds-the-output", "sh", "setsid sleep 100000 & echo over", says="over"),
    Hostile("parent-of-a-stopped-one", "sh", "sleep 100000 & kill -STOP $!; echo over", says="over"),
)  # fmt: skip

LIMITS = (
    Hostile("raises-its-limits", "python", """
import os, resource
for name in ("AS", "NPROC", "FSIZE", "NOFILE", "CPU", "CORE"):
    which = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY: print("ESCAPED", name)
    for more in (hard + 1, resource.RLIM_INFINITY):
        try: resource.setrlimit(which, (more, more)); print("ESCAPED", name)
        except (ValueError, OSError): pass
print("over")
""", says="over"),
    Hostile("raises-its-limits", "sh", """
(ulimit -n 4096) 2>/dev/null && echo ESCAPED
(ulimit -v unlimited) 2>/dev/null && echo ESCAPED
echo over
""", says="over"),
    Hostile("priority", "python", """
import os
for call in (lambda: os.nice(-5), lambda: os.setpriority(os.PRIO_PROCESS, 0, -20),
             lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)),
             lambda: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-1000")):
    try:
        call()
        print("ESCAPED")
    except OSError: pass
print("over")
""", says="over"),
    Hostile("descriptors", "python", """
import os
held = []
try:
    while len(held) < 5000: held.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
print("bounded" if len(held) < 256 else "ESCAPED")
""", says="bounded"),
    Hostile("huge-arguments", "python", """
import os
try: os.execv("/bin/true", ["true", *(["x" * 100_000] * 100)]); print("ESCAPED")
except (OSError, MemoryError): print("bounded")
""", says="bounded"),
    Hostile("namespaces", "python", """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
made = libc.unshare(0x10000000 | 0x00020000)
if made == 0 and libc.mount(b"/", b"/tmp", None, 0x1000, None) == 0: print("ESCAPED")
print("over")
""", says="over", limits=SandboxLimits()),
)  # fmt: skip

ALL = (*SIGNALS, *SECRETS, *SOCKETS, *SURVIVORS, *LIMITS)
