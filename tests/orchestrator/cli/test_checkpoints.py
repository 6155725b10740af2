"""Each command says what there is, for people and for programs, and ends in the code that the page promises."""

import json
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from store import Retention, open_store, prune

from .conftest import Run

pytestmark = pytest.mark.unit


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def a_part(root: Path) -> Path:
    return next((root / "checkpoints" / "1.2" / "agent.solver" / "p0").glob("0*.jsonl.zst"))


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_list_shows_every_checkpoint_and_the_head(root: Path, run: Run) -> None:
    """Oldest first, with entry, counts, bytes and tags."""
    ran = run("list", root)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert "epoch 1, 3 chain entries" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == ["1.1", "1.2"]
    assert "nightly" in lines[2]
    assert "head" in lines[3]
    document = run("list", root, "--json").document
    assert (document["command"], document["exit_code"], document["head"]) == ("list", 0, "1.2")
    first, second = document["checkpoints"]
    assert (first["rollouts"], first["records"], first["tags"], first["entry"]) == (3, 4, ["nightly"], 2)
    assert (second["restarts"], second["dropped"], second["head"], second["imported"]) == (1, 1, True, False)
    assert first["bytes"] > 0


def test_list_shows_a_damaged_checkpoint_as_damaged(root: Path, run: Run) -> None:
    """It is never hidden, and the exit code says that something is wrong."""
    flip(root / "checkpoints" / "1.1" / "manifest.json")
    ran = run("list", root)
    assert ran.code == 1
    assert "DAMAGED" in ran.out
    assert "damage: checkpoints/1.1/manifest.json is damaged" in ran.out
    document = run("list", root, "--json").document
    assert document["exit_code"] == 1
    assert "checkpoints/1.1/manifest.json" in document["checkpoints"][0]["damage"]
    assert document["checkpoints"][0]["rollouts"] is None


def test_list_warns_of_a_newest_folder_that_is_not_published(root: Path, run: Run) -> None:
    """A write in progress or a crash left it; it is no checkpoint, and the head is the one before."""
    newest = root / "checkpoints" / "1.3" / "agent.solver" / "p0"
    newest.mkdir(parents=True)
    (newest / "manifest.json").write_bytes(b"{}")
    ran = run("list", root)
    assert ran.code == 0
    assert "warning: checkpoints/1.3/: 1 object, 2 bytes: checkpoint 1.3 is not published" in ran.out
    assert run("list", root, "--json").document["head"] == "1.2"
    assert run("show", root, "1.3").code == 3


def test_list_shows_deletions(root: Path, run: Run) -> None:
    """Each with its entry, and whether it ended."""
    assert run("prune", root, "--keep-last", 1, "--no-keep-tagged").code == 0
    assert "deletion planned in entry 4, ended: 1.1" in run("list", root).out
    [deletion] = run("list", root, "--json").document["deletions"]
    assert deletion == {"entry": 4, "checkpoints": ["1.1"], "finished": True}


def test_a_chain_that_cannot_be_read_is_damage(root: Path, run: Run) -> None:
    """Nothing is decided on it, and nothing is listed."""
    flip(root / "chain" / "000000000002.json")
    ran = run("list", root)
    assert (ran.code, ran.out) == (1, "")
    assert "000000000002.json is damaged" in ran.err
    assert run("verify", root).code == 1


def test_show_says_what_a_restore_would_do(root: Path, run: Run) -> None:
    """Scope, restarts, dropped with the reason, participants, parent, epoch, output, fingerprint and software."""
    ran = run("show", root)
    assert ran.code == 0
    for says in (
        "checkpoint 1.2 of",
        "continues 2 rollouts, starts 1 over from its input, leaves out 1",
        "agent.solver/p0",
        "the head, published",
        "dataset = abc",
        "rows.jsonl: 1.2 kB",
        "orjson",
        "left out: bad/1.0#0: it failed\\x1b[31m three times",
    ):
        assert says in ran.out, says
    document = run("show", root, "--json").document
    assert (document["parent"], document["epoch"], document["entry"]) == ("1.1", 1, 3)
    assert document["scope"] == ["r1/1.0#1", "r2/1.0#2"]
    assert document["restarts"] == ["slow/1.0#0"]
    assert document["dropped"] == [{"life": "bad/1.0#0", "reason": "it failed\x1b[31m three times"}]
    assert document["output"] == [{"name": "rows.jsonl", "bytes": 1234}]
    assert [share["records"] for share in document["participants"]] == [2, 1]


