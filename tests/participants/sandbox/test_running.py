"""What a program gets and what is said of it: input, output, codes, folders, limits, turns."""

import os
import signal
import time
from pathlib import Path

import anyio
import pytest

from participants import Code, ParticipantError
from participants.sandbox import WORK, Program, Sandbox, SandboxLimits, compile_cpp, python_paths, write_files

from .ways import Target, WithoutBubblewrap

pytestmark = [pytest.mark.process, pytest.mark.anyio]

PYTHON, _ = python_paths()


async def test_a_program_reads_its_input_and_both_outputs_come_back(sandbox: Sandbox) -> None:
    """Standard input arrives whole, and what is written on each stream comes back apart, with the exit code."""
    source = "import sys; text = sys.stdin.read(); print(len(text)); print('aside', file=sys.stderr); sys.exit(7)"
    ran = await sandbox.run(Program(command=[PYTHON, "-c", source], stdin=b"x" * 3_000_000))
    assert (ran.ended, ran.exit_code, ran.signal) == ("exited", 7, None)
    assert (ran.stdout, ran.stderr) == (b"3000000\n", b"aside\n")


async def test_the_input_can_be_opened_by_name_and_not_changed(sandbox: Sandbox) -> None:
    """/dev/stdin works, and writing to standard input fails."""
    source = "cat /dev/stdin; ( echo changed >&0 ) 2>/dev/null || echo refused"
    ran = await sandbox.run(Program(command=["sh", "-c", source], stdin=b"one\n"))
    assert ran.stdout == b"one\nrefused\n"


async def test_input_that_nobody_reads_hangs_nothing(sandbox: Sandbox) -> None:
    """Megabytes for a program that ends at once."""
    ran = await sandbox.run(Program(command=["true"], stdin=bytes(8_000_000)))
    assert (ran.ended, ran.exit_code) == ("exited", 0)
    assert ran.wall_s < 5.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
async def test_a_signal_that_ended_it_is_told(sandbox: Sandbox, number: int) -> None:
    """The signal, and no exit code."""
    ran = await sandbox.run(Program(command=["sh", "-c", f"kill -{int(number)} $$"]))
    assert (ran.ended, ran.exit_code, ran.signal) == ("signalled", None, number)


async def test_a_program_that_is_not_there_ends_as_a_shell_says_it(sandbox: Sandbox) -> None:
    """127 where there is none, and 126 where it cannot be executed or its arguments are too long."""
    assert (await sandbox.run(Program(command=["no-such-program"]))).exit_code == 127
    assert (await sandbox.run(Program(command=["/usr"]))).exit_code == 126
    assert (await sandbox.run(Program(command=["echo", "x" * 4_000_000]))).exit_code == 126


async def test_only_its_own_environment_is_seen(sandbox: Sandbox) -> None:
    """Fixed names, those of the program, and nothing of the server."""
    ran = await sandbox.run(Program(command=["env"], environment={"NAME": "väl ue", "LANG": "C"}))
    seen = dict(line.split("=", 1) for line in ran.stdout.decode().splitlines())
    assert seen.keys() - {"PWD"} == {"PATH", "HOME", "LANG", "TMPDIR", "MALLOC_ARENA_MAX", "NAME"}
    assert (seen["NAME"], seen["LANG"]) == ("väl ue", "C")


async def test_a_folder_given_is_kept_and_used_again(sandbox: Sandbox, folder: Path) -> None:
    """What one program writes there, the next one and the server find; and both change what the other wrote."""
    await sandbox.run(Program(command=["sh", "-c", "mkdir sub; echo one > sub/a; echo $$ > sub/b"], folder=folder))
    assert (folder / "sub" / "a").read_text() == "one\n"
    await write_files(folder, {"sub/a": "two\n", "new/c": b"three\n"})
    ran = await sandbox.run(
        Program(command=["sh", "-c", "cat sub/a new/c; echo four > new/c; rm sub/b"], folder=folder)
    )
    assert (ran.stdout, ran.stderr) == (b"two\nthree\n", b"")
    assert (folder / "new" / "c").read_text() == "four\n"
    assert not (folder / "sub" / "b").exists()


async def test_a_program_cannot_lock_the_next_one_out_of_its_folder(sandbox: Sandbox, folder: Path) -> None:
    """Without permissions for anybody it is given those of its owner again."""
    await sandbox.run(Program(command=["sh", "-c", "echo one > file; chmod 000 ."], folder=folder))
    ran = await sandbox.run(Program(command=["sh", "-c", "cat file; echo two > other"], folder=folder))
    assert (ran.exit_code, ran.stdout) == (0, b"one\n")


