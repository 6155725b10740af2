"""The copy of the tree that bugs are planted in: the checkout itself is only read."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("midflight", "orchestrator", "participants", "store", "tests", "bench", "examples", "docs")
_FILES = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")


@contextmanager
def copied() -> Iterator[Path]:
    """A copy for as long as the block runs; without compiled files, which would name those of the checkout."""
    with tempfile.TemporaryDirectory(prefix="midflight-mutants-") as folder:
        copy = Path(folder) / "tree"
        for name in _FOLDERS:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in _FILES:
            shutil.copy2(ROOT / name, copy / name)
        yield copy


@contextmanager
def planted(mutant: Mutant, copy: Path) -> Iterator[None]:
    """The bug is in the copy while the block runs."""
    path = copy / mutant.file
    sound = path.read_text(encoding="utf-8")
    mutated = mutant.applied(sound)
    try:
        _write(path, mutated)
        yield
    finally:
        _write(path, sound)


def _write(path: Path, text: str) -> None:
    """Python tells a compiled file's source by size and second: a bug of the same length would not be seen."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
