"""Programs that try to do harm: what each does, and how it may end.

A program that gets what it must not have prints ESCAPED. One that could do harm to the machine of the tests, were it
not contained, looks first whether it is the administrator, and then says ESCAPED instead.
"""

from dataclasses import dataclass, field

from participants.sandbox import SandboxLimits

MIB = 1 << 20
QUICK = SandboxLimits(wall_s=20.0, cpu_s=20.0)
SHORT = SandboxLimits(wall_s=1.5)
FEW = SandboxLimits(wall_s=1.5, processes=16)
SMALL_MEMORY = SandboxLimits(memory_bytes=256 * MIB)
SMALL_FOLDER = SandboxLimits(folder_bytes=8 * MIB, file_bytes=4 * MIB)


@dataclass(frozen=True, slots=True)
class Hostile:
    """One program."""

    name: str
    language: str
    """python, cpp or sh."""
    source: str
    ended: frozenset[str] = frozenset({"exited"})
    """The ways in which it may end."""
    says: str = ""
    """What it has printed at least."""
    limits: SandboxLimits = field(default=QUICK)

    def __str__(self) -> str:
        return f"{self.name}-{self.language}"


def _ends(*names: str) -> frozenset[str]:
    return frozenset(names)


_SPIN, _OVER = _ends("timed_out"), _ends("exited", "stopped")

BOMBS = (
    Hostile("fork-bomb", "python", """
import os, time
made = 0
try:
    while made < 2000:
        if os.fork() == 0:
            time.sleep(100)
        made += 1
except OSError:
    print("bounded" if made < 64 else "ESCAPED", made)
if made >= 2000: print("ESCAPED", made)
""", says="bounded"),
    Hostile("fork-bomb", "cpp", """
int main() {
    int made = 0;
    while (made < 2000) { pid_t pid = fork(); if (pid < 0) break; if (pid == 0) for (;;) pause(); made++; }
    puts(made < 64 ? "bounded" : "ESCAPED");
}
""", says="bounded"),
    Hostile("fork-bomb", "sh", "b() { b | b & b; }; b", _ends("exited", "timed_out", "output_limit"), limits=FEW),
    Hostile("forks-of-forks", "python", """
import os
while True:
    try: os.fork()
    except OSError: pass
""", _SPIN, limits=FEW),
    Hostile("runaway-chain", "python", """
import os
while True:
    try:
        if os.fork(): os._exit(0)
    except OSError: pass
""", _ends("exited", "timed_out"), limits=SHORT),
    Hostile("threads", "python", """
import threading, time
made = 0
try:
    while made < 2000:
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
        made += 1
except (RuntimeError, MemoryError):
    print("bounded" if made < 64 else "ESCAPED", made, flush=True)
import os; os._exit(0)
""", says="bounded"),
)  # fmt: skip

MEMORY = (
    Hostile("memory", "python", """
held = []
try:
    while True: held.append(bytearray(10_000_000))
except MemoryError:
    count = len(held); held.clear(); print("bounded" if count < 26 else "ESCAPED")
""", says="bounded", limits=SMALL_MEMORY),
    Hostile("memory", "cpp", """
int main() {
    long held = 0;
    for (; held < 4000; held++) { char *p = (char *)malloc(1 << 20); if (!p) break; memset(p, 1, 1 << 20); }
    puts(held < 256 ? "bounded" : "ESCAPED");
}
""", says="bounded", limits=SMALL_MEMORY),
    Hostile("memory-of-many", "python", """
import os, time
for _ in range(20):
    if os.fork() == 0:
        held = bytearray(100_000_000)
        for at in range(0, len(held), 4096): held[at] = 1
        time.sleep(100)
time.sleep(100)
print("ESCAPED")
""", _ends("stopped"), limits=SMALL_MEMORY),
    Hostile("memory-without-an-owner", "python", """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name, made in (("memfd", libc.memfd_create(b"x", 0)), ("shm", libc.shmget(0, 1 << 20, 0o1600))):
    print("ESCAPED" if made >= 0 else "refused", name)
""", says="refused memfd\nrefused shm"),
    Hostile("shared-memory-files", "python", """
written = 0
try:
    for number in range(1000):
        with open(f"/dev/shm/{number}", "wb") as file: written += file.write(bytes(1 << 20))
except OSError: pass
print("bounded" if written <= 8 << 20 else "ESCAPED", written)
""", _OVER, limits=SMALL_FOLDER),
    Hostile("deep-recursion", "python", """
import sys
sys.setrecursionlimit(10**9)
def f(n): return f(n + 1) + f(n + 2)
try: f(0)
except (RecursionError, MemoryError): print("bounded")
""", _ends("exited", "signalled", "timed_out", "stopped"), limits=SMALL_MEMORY),
    Hostile("deep-recursion", "cpp", """
volatile char sink;
long f(long n) { char room[4096]; room[n % 4096] = n; sink = room[(n * 7) % 4096]; return f(n + 1) + sink; }
int main() { return f(0); }
""", _ends("signalled")),
)  # fmt: skip