def test_show_names_a_checkpoint_by_its_id(root: Path, run: Run) -> None:
    """The head is only the default."""
    assert run("show", root, "1.1", "--json").document["checkpoint"] == "1.1"
    assert run("show", root, "head", "--json").document["checkpoint"] == "1.2"


def test_show_rollout_prints_its_records(root: Path, run: Run) -> None:
    """From each participant that has one; for programs exactly as stored."""
    ran = run("show", root, "--rollout", "r2")
    assert ran.code == 0
    assert "rollout r2 of checkpoint 1.2 continues: r2/1.0#2" in ran.out
    assert "agent.solver/p0:" in ran.out
    assert "resources.tools/p0:" in ran.out
    document = run("show", root, "--rollout", "r2", "--json").document
    assert [record["participant"] for record in document["records"]] == ["agent.solver/p0", "resources.tools/p0"]
    assert document["records"][0]["record"]["life"] == "r2/1.0#2"
    assert document["records"][0]["record"]["payload"]["step"] == 3


def test_show_rollout_reads_no_frame_of_others(root: Path, run: Run) -> None:
    """A damaged part of another participant does not keep a record from being shown."""
    flip(next((root / "checkpoints" / "1.2" / "resources.tools" / "p0").glob("0*.jsonl.zst")))
    assert run("show", root, "--rollout", "r1").code == 0
    assert run("show", root, "--rollout", "r2").code == 1


@pytest.mark.parametrize(
    ("rollout", "code", "says"),
    [
        ("slow", 0, "restarts"),
        ("bad", 0, "dropped (it failed"),
        ("never", 3, "knows no rollout never"),
        ("../etc", 2, "rollout id"),
    ],
)
def test_show_rollout_says_what_becomes_of_one_without_records(
    root: Path, run: Run, rollout: str, code: int, says: str
) -> None:
    """A restart, one that was dropped, one that is not there, and what is no id at all."""
    ran = run("show", root, "--rollout", rollout)
    assert ran.code == code
    assert says in ran.out + ran.err


def test_verify_of_a_sound_store_says_so(root: Path, run: Run) -> None:
    """What was looked at is counted; deep is said."""
    ran = run("verify", root)
    assert ran.code == 0
    assert ran.out.startswith("sound: 3 chain entries, 2 checkpoints, 7 records, 4 parts, 0 blobs")
    document = run("verify", root, "--deep", "--json").document
    assert (document["sound"], document["deep"], document["findings"]) == (True, True, [])
    assert run("verify", root, "head", "--json").document["checkpoints"] == ["1.2"]


def test_verify_finds_damage(root: Path, run: Run) -> None:
    """Exit code 1, and the object, the participant and the records by name; another checkpoint is still sound."""
    flip(a_part(root))
    ran = run("verify", root)
    assert ran.code == 1
    assert "damage: checkpoints/1.2/agent.solver/p0/00000" in ran.out
    assert "r1/1.0#1" in ran.out
    assert "NOT SOUND" in ran.out
    [finding, *_] = run("verify", root, "--json").document["findings"]
    assert finding["severity"] == "damage"
    assert run("verify", root, "1.1").code == 0
    assert run("verify", root, "1.2").code == 1


def test_verify_tells_leftovers_and_is_fine(root: Path, run: Run) -> None:
    """They cost space, not safety."""
    (root / "notes.txt").write_text("x")
    ran = run("verify", root)
    assert ran.code == 0
    assert "leftover: notes.txt: 1 object, 1 bytes: unknown" in ran.out


