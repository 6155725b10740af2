"""Our own reading, writing and removing below a folder that a hostile program has filled."""

import os
from pathlib import Path

import pytest

from participants.workfolder import is_there, read_text, remove_tree, root_of, write_file

from .trees import facts

pytestmark = pytest.mark.unit


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What nobody may touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    return folder


@pytest.fixture
def inside(tmp_path: Path, outside: Path) -> Path:
    """A folder with links to it."""
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "file").write_text("text")
    (folder / "to_file").symlink_to(outside / "secret")
    (folder / "to_folder").symlink_to(outside)
    (folder / "to_own").symlink_to("file")
    os.mkfifo(folder / "fifo")
    return folder


@pytest.mark.parametrize(
    "path", [b"to_file", b"to_folder", b"to_folder/secret", b"to_own", b"fifo", b"none", b"file/x"]
)
def test_only_regular_files_are_read_and_no_link_is_followed(inside: Path, path: bytes) -> None:
    """A fifo does not hang, and a link is as good as nothing."""
    with root_of(inside) as root:
        assert read_text(root, b"file", 100) == b"text"
        assert read_text(root, b"file", 2) == b"te"
        assert read_text(root, path, 100) is None


def test_a_link_is_there_and_what_lies_behind_it_is_not(inside: Path) -> None:
    """A dangling one too."""
    with root_of(inside) as root:
        assert is_there(root, b"to_file")
        assert not is_there(root, b"to_folder/secret")
        assert not is_there(root, b"none")


@pytest.mark.parametrize("path", [b"to_file", b"to_folder/new", b"to_folder/sub/new", b"to_own", b"fifo", b"file/x"])
def test_nothing_is_written_through_a_link(inside: Path, outside: Path, path: bytes) -> None:
    """Neither a file nor the folders on its way."""
    before = facts(outside)
    with root_of(inside) as root, pytest.raises(OSError):  # noqa: PT011 - which one is the kernel's business
        write_file(root, path, b"x")
    assert facts(outside) == before
    assert (inside / "file").read_text() == "text"


def test_a_file_is_written_with_its_folders_and_in_place_of_another(inside: Path) -> None:
    """Longer or shorter than what was there."""
    with root_of(inside) as root:
        for data in (b"long text", b"x"):
            write_file(root, b"new/sub/file", data)
            assert (inside / "new/sub/file").read_bytes() == data


def test_removing_takes_what_is_inside_and_nothing_else(inside: Path, outside: Path) -> None:
    """Links go, what they point to stays; a folder that is not there is no error."""
    before = facts(outside)
    remove_tree(inside)
    remove_tree(inside)
    assert not inside.exists()
    assert facts(outside) == before


def test_the_deepest_folders_are_removed(tmp_path: Path) -> None:
    """Deeper than descriptors or calls can be nested, and longer than a path can be."""
    top = tmp_path / "top"
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d" * 50, dir_fd=fd)
        deeper = os.open("d" * 50, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    remove_tree(top)
    assert not top.exists()