DISK = (
    Hostile("disk-fill", "python", """
written = 0
try:
    for number in range(10**6):
        with open(f"f{number}", "wb") as file: written += file.write(bytes(1 << 20))
except OSError: pass
print("bounded" if written <= 9 << 20 else "ESCAPED", written)
""", _OVER, limits=SMALL_FOLDER),
    Hostile("disk-fill", "sh", "i=0; while head -c 1000000 /dev/zero > f$i; do i=$((i+1)); done 2>/dev/null; echo over",
            _OVER, limits=SMALL_FOLDER),
    Hostile("many-small-files", "python", """
import os
made = 0
while made < 400_000:
    os.close(os.open(f"f{made}", os.O_CREAT | os.O_WRONLY)); made += 1
print("ESCAPED")
""", _ends("stopped"), limits=SMALL_FOLDER),
    Hostile("many-small-files", "cpp", """
int main() {
    char name[32];
    for (int made = 0; made < 1000000; made++) {
        sprintf(name, "f%d", made);
        close(open(name, O_CREAT | O_WRONLY, 0600));
    }
    puts("ESCAPED");
}
""", _ends("stopped"), limits=SMALL_FOLDER),
    Hostile("files-without-a-name", "python", """
import os, time
held, written = [], 0
try:
    for number in range(200):
        held.append(open(f"f{number}", "wb", buffering=0)); os.unlink(f"f{number}")
        written += held[-1].write(bytes(1 << 20))
except OSError: print("bounded" if written <= 9 << 20 else "ESCAPED"); raise SystemExit
time.sleep(5)
print("ESCAPED", written)
""", _OVER, limits=SMALL_FOLDER),
    Hostile("one-large-file", "python", """
try:
    with open("f", "wb", buffering=0) as file:
        for _ in range(100): file.write(bytes(1 << 20))
except OSError: print("bounded" if __import__("os").stat("f").st_size <= 4 << 20 else "ESCAPED")
""", says="bounded", limits=SMALL_FOLDER),
    Hostile("one-large-file", "cpp", """
int main() {
    char room[65536] = {0};
    int f = open("f", O_CREAT | O_WRONLY, 0600);
    while (write(f, room, sizeof room) > 0);
}
""", _ends("signalled"), limits=SMALL_FOLDER),
    Hostile("sparse-file", "python", """
try: open("f", "wb").truncate(1 << 40); print("ESCAPED")
except OSError: print("bounded")
""", says="bounded", limits=SMALL_FOLDER),
    Hostile("deep-folders", "python", """
import os
try:
    for _ in range(20_000):
        os.mkdir("d" * 100); os.chdir("d" * 100)
except OSError: pass
print("over")
""", _ends("exited", "stopped", "timed_out"), limits=SHORT),
    Hostile("locked-folders", "sh", "mkdir -p a/b/c; touch a/b/c/f; chmod 000 a/b/c a/b a; echo over", says="over"),
    Hostile("files-elsewhere", "sh", """
for place in / /usr /usr/bin /etc /dev /proc /sys /var /var/tmp /root /home /run /opt /lib; do
    ( : > $place/hostile ) 2>/dev/null && echo ESCAPED $place
done
echo over
""", says="over"),
)  # fmt: skip

OUTPUT = (
    Hostile("flood-of-output", "python", "while True: print('x' * 10_000)", _ends("output_limit")),
    Hostile("flood-of-output", "cpp", "int main() { for (;;) puts(\"x\"); }", _ends("output_limit")),
    Hostile("flood-of-output", "sh", "yes", _ends("output_limit")),
    Hostile("flood-of-errors", "python", "import sys\nwhile True: sys.stderr.write('x' * 10_000)",
            _ends("output_limit")),
    Hostile("flood-of-errors", "cpp", "int main() { for (;;) fputs(\"x\", stderr); }", _ends("output_limit")),
    Hostile("flood-of-errors", "sh", "yes >&2", _ends("output_limit")),
    Hostile("flood-of-both", "sh", "yes & yes >&2", _ends("output_limit")),
    Hostile("flood-and-gone", "sh", "head -c 3000000 /dev/zero", _ends("output_limit")),
)  # fmt: skip

TIME = (
    Hostile("infinite-loop", "python", "while True: pass", _SPIN, limits=SHORT),
    Hostile("infinite-loop", "cpp", "int main() { for (volatile int i = 0;; i++); }", _SPIN, limits=SHORT),
    Hostile("infinite-loop", "sh", "while :; do :; done", _SPIN, limits=SHORT),
    Hostile("sleeps-for-ever", "python", "import time\ntime.sleep(10**6)", _SPIN, limits=SHORT),
    Hostile("sleeps-for-ever", "sh", "sleep 1000000", _SPIN, limits=SHORT),
    Hostile("many-that-spin", "python", """
import os
for _ in range(2): os.fork()
while True: pass
""", _SPIN, limits=SandboxLimits(cpu_s=0.5, wall_s=30.0)),
    Hostile("many-short-lives", "sh", "while :; do /bin/true; done", _SPIN,
            limits=SandboxLimits(cpu_s=0.5, wall_s=30.0)),
    Hostile("ignores-every-signal", "python", """
import signal
for number in signal.valid_signals() - {9, 19}: signal.signal(number, signal.SIG_IGN)
while True: pass
""", _SPIN, limits=SHORT),
    Hostile("stops-itself", "sh", "kill -STOP $$; echo ESCAPED", _SPIN, limits=SHORT),
    Hostile("closes-its-output", "python", "import os, time\nfor f in (0, 1, 2): os.close(f)\ntime.sleep(10**6)", _SPIN,
            limits=SHORT),
)  # fmt: skip

ALL = (*BOMBS, *MEMORY, *DISK, *OUTPUT, *TIME)
