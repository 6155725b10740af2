"""Where a run would write over what is its own, or cannot write at all: refused by name, before anything is claimed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.collect import Config, ConfigError
from orchestrator.collect.config import BadPlace
from orchestrator.collect.merge import local_path
from orchestrator.collect.places import Place, check_places, try_places
from participants.servers import counter

from .test_in_process import OneTool, configured, run

pytestmark = pytest.mark.unit
Prepare = Callable[[Path], object]


def placed(folder: Path, **places: Any) -> Config:
    """A run with these places, relative to a folder; `store` and `capture` are folders, the rest of `[run]`."""
    config = configured(folder)

    def at(name: str) -> str:
        return name if "://" in name else f"{folder}/{name}"

    table: dict[str, Any] = {name: at(places[name]) for name in ("output", "input") if name in places}
    update: dict[str, Any] = {"run": config.run.model_copy(update=table)}
    if "store" in places:
        update["checkpoint"] = config.checkpoint.model_copy(update={"url": at(places["store"])})
    changed = config.model_copy(update=update)
    if "capture" not in places:
        return changed
    return Config.model_validate({**changed.model_dump(), "capture": {"folder": at(places["capture"])}})


def nothing(folder: Path) -> None:
    """Is needed beforehand."""


def move_input(folder: Path) -> None:
    """Into the segments."""
    (folder / "out.jsonl.segments").mkdir()
    (folder / "rows.jsonl").rename(folder / "out.jsonl.segments" / "rows.jsonl")


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


OWN: list[tuple[str, dict[str, str], Prepare, str]] = [
    ("the input", {"output": "rows.jsonl"}, nothing, "run.output: .* is run.input of this very run"),
    ("the input, through dots", {"output": "./x/../rows.jsonl"}, nothing, "is run.input"),
    ("the input, by URL", {"output": "file://{folder}/rows.jsonl"}, nothing, "is run.input"),
    (
        "the input, through a link",
        {"output": "link/rows.jsonl"},
        lambda folder: (folder / "link").symlink_to(folder),
        "is run.input",
    ),
    (
        "the input, as a link",
        {"output": "link.jsonl"},
        lambda folder: (folder / "link.jsonl").symlink_to("rows.jsonl"),
        "is run.input",
    ),
    (
        "the input, as the failures",
        {"output": "rows.jsonl", "input": "rows_failures.jsonl"},
        lambda folder: (folder / "rows.jsonl").rename(folder / "rows_failures.jsonl"),
        "the failures file beside run.output: .* is run.input",
    ),
    ("the configuration", {"output": "run.toml"}, nothing, "run.output: .* is the configuration"),
    ("the code of a server", {"output": "file://{module}"}, nothing, "is the module participants.servers.counter"),
    ("the store", {"output": "store"}, nothing, "lies in checkpoint.url"),
    ("in the store", {"output": "store/a/out.jsonl"}, nothing, "run.output: .* lies in checkpoint.url"),
    ("in the ledger", {"output": "led/out.jsonl", "capture": "led"}, nothing, "lies in capture.folder"),
    ("the store in the segments", {"store": "out.jsonl.segments/s"}, nothing, "lie in one another"),
    ("the store in the output", {"store": "out.jsonl/s"}, nothing, "checkpoint.url: .* lies in run.output"),
    ("the ledger in the store", {"capture": "store/led"}, nothing, "capture.folder.*lie in one another"),
    ("the ledger is the store", {"capture": "store"}, nothing, "lie in one another"),
    (
        "the input in the segments",
        {"input": "out.jsonl.segments/rows.jsonl"},
        move_input,
        "run.input: .* lies in the segments",
    ),
    ("in a store by URL", {"output": "s3://b//runs/x.jsonl", "store": "S3A://b/runs/"}, nothing, "checkpoint.url"),
    ("a folder", {"output": "folder"}, lambda folder: (folder / "folder").mkdir(), "run.output: .* is a folder"),
    ("the folder of the run", {"output": "."}, nothing, "names a folder"),
    (
        "a folder with the store in it",
        {"output": "folder", "store": "folder/store"},
        lambda folder: (folder / "folder").mkdir(),
        "run.output: .* is a folder",
    ),
    ("a folder to be", {"output": "folder/"}, nothing, "names a folder"),
    ("a folder in a bucket", {"output": "s3://b/"}, nothing, "names a folder"),
    ("a device", {"output": "null"}, lambda folder: (folder / "null").symlink_to(os.devnull), "is no plain file"),
    (
        "failures that are a folder",
        {},
        lambda folder: (folder / "out_failures.jsonl").mkdir(),
        "the failures file beside run.output: .* is a folder",
    ),
    (
        "segments that are a file",
        {},
        lambda folder: (folder / "out.jsonl.segments").touch(),
        "the segments beside run.output: .* is a file",
    ),
    (
        "below a file",
        {"output": "file/a/out.jsonl"},
        lambda folder: (folder / "file").touch(),
        "cannot be made: .*file is a file",
    ),
    ("a ledger that is a file", {"capture": "rows.jsonl"}, nothing, "rows.jsonl"),
    ("a name that is too long", {"output": "x" * 300}, nothing, "cannot be used: File name too long"),
    ("a name that leaves no room", {"output": "x" * 230 + ".jsonl"}, nothing, "cannot be used: File name too long"),
]


@pytest.mark.enumerated(4)
@pytest.mark.anyio
@pytest.mark.parametrize(("places", "prepare", "says"), [case[1:] for case in OWN], ids=[case[0] for case in OWN])
async def test_a_place_that_is_the_runs_own_or_takes_nothing_is_refused_before_the_claim(
    tmp_path: Path, places: dict[str, str], prepare: Prepare, says: str
) -> None:
    """By name; what is there stays as it was, no store is made, and no call either."""
    named = {name: place.format(folder=tmp_path, module=counter.__file__) for name, place in places.items()}
    (tmp_path / "run.toml").write_text("# ours")
    config = placed(tmp_path, **named)
    prepare(tmp_path)
    before = contents(tmp_path)
    upstream = OneTool()
    with pytest.raises(ConfigError, match=says):
        await run(config, upstream, file=tmp_path / "run.toml")
    assert upstream.calls == 0
    assert before == contents(tmp_path)


def test_places_that_only_look_alike_are_no_obstacle(tmp_path: Path) -> None:
    """Names that begin alike, other buckets, and a store beside the output."""
    check_places(placed(tmp_path, output="store.jsonl", store="store"), None)
    check_places(placed(tmp_path, output="s3://a/runs/x.jsonl", store="s3://b/runs", capture="led"), None)
    check_places(placed(tmp_path, output="s3://a/runs/x.jsonl", store="s3://a/runs/x"), None)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_folder_that_is_mounted_twice_is_one_place(tmp_path: Path) -> None:
    """Told by what the file system says of it, where the names do not."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "in").touch()
    os.link(tmp_path / "store" / "in", tmp_path / "other")
    assert Place.of(str(tmp_path / "other")).within(Place.of(str(tmp_path / "store" / "in")))
    assert not Place.of(str(tmp_path / "other")).within(Place.of(str(tmp_path / "store")))


def test_a_url_shows_no_credentials_and_names_its_path_as_the_store_does() -> None:
    """What stands before an @ may be a password; escapes of a file URL are characters."""
    assert str(Place.of("s3://key:secret@bucket/x")) == "s3://bucket/x"
    assert local_path("file:///a%20b/out.jsonl") == Path("/a b/out.jsonl")
    assert local_path("FILE://localhost/out.jsonl") == Path("/out.jsonl")
    assert local_path("s3://b/out.jsonl") is None


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system that takes no new files")
def test_a_place_that_takes_no_file_is_found_by_trying(tmp_path: Path) -> None:
    """Permissions do not tell everything: one file is made where the merge will make its own, and removed."""
    with pytest.raises(BadPlace, match=r"run\.output: /proc/out\.jsonl cannot be written"):
        try_places("/proc/out.jsonl")
    try_places(str(tmp_path / "out.jsonl"))
    assert not list(tmp_path.iterdir())
