"""How much was tried, in the summary of the test run."""

from collections.abc import Callable

import pytest

_TALLIES = pytest.StashKey[list[str]]()
Tally = Callable[[str, object], None]


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count."""
    config.stash[_TALLIES] = []


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """Say how much a test has tried."""
    lines = request.config.stash.setdefault(_TALLIES, [])
    return lambda name, tried: lines.append(f"{name}: {tried}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print it, a line each."""
    lines = config.stash.get(_TALLIES, [])
    if lines:
        terminalreporter.section("crash safety: what was tried")
        for line in lines:
            terminalreporter.write_line(line)
