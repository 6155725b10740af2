"""Without the extra everything but the real worker runs, and that says what it needs."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

BLOCKED = "import sys; sys.modules.update(dict.fromkeys(['torch', 'safetensors', 'safetensors.torch'])); "
LIMIT_S = 50


def run(program: str) -> "subprocess.CompletedProcess[str]":
    """A Python program in which torch cannot be imported."""
    command = [sys.executable, "-c", BLOCKED + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_nothing_else_needs_the_extra() -> None:
    """The backend, the package of the worker and the public names are imported without torch."""
    program = "import participants.inference, participants.worker, midflight, orchestrator.cli.backend"
    assert run(program).returncode == 0
    loaded = run(program + "; sys.exit(any(sys.modules.get(name) for name in ('torch', 'transformers')))")
    assert loaded.returncode == 0, loaded.stderr


def test_the_real_worker_says_what_it_needs() -> None:
    """Started without torch, it names the extra, and exits as a command that could not start."""
    result = run("sys.argv = ['midflight', 'backend', '--real']; from orchestrator.cli.app import main; main()")
    assert result.returncode == 2
    assert "pip install 'midflight[worker]'" in result.stderr
    assert "Traceback" not in result.stderr