async def test_a_path_of_its_own_leads_nobody_else_astray(sandbox: Sandbox) -> None:
    """What containment itself starts is found without it."""
    ran = await sandbox.run(Program(command=["/usr/bin/printf", "here"], environment={"PATH": "/nowhere"}))
    assert (ran.exit_code, ran.stdout) == (0, b"here")


@pytest.mark.parametrize("wall_s", [float("inf"), float("nan"), -1.0])
def test_what_is_no_limit_is_refused_by_its_name(wall_s: float) -> None:
    """Before anything runs."""
    with pytest.raises(ValueError, match="wall_s"):
        SandboxLimits(wall_s=wall_s)


@pytest.mark.parametrize("way", ["bubblewrap"], indirect=True)
async def test_a_folder_in_a_place_that_others_cannot_reach_serves(sandbox: Sandbox, tmp_path: Path) -> None:
    """Under bubblewrap: below folders of the server alone, and other names for what is read-only."""
    os.chmod(tmp_path, 0o700)
    (tmp_path / "work").mkdir(mode=0o700)
    (tmp_path / "more").write_text("more")
    program = Program(
        command=["sh", "-c", "pwd; cat /extra/more; echo x > f"],
        folder=tmp_path / "work",
        read_only={"/extra/more": tmp_path / "more"},
    )
    ran = await sandbox.run(program)
    assert ran.stdout == f"{WORK}\nmore".encode(), ran
    assert (tmp_path / "work" / "f").read_text() == "x\n"


async def test_what_is_read_only_cannot_be_written(sandbox: Sandbox, target: Target) -> None:
    """It is read under its own name in both ways, and stays as it is."""
    path = target.secret
    command = ["sh", "-c", f"cat {path}; (echo x > {path}) 2>/dev/null || echo; rm -f {path} 2>/dev/null || echo kept"]
    ran = await sandbox.run(Program(command=command, read_only={str(path): path}))
    assert ran.stdout.decode() == f"{path.read_text()}\nkept\n"


async def test_another_name_for_what_is_read_only_needs_bubblewrap(folder: Path) -> None:
    """Without it that is a failure of the executor."""
    with pytest.raises(ParticipantError, match="only under its own name") as caught:
        await WithoutBubblewrap().run(Program(command=["true"], read_only={"/data": folder}))
    assert caught.value.code == Code.EXECUTOR_FAILED


async def test_bubblewrap_can_be_required() -> None:
    """Where there is none, a run fails then."""
    with pytest.raises(ParticipantError) as caught:
        await WithoutBubblewrap(require="bubblewrap").run(Program(command=["true"]))
    assert caught.value.code == Code.EXECUTOR_FAILED


async def test_a_folder_that_is_not_there_is_a_failure_of_the_executor(sandbox: Sandbox, folder: Path) -> None:
    """As is a link in its place; the program was not run."""
    (folder / "link").symlink_to("/usr")
    for name in ("missing", "link"):
        with pytest.raises(ParticipantError, match="is no folder") as caught:
            await sandbox.run(Program(command=["true"], folder=folder / name))
        assert caught.value.code == Code.EXECUTOR_FAILED


async def test_links_that_a_program_left_change_nothing_elsewhere(
    sandbox: Sandbox, folder: Path, target: Target
) -> None:
    """The next run, and writing files for it, leave what they point at as it was."""
    before = target.secret.stat()
    links = f"ln -s {target.secret} main.cpp; ln -s {target.secret.parent} sub; ln -s {target.secret} program"
    await sandbox.run(Program(command=["sh", "-c", links], folder=folder))
    ran = await sandbox.run(Program(command=["sh", "-c", "chmod -R 777 .; chown -R 0 . 2>/dev/null"], folder=folder))
    assert ran.ended == "exited"
    await write_files(folder, {"main.cpp": "int main() {}"})
    with pytest.raises(ParticipantError, match="cannot be written"):
        await write_files(folder, {"sub/secret": "changed"})
    assert (target.secret.stat(), target.secret.read_text()) == (before, "the secret of the server")
    assert not (folder / "main.cpp").is_symlink()