def test_diff_says_what_became_of_every_rollout(root: Path, run: Run) -> None:
    """For people by count and name, for programs in full."""
    ran = run("diff", root, "1.1", "1.2")
    assert ran.code == 0
    assert "only in 1.1  1 rollout: r0" in ran.out
    assert "went on      1 rollout: r2" in ran.out
    assert "own state    changed" in ran.out or "own state  " in ran.out
    document = run("diff", root, "1.1", "head", "--json").document
    assert document["rollouts"] == {"only_a": ["r0"], "only_b": [], "same": ["r1"], "changed": ["r2"], "new_life": []}
    assert document["output"] == [{"name": "rows.jsonl", "a": None, "b": 1234}]
    assert document["fingerprint"] == [{"name": "dataset", "a": None, "b": "abc"}]


def test_prune_dry_run_changes_nothing_and_says_why(root: Path, run: Run) -> None:
    """The tag keeps the first one, until tags do not count."""
    before = tree(root)
    assert "keep  tagged nightly" in run("prune", root, "--keep-last", 1, "--dry-run").out
    document = run("prune", root, "--keep-last", 1, "--no-keep-tagged", "--dry-run", "--json").document
    assert [(one["checkpoint"], one["keep"]) for one in document["checkpoints"]] == [("1.1", False), ("1.2", True)]
    assert document["objects"] > 3
    assert (document["dry_run"], document["deleted"]) == (True, 0)
    assert tree(root) == before


def test_prune_deletes_what_no_rule_keeps(root: Path, run: Run) -> None:
    """What it said before is what it does, and the rest is sound."""
    planned = run("prune", root, "--drop", "1.1", "--dry-run", "--json").document
    done = run("prune", root, "--drop", "1.1", "--json").document
    assert done["deleted"] == done["objects"] == planned["objects"]
    assert done["bytes"] == planned["bytes"]
    assert not (root / "checkpoints" / "1.1").exists()
    assert run("verify", root, "--deep").code == 0
    assert "deleted 0 of 0 objects" in run("prune", root).out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--drop", "1.2"), 2, "is the head and is never deleted"),
        (("--drop", "7.7"), 3, "does not hold"),
        (("--drop", "x"), 2, "checkpoint id"),
        (("--drop", "head"), 2, "the head is never deleted"),
        (("--keep-last", "-1"), 2, "--keep-last"),
    ],
)
def test_prune_refuses_what_cannot_be_meant(
    root: Path, run: Run, arguments: tuple[str, ...], code: int, says: str
) -> None:
    """The head, an id that is not there, no id, a negative number: nothing is deleted."""
    before = tree(root)
    ran = run("prune", root, *arguments)
    assert ran.code == code
    assert says in ran.err
    assert tree(root) == before


def test_copy_makes_a_store_that_verifies(root: Path, run: Run, tmp_path: Path) -> None:
    """It lists as imported, opens by name, is no head, and a second copy changes nothing."""
    other = tmp_path / "other"
    assert run("copy", root, other, "--checkpoint", "1.1", "--json").document["checkpoint"] == "1.1"
    before = tree(other / "checkpoints")
    assert run("copy", root, other, "--checkpoint", "1.1").code == 0
    assert tree(other / "checkpoints") == before
    assert before.items() <= tree(root / "checkpoints").items()
    [row] = run("list", other, "--json").document["checkpoints"]
    assert (row["imported"], row["head"]) == (True, False)
    assert run("show", other, "1.1").code == 0
    for arguments in (("show", other), ("show", other, "--rollout", "r1"), ("diff", other, "head", "1.1")):
        ran = run(*arguments)
        assert ran.code == 3
        assert "has no head" in ran.err
        assert "Name what was imported: 1.1" in ran.err
    assert run("verify", other, "--deep").code == 0


def test_copy_of_what_is_not_there_makes_nothing(root: Path, run: Run, tmp_path: Path) -> None:
    """The destination is not made for a mistake."""
    assert run("copy", root, tmp_path / "other", "--checkpoint", "8.8").code == 3
    assert run("copy", tmp_path / "none", tmp_path / "other").code == 3
    assert not (tmp_path / "other").exists()


