"""Starting: Ctrl-C at any moment is one line and exit code 130, and no command imports what it does not use."""

import subprocess
import sys

import pytest

from .test_process import TIMEOUT_S

pytestmark = pytest.mark.process

INTERRUPTED_IMPORT = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
from orchestrator.cli.app import main
sys.argv = ["midflight", "checkpoints"]
main()
"""
WATCHED_IMPORTS = """
import sys
from orchestrator.cli.app import main
sys.argv = ["midflight", *sys.argv[1:]]
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.mark.parametrize("module", ["orchestrator.cli.commands", "typer", "store", "pydantic", "anyio", "rich.console"])
def test_an_interrupt_while_the_program_starts_is_one_line(module: str) -> None:
    """Whatever is being imported at that moment."""
    ran = python(INTERRUPTED_IMPORT.format(module=module))
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "midflight: interrupted\n")


@pytest.mark.parametrize("module", ["orchestrator.cli.commands", "typer", "orchestrator.collect", "participants"])
@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        ("SIGTERM", 75, "midflight: stopped before anything was begun\n"),
        ("SIGINT", 75, "midflight: stopped before anything was begun\n"),
        ("SIGUSR1", 2, "error: nothing.toml cannot be read"),
    ],
)
def test_a_run_hears_its_signals_while_it_starts(module: str, number: str, code: int, says: str) -> None:
    """Whatever is being imported at that moment: it ends with its own code, or goes on to what it says anyway."""
    script = INTERRUPTED_IMPORT.replace("SIGINT", number).replace('"checkpoints"', '"collect", "nothing.toml"')
    ran = python(script.format(module=module))
    assert (ran.returncode, ran.stdout) == (code, "")
    assert ran.stderr.startswith(says)


def test_a_signal_that_the_caller_ignores_stays_ignored_by_a_run() -> None:
    """As SIGINT is in what a script starts in the background."""
    ignored = INTERRUPTED_IMPORT.replace("import os, signal, sys", "import os, signal, sys\nIGNORE")
    ignored = ignored.replace("IGNORE", "signal.signal(signal.SIGINT, signal.SIG_IGN)")
    ran = python(ignored.replace('"checkpoints"', '"collect", "nothing.toml"').format(module="typer"))
    assert (ran.returncode, ran.stderr[:6]) == (2, "error:")


@pytest.mark.parametrize(
    "arguments", [("--version",), ("checkpoints", "--help"), ("ledger", "--help"), ("checkpoints", "list", "nowhere")]
)
def test_no_command_imports_what_it_does_not_use(arguments: tuple[str, ...]) -> None:
    """Neither participants nor the collection run nor a cloud library."""
    imported = set(python(WATCHED_IMPORTS, *arguments).stderr.split())
    assert "orchestrator.cli.app" in imported
    unused = {"participants", "orchestrator.collect", "orchestrator.fleet", "s3fs", "aiobotocore", "store.backends.s3"}
    assert not imported & {*unused, "uvicorn", "httpx", "starlette", "rich.progress"}