async def test_the_network_is_there_where_it_is_asked_for(sandbox: Sandbox, target: Target) -> None:
    """The same connection succeeds with it and fails without."""
    connect = "import os, socket; socket.create_connection(('127.0.0.1', int(os.environ['TARGET_PORT'])), 5)"
    program = Program(command=[PYTHON, "-c", connect], environment=target.environment, network=True)
    assert (await sandbox.run(program)).exit_code == 0
    program = Program(command=[PYTHON, "-c", connect], environment=target.environment)
    assert (await sandbox.run(program)).exit_code == 1


async def test_time_and_memory_are_measured(sandbox: Sandbox) -> None:
    """Half a second of work of two processes, and the memory of the largest."""
    source = """
import os, time
held = bytearray(60_000_000)
child = os.fork()
while time.process_time() < 0.25: pass
if child: os.wait()
"""
    ran = await sandbox.run(Program(command=[PYTHON, "-c", source]))
    assert 0.45 < ran.cpu_s < 1.5
    assert 60_000_000 < ran.peak_bytes < 200_000_000
    assert ran.wall_s >= 0.25


async def test_no_more_programs_run_at_once_than_may(sandbox: Sandbox, folder: Path) -> None:
    """Six runs in two turns each: never more than two at a time, and waiting does not count as running."""
    running, most = 0, 0
    slow = Program(command=["sleep", "0.3"])

    class Counted(type(sandbox)):  # type: ignore[misc]
        def _bubblewrap(self) -> str:
            nonlocal running, most
            running += 1
            most = max(most, running)
            path: str = super()._bubblewrap()
            return path

    counted = Counted(at_once=2)
    began = time.monotonic()

    async def one() -> None:
        nonlocal running
        ran = await counted.run(slow, SandboxLimits(wall_s=5.0))
        running -= 1
        assert ran.ended == "exited"
        assert ran.wall_s < 2.0

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(one)
    assert most <= 3  # One may begin between the end of another's turn and its count.
    assert time.monotonic() - began > 0.9


@pytest.mark.parametrize("command", [[], ["a\0b"]], ids=["none", "nul"])
async def test_a_command_that_no_process_can_have_is_refused(sandbox: Sandbox, command: list[str]) -> None:
    """Before anything is started."""
    with pytest.raises(ParticipantError) as caught:
        await sandbox.run(Program(command=command))
    assert caught.value.code == Code.INVALID_REQUEST


async def test_cpp_is_compiled_contained(sandbox: Sandbox, folder: Path) -> None:
    """A header beside it is found; a secret is not included; what the compiler says comes back."""
    files = {"lib/answer.h": "const int answer = 42;"}
    source = '#include "lib/answer.h"\n#include <cstdio>\nint main() { printf("%d\\n", answer); }'
    ran = await compile_cpp(sandbox, source, folder, files=files, flags=["-O0"])
    assert (ran.ended, ran.exit_code) == ("exited", 0), ran.stderr
    assert (await sandbox.run(Program(command=["./program"], folder=folder))).stdout == b"42\n"
    stolen = await compile_cpp(sandbox, '#include "/etc/passwd"\nint main() {}', folder, output="thief")
    assert stolen.exit_code == 1
    assert b"root:" not in stolen.stderr
    assert not (folder / "thief").exists()


async def test_a_source_that_never_stops_compiling_is_ended(sandbox: Sandbox, folder: Path) -> None:
    """The compiler has limits like any program."""
    source = "template<int N, class T> struct A : A<N - 1, A<N - 1, T>> {}; int main() { A<100000, int> a; }"
    limits = SandboxLimits(wall_s=3.0, memory_bytes=1 << 30)
    ran = await compile_cpp(sandbox, source, folder, limits=limits)
    assert ran.ended in {"timed_out", "stopped", "exited", "output_limit"}
    assert ran.exit_code != 0
    assert ran.wall_s < 4.0


@pytest.mark.skipif(os.getuid() != 0, reason="only the administrator can have a user for each run")
async def test_each_run_is_another_user(folder: Path) -> None:
    """Without bubblewrap too, no program runs as the administrator, and two do not run as the same user."""
    seen = {(await WithoutBubblewrap().run(Program(command=["id", "-u"]))).stdout for _ in range(3)}
    assert len(seen) == 3
    assert all(int(uid) >= 1 << 30 for uid in seen)
    await WithoutBubblewrap().run(Program(command=["true"], folder=folder))
    assert await anyio.Path(folder).owner() == "root"