def test_copy_onto_a_file_or_a_dangling_link_is_refused(root: Path, run: Run, tmp_path: Path) -> None:
    """Nothing is written over it, and the message says what stands there."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("nowhere")
    for place in ("file", "link"):
        ran = run("copy", root, tmp_path / place)
        assert ran.code == 2
        assert "a file, or a link that leads nowhere" in ran.err
    assert run("copy", root, "/proc/midflight").code == 4
    assert run("list", tmp_path / ("x" * 300)).code == 2


def test_the_store_in_a_document_is_a_url_that_opens_it(root: Path, run: Run) -> None:
    """Also where the path has characters that mean something in a URL, or are no text."""
    odd = root.rename(root.with_name("a%20b?c#d\udcff::e"))
    shown = run("list", odd, "--json").document["store"]
    assert run("show", shown, "--json").document["store"] == shown


def test_copy_onto_another_checkpoint_of_that_id_is_refused(root: Path, run: Run, tmp_path: Path) -> None:
    """Exit code 2, with a way out, and nothing is lost."""
    foreign = tmp_path / "foreign"
    shutil.copytree(root, foreign)
    anyio.run(_another_run, tmp_path / "third")
    assert run("copy", root, tmp_path / "fourth", "--checkpoint", "1.1").code == 0
    ran = run("copy", tmp_path / "third", tmp_path / "fourth", "--checkpoint", "1.1")
    assert ran.code == 2
    assert "copy it into another root" in ran.err


async def _another_run(root: Path) -> None:
    from .conftest import fill

    await fill(root)


def test_copy_of_damage_is_damage(root: Path, run: Run, tmp_path: Path) -> None:
    """And the destination shows no checkpoint."""
    flip(a_part(root))
    assert run("copy", root, tmp_path / "other").code == 1
    assert run("list", tmp_path / "other").code == 3


@pytest.mark.parametrize("command", [("list",), ("show",), ("verify",), ("diff", "1.1", "1.2"), ("prune",)])
def test_no_store_is_nothing_there_and_none_is_made(run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    """For a folder that is missing and for one that holds something else."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    for place in (tmp_path / "missing", tmp_path / "other"):
        ran = run(command[0], place, *command[1:])
        assert (ran.code, ran.out) == (3, "")
        document = run(command[0], place, *command[1:], "--json").document
        assert (document["command"], document["exit_code"]) == (command[0], 3)
        assert {"error", "message", "hint"} <= document.keys()
    assert not (tmp_path / "missing").exists()
    assert list(tree(tmp_path / "other")) == ["file"]


@pytest.mark.parametrize("command", ["list", "verify"])
def test_a_store_without_a_checkpoint_is_nothing_there(run: Run, tmp_path: Path, command: str) -> None:
    """It is said what there is, and the code tells a script."""
    anyio.run(_empty, tmp_path / "empty")
    ran = run(command, tmp_path / "empty", "--json")
    assert ran.code == ran.document["exit_code"] == 3
    assert ran.document["checkpoints"] == []


async def _empty(root: Path) -> None:
    async with open_store(root, "write") as store:
        await prune(store, Retention())


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "{root}", "../../etc"),
        ("verify", "{root}", "1"),
        ("diff", "{root}", "1.1", "-"),
        ("list", "gopher://x/y"),
        ("list", "s3://user:pw@bucket/x"),
        ("list", "{root}", "--option", "secret=x"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(root: Path, run: Run, arguments: tuple[str, ...]) -> None:
    """One line on stderr with a hint; the JSON document says the same."""
    filled = [argument.format(root=root) for argument in arguments]
    ran = run(*filled)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("midflight: ")
    assert len(ran.err.splitlines()) == 1
    assert run(*filled, "--json").document["exit_code"] == 2


def test_json_is_exactly_one_document(root: Path, run: Run) -> None:
    """One line, nothing before and nothing after, whatever the command."""
    for arguments in (("list",), ("show",), ("verify",), ("diff", "1.1", "1.2"), ("prune", "--dry-run")):
        ran = run(arguments[0], root, *arguments[1:], "--json")
        assert ran.out.count("\n") == 1
        assert ran.err == ""
        parsed: dict[str, Any] = json.loads(ran.out)
        assert parsed["command"] == arguments[0]
