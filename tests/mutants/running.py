"""Runs tests and simulations in the copy, each in a process of its own, and says what they found.

The process is a fork of this one, which has imported what tests need of others' packages, and nothing of ours: that
takes most of the time of a pytest. Its `sys.path` has the copy and not the checkout, and `PYTHONPATH` of what it starts
has the copy before whatever is installed.
"""

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson
import pytest

from .copied import ROOT
from .mutant import Seeds

LIMIT_S = 900.0
"""For one process, on a machine with much else to do."""
TEST_LIMIT_S = 120
OURS = ("midflight", "orchestrator", "participants", "store", "tests", "bench", "examples")
OTHERS = ("anyio", "blockbuster", "fsspec", "httpx", "hypothesis", "orjson", "pydantic", "starlette.applications",
          "tenacity", "typer", "uvicorn", "zstandard", "aiohttp", "websockets")  # fmt: skip
_PLUGINS = ("anyio.pytest_plugin", "pytest_timeout", "_hypothesis_pytestplugin")
"""Not imported before: pytest has to rewrite their asserts."""
_OPTIONS = ("-o", "addopts=", "-q", "-x", "--tb=short", "--strict-markers", "-p", "no:cacheprovider")


class Broken(Exception):
    """What ran has come to no verdict."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found; empty where everything passed."""

    test: str = ""
    """The first test that failed, without its parameters."""
    seed: int | None = None
    """The first seed that showed it."""
    seeds: int = 0
    """How many were tried."""
    invariant: int = 0
    """That the seed showed broken; 0 for a defect, an error that nobody may end with."""
    seconds: float = 0.0

    @property
    def caught(self) -> bool:
        """Whether anything was found."""
        return bool(self.test) or self.seed is not None


class _FirstFailure:
    """A plugin of pytest that remembers what failed first, and whether anything ran."""

    def __init__(self) -> None:
        self.test = ""
        self.collecting = ""
        self.ran = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test is over."""
        self.ran += report.when == "call"
        if report.failed and not self.test:
            self.test = report.nodeid.partition("[")[0]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module was imported, or could not be."""
        if report.failed and not self.collecting:
            self.collecting = f"{report.nodeid}: {report.longreprtext[-2000:]}"


def warm_up() -> None:
    """Import what tests need and is not ours."""
    for name in OTHERS:
        import_module(name)


def where(copy: Path) -> dict[str, str]:
    """From which file each of our packages comes in the copy: in a test, and in a program that is started there."""
    found: dict[str, str] = _in_fork(copy, _where)
    return found


def _where() -> dict[str, str]:
    import subprocess

    here = {name: str(import_module(name).__file__) for name in OURS[:4]}
    script = "import sys, store, orchestrator.cli.app as app; print(store.__file__); print(app.__file__)"
    elsewhere = subprocess.run([sys.executable, "-c", script], cwd="/", capture_output=True, text=True, check=True)
    return {**here, **{f"started {n}": line for n, line in enumerate(elsewhere.stdout.splitlines())}}


def run_tests(copy: Path, tests: tuple[str, ...]) -> Found:
    """Run tests up to the first one that fails. Raises Broken where they cannot be run at all."""
    began = time.monotonic()
    found = _in_fork(copy, lambda: _pytest(tests))
    if found["broken"]:
        raise Broken(found["broken"])
    return Found(test=found["test"], seconds=time.monotonic() - began)


def _pytest(tests: tuple[str, ...]) -> dict[str, str]:
    first = _FirstFailure()
    plugins = [part for name in _PLUGINS for part in ("-p", name)]
    code = pytest.main([*_OPTIONS, *plugins, "--timeout", str(TEST_LIMIT_S), *tests], plugins=[first])
    broken = first.collecting
    if not broken and (code not in (0, 1) or not (first.ran or first.test)):
        broken = f"pytest ended with {code} after {first.ran} tests of {', '.join(tests)}"
    return {"test": first.test, "broken": broken}


def run_seeds(copy: Path, seeds: Seeds) -> Found:
    """Simulate seed after seed, up to the first one that shows something."""
    began = time.monotonic()
    found = _in_fork(copy, lambda: import_module("tests.mutants.simulated").look(seeds))
    return Found(**found, seconds=time.monotonic() - began)


def _in_fork(copy: Path, work: Callable[[], Any]) -> Any:
    """What `work` gives, in a process whose tree is the copy. Raises Broken where it gives nothing, or hangs."""
    reading, writing = os.pipe()
    output = copy.parent / "output"
    child = os.fork()
    if child == 0:
        os.close(reading)
        _become(copy, output, writing, work)
    os.close(writing)
    held = os.pidfd_open(child)
    try:
        if not select.select([held], [], [], LIMIT_S)[0]:
            raise Broken(f"it hangs: nothing came of it in {LIMIT_S:.0f} s")
        with open(reading, "rb", closefd=False) as pipe:
            answer = pipe.read()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # With what it has started; it is the first of its group.
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
        os.close(held)
        os.close(reading)
    if not answer:
        raise Broken(f"a process ended without an answer:\n{output.read_text(errors='replace')[-3000:]}")
    return orjson.loads(answer)


def _become(copy: Path, output: Path, writing: int, work: Callable[[], Any]) -> None:
    """The rest of the forked process."""
    code = 1
    try:
        os.setsid()
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        sys.path[:] = [str(copy), *(path for path in sys.path if Path(path or ".").resolve() not in (ROOT, copy))]
        sys.path_importer_cache.clear()
        for name in list(sys.modules):
            if name.partition(".")[0] in OURS:
                del sys.modules[name]
        os.write(writing, orjson.dumps(work()))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
