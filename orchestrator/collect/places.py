"""Where a run may write: over nothing that it reads, and into no folder that something else of it owns.

The output, its failures and the temporary files of their merge are replaced whole; the segments, the checkpoint store,
the capture folder and that of the fleet belong each to one writer. Two places are the same where they come to one file
or folder, be it through links, a `file://` URL or doubled slashes. All of this is seen before a run is claimed, since
the merge comes last and would find it too late.
"""

import errno
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from store import NoSpace

from .config import BadPlace, Config
from .merge import FULL, failures_url, local_path, partial_path

_SCHEMES = {"s3a": "s3", "gcs": "gs"}
"""Other names of the same storage."""
OUTPUT, FAILURES = "run.output", "the failures file beside run.output"
SEGMENTS, STORE, CAPTURE = "the segments beside run.output", "checkpoint.url", "capture.folder"
FLEET = "fleet.folder"


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder, whatever it was called."""

    scheme: str
    """Empty for a local one."""
    parts: tuple[str, ...]

    @classmethod
    def of(cls, location: str) -> "Place":
        """Links are followed as far as there are any."""
        path = local_path(location)
        if path is not None:
            return cls("", Path(os.path.realpath(path)).parts)
        scheme, _, rest = location.partition("://")
        scheme = scheme.lower()
        return cls(_SCHEMES.get(scheme, scheme), tuple(part for part in rest.split("/") if part not in ("", ".")))

    def __str__(self) -> str:
        if not self.scheme:
            return str(self.path)
        bucket, *rest = self.parts or ("",)
        return f"{self.scheme}://{'/'.join([bucket.rpartition('@')[2], *rest])}"

    @property
    def path(self) -> Path:
        """Of a local one."""
        return Path(*self.parts)

    def within(self, folder: "Place") -> bool:
        """Whether it is this folder, or lies in it."""
        if self.scheme != folder.scheme:
            return False
        if self.parts[: len(folder.parts)] == folder.parts:
            return True
        if self.scheme or (found := _identity(folder.path)) is None:
            return False
        return any(_identity(above) == found for above in (self.path, *self.path.parents))  # a folder mounted twice


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None


def check_places(config: Config, file: Path | None) -> None:
    """Refuse places that would cost the run its own files, or that cannot take any. Raises BadPlace.

    `file` is the configuration's own; the modules of its servers are imported.
    """
    _check_names(config)
    written, folders = _written(config.run.output), _folders(config)
    read = _read(config, file, written)
    for (what, place), (other, theirs) in product(written.items(), read.items()):
        if place.within(theirs) and theirs.within(place):
            raise BadPlace(what, str(place), f"is {other} of this very run, which it would replace")
    for what, place in written.items():
        _check_file(what, place)
    for (what, place), (folder, its) in product([*written.items(), *read.items()], folders.items()):
        if place.within(its):
            raise BadPlace(what, str(place), f"lies in {folder} ({its}), which is written by its owner alone")
        if its.within(place):
            raise BadPlace(folder, str(its), f"lies in {what} ({place}), which is a file")
    for (what, place), (other, its) in combinations(folders.items(), 2):
        if place.within(its) or its.within(place):
            raise BadPlace(what, str(place), f"and {other} ({its}) lie in one another, and each has its own writer")
    for what, place in folders.items():
        _check_folder(what, place)


def _check_names(config: Config) -> None:
    output = config.run.output
    if output.endswith(("/", os.sep)) or output.rpartition("/")[2] in ("", ".", ".."):
        raise BadPlace(OUTPUT, output, "names a folder, and no file in it")


def _written(output: str) -> dict[str, Place]:
    """Every file that the merge replaces or removes."""
    files = {OUTPUT: output, FAILURES: failures_url(output)}
    places = {}
    for what, url in files.items():
        places[what] = Place.of(url)
        if (path := local_path(url)) is not None:
            places[f"a temporary file for {what}"] = Place.of(str(partial_path(path)))
    return places


def _folders(config: Config) -> dict[str, Place]:
    capture = config.capture.folder if config.capture else None
    fleet = config.fleet.folder if config.fleet else None
    named = {SEGMENTS: f"{config.run.output}.segments", STORE: config.checkpoint.url, CAPTURE: capture, FLEET: fleet}
    return {what: Place.of(location) for what, location in named.items() if location}


def _read(config: Config, file: Path | None, written: Mapping[str, Place]) -> dict[str, Place]:
    """What the run reads, of its modules those that a written file could be."""
    named = {"run.input": config.run.input, "the configuration": file and str(file)}
    places = {what: Place.of(location) for what, location in named.items() if location}
    names = {place.parts[-1] for place in written.values() if place.parts}
    for module in list(sys.modules.values()):
        source = getattr(module, "__file__", None)
        if isinstance(source, str) and os.path.basename(os.path.realpath(source)) in names:
            places[f"the module {module.__name__}"] = Place.of(source)
    return places


def _check_file(what: str, place: Place) -> None:
    """A file, or nothing, in a folder that takes files."""
    if place.scheme:
        return
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = _mode(what, place)
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "no plain file"
            raise BadPlace(what, str(place), f"is {kind}, and the run would put a file in its place")
    _check_folder(f"the folder of {what}", Place("", place.parts[:-1]))


def _check_folder(what: str, place: Place) -> None:
    """A folder that takes files, or that can be made."""
    if place.scheme:
        return
    for path in (place.path, *place.path.parents):
        try:
            mode = _mode(what, Place("", path.parts))
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            continue  # Something above it is a file, which is met next.
        if not stat.S_ISDIR(mode):
            where = "is a file" if path == place.path else f"cannot be made: {path} is a file"
            raise BadPlace(what, str(place), f"{where}, and a folder is needed")
        if not os.access(path, os.W_OK | os.X_OK):
            where = "" if path == place.path else f"cannot be made: {path} "
            raise BadPlace(what, str(place), f"{where}cannot be written to")
        return


def _mode(what: str, place: Place) -> int:
    try:
        return place.path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:  # Among them a name that is too long, and links that go round.
        raise BadPlace(what, str(place), f"cannot be used: {error.strerror}") from error


def try_places(output: str) -> None:
    """Make and remove a file where the merge will: only that tells what can be written. Raises BadPlace, NoSpace."""
    for what, url in ((OUTPUT, output), (FAILURES, failures_url(output))):
        path = local_path(url)
        if path is None:
            continue
        trial = _trial(path)
        try:
            os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))
            trial.unlink(missing_ok=True)
        except OSError as error:
            if error.errno in FULL:
                raise NoSpace("open", url, str(error), hint="Free some space and run the same command again") from error
            told = f"cannot be written: {os.strerror(error.errno or errno.EIO)}"
            raise BadPlace(what, str(path), told) from error


def _trial(path: Path) -> Path:
    """As long as the name of the merge's own temporary file, which a live run may be writing."""
    name = partial_path(path).name
    return path.with_name(f"{name.removesuffix('.merging.tmp')}.looking.tmp")
