"""Where working folders lie: what a dead process has left is removed, and nothing else."""

import os
from pathlib import Path

import pytest

from participants.workfolder import Place

from .trees import facts

pytestmark = pytest.mark.unit


def dying(root: Path) -> Path:
    """What a process leaves that was killed with a session: the kernel gives its lock back."""
    place = Place(root)
    folder = place.fresh("r0")
    (folder / "file").touch()
    (folder / "link").symlink_to("/etc")
    assert place._lock is not None
    os.close(place._lock)
    return folder.parent


def test_the_next_process_removes_what_a_dead_one_has_left(tmp_path: Path) -> None:
    """With all of its sessions; that of a living one stays."""
    living = Place(tmp_path / "here")
    folder = living.fresh("session")
    left = dying(tmp_path / "here")
    assert left.exists()
    Place(tmp_path / "here").close()
    assert not left.exists()
    assert folder.exists()
    living.close()
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [".lock"]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """Other names, a file or link of such a name, and a folder without a lock that has something in it."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").touch()
    root = tmp_path / "here"
    root.mkdir()
    (root / "server-of-somebody").mkdir()
    (root / f"server-{'0' * 16}").touch()
    (root / f"server-{'1' * 16}").symlink_to(other)
    (root / f"server-{'2' * 16}").mkdir()
    (root / f"server-{'2' * 16}" / "precious").touch()
    before = facts(tmp_path)
    Place(root).close()
    after = facts(tmp_path)
    assert {path for path in before if path not in after} == set()
    assert set(after) - set(before) == {b"/here/.lock"}


def test_one_that_was_half_removed_is_removed(tmp_path: Path) -> None:
    """Its lock is gone already, and it is empty."""
    left = tmp_path / f"server-{'3' * 16}"
    left.mkdir()
    Place(tmp_path).close()
    assert not left.exists()


def test_a_root_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """Also one that is a link: what lies there may be somebody else's."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for root in ("open", "link"):
        with pytest.raises(PermissionError, match="this user alone"):
            Place(tmp_path / root)


def test_names_are_made_safe_and_never_the_same(tmp_path: Path) -> None:
    """Whatever a session is called, its folder is one below the process's own, for this user alone."""
    place = Place(tmp_path)
    made = [place.fresh(name) for name in ("../../x", "r0/1.0#0-s", "n" * 300, "", "", "\n\u202e")]
    assert len({folder.parent for folder in made}) == 1
    assert len(set(made)) == len(made)
    assert {folder.stat().st_mode & 0o777 for folder in made} == {0o700}
    place.close()
    place.close()
