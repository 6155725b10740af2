"""Every bench says what its options are and what they are without being given, and refuses what it cannot use."""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bench.command_line import Command, Defaults
from tests.tidy.tree import ROOT

INTERNAL = {"bench.model_kill", "bench.otlp_sink", "bench.peers.child"}
"""Started by benches alone."""


def benches() -> Iterator[str]:
    """Those that somebody starts."""
    for path in sorted((ROOT / "bench").rglob("*.py")):
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
            if name not in INTERNAL:
                yield name


BENCHES = list(benches())


def started(name: str) -> Callable[[list[str]], Any]:
    """The function that reads its command line."""
    path = ROOT.joinpath(*name.split("."))
    main: Callable[[list[str]], Any] = import_module(f"{name}.__main__" if path.is_dir() else name).main
    return main


class Read(Exception):
    """Instead of what the command would do."""


def read_by(name: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The reader of its command line."""
    seen: list[Command] = []

    def stop(self: Command, *arguments: object) -> None:
        seen.append(self)
        raise Read

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(Read):
        started(name)([])
    return seen[0]


@pytest.mark.unit
@pytest.mark.parametrize("name", BENCHES)
def test_each_option_has_words_and_its_default(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None has only a name, and `--help` shows what holds without it."""
    reader = read_by(name, monkeypatch)
    assert (reader.prog, reader.formatter_class) == (f"python -m {name}", Defaults)
    assert reader.description
    for action in reader._actions:
        assert action.help, action.dest
    shown = " ".join(reader.format_help().split())
    for action in reader._actions:
        if isinstance(action.default, int | float) and not isinstance(action.default, bool) and action.help:
            words = " ".join(action.help.split()).partition("(default")[0].strip()
            assert f"{words} (default: {action.default})" in shown


@pytest.mark.unit
@pytest.mark.parametrize("name", BENCHES)
@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "inf", "x"])
def test_numbers_that_would_try_nothing_are_refused(name: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence on stderr, and 2."""
    option = next((o for o in ("--rollouts", "--records", "--minutes", "--rows", "--pairs", "--repeat", "--rounds")
                   if f'add_argument("{o}"' in source(name)), None)  # fmt: skip
    if option is None or (name, wrong) == ("bench.scaling", "0"):
        return
    needed = {"bench.exactness": ["--base-url", "x"], "bench.clients": ["--url", "x"], "bench.trace_picture": ["a"]}
    with pytest.raises(SystemExit) as ended:
        started(name)([*needed.get(name, []), option, wrong])
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n")) == (2, 1)
    assert f"argument {option}: {wrong!r} is no " in told


def source(name: str) -> str:
    """The text of its module."""
    path = ROOT.joinpath(*name.split("."))
    return (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("bench.peers", ["--from", "/nosuch.json"], "there is no file '/nosuch.json'"),
        ("bench.peers", ["--from", str(ROOT / "README.md")], "has no figures that --figures wrote"),
        ("bench.peers", ["--figures", "/nosuch/a.json"], "there is no folder '/nosuch' for it"),
        ("bench.peers", ["--peers", "dbos"], "there is no 'dbos'; there are midflight, "),
        ("bench.peers", ["--episodes", "0", "--kills", "0"], "measures nothing"),
        ("bench.scaling", ["--runs", str(ROOT / "README.md")], "is no file of runs"),
        ("bench.scaling", ["--repeat", "0", "--server-repeat", "0"], "measures nothing"),
        ("bench.scaling", ["--embedded", "10,x"], "'x' is no whole number from 1 on"),
        ("bench.scaling_controller", ["--processes", "4,6"], "multiples of four"),
        ("bench.trace_picture", ["/nosuch/a.svg"], "there is no folder '/nosuch' for it"),
        ("bench.trace_picture", ["/"], "'/' is a folder"),
        ("bench.flying", ["--folder", "/nosuch"], "there is no folder '/nosuch'"),
        ("bench.inflight", ["--folder", "/nosuch"], "there is no folder '/nosuch'"),
        ("bench.scale", ["--folder", "/nosuch"], "there is no folder '/nosuch'"),
        ("bench.ledger_rows", ["--folder", "/nosuch"], "there is no folder '/nosuch'"),
        ("bench.verifiers", ["--only", "nosuch"], "there is no 'nosuch'; there are code_gen, "),
        ("bench.store", ["--records", "1", "--repeat", "1", "--url", "/proc/nosuch"], "no store below /proc/nosuch"),
        ("bench.memory", ["/proc/nosuch", "1", "100", "1"], "no folder can be made here"),
        ("bench.cut_reading", ["x"], "'x' is no whole number from 2 on"),
    ],
)
def test_what_is_not_there_is_told_before_the_work(
    name: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files, folders and names: one sentence on stderr, and 2."""
    with pytest.raises(SystemExit) as ended:
        started(name)(arguments)
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n")) == (2, 1)
    assert says in told


@pytest.mark.unit
@pytest.mark.parametrize("given", [["--sizes", "1,2,3"], ["--sizes", "1", "2,3"]])
def test_a_list_is_separated_by_commas_or_spaces(given: list[str]) -> None:
    """Both ways come to the same."""
    reader = Command("x", "X.")
    reader.add_list("--sizes", lambda text: [int(part) for part in text.split(",")], [4, 5], "sizes")
    assert reader.parse_args(given).sizes == [1, 2, 3]
    assert reader.parse_args([]).sizes == [4, 5]
    assert "sizes; separated by commas (default: 4, 5)" in " ".join(reader.format_help().split())


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "missing"),
    [("bench.trace_picture", "opentelemetry"), ("tests.scenarios.matrix", "pytest"), ("bench.peers", "bench")],
)
def test_a_module_that_is_not_installed_costs_one_sentence(tmp_path: Path, command: str, missing: str) -> None:
    """It says where to look; a module of our own that is missing is a defect, with its traceback."""
    absent = f'raise ModuleNotFoundError("No module named {missing!r}", name={missing!r})\n'
    (tmp_path / ("json.py" if missing == "bench" else f"{missing}.py")).write_text(absent)
    done = subprocess.run(
        [sys.executable, "-P", "-m", command, "--help"], cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    if missing == "bench":
        assert "Traceback" in done.stderr
        return
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(f"{missing} is not installed; the README says ")
