"""`midflight ledger` says what the ledgers hold and what is wrong with them, and changes nothing."""

import json
import os
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from orchestrator.cli.commands import app
from orchestrator.cli.exits import Exit
from orchestrator.cli.ledgers import check_ledgers, list_ledgers
from orchestrator.cli.running import tell
from participants.ledger.rows import Row
from tests.support.ledgers import conversation, entry, life, lineage, place, quick, record

from .conftest import Ran, Run

pytestmark = pytest.mark.unit


async def fill(root: Path) -> None:
    """Rollout `r` over two lives of two turns each, the second frozen; `s` with a failed call; all with records."""
    ledger = quick(root)
    lives = await lineage(ledger, 2, 2)
    await ledger.freeze("r-a1", "v1")
    await conversation(ledger, lives[-1], range(4, 5))
    other = life(rollout="s")
    await ledger.begin(other)
    await ledger.append(other, entry(0, None, None, outcome="model_failed"), record(0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three ledgers."""
    anyio.run(partial(fill, tmp_path / "ledger"))
    return tmp_path / "ledger"


@pytest.fixture
def ledger() -> Run:
    """`midflight ledger` with these arguments, in this process."""

    def invoke(*arguments: object) -> Ran:
        result = CliRunner().invoke(app, ["ledger", *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return invoke


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def test_list_shows_every_ledger_with_its_key(folder: Path, ledger: Run) -> None:
    """By rollout, oldest first, with rows, carried rows, records and whether it takes rows; totals at the end."""
    ran = ledger("list", folder)
    assert (ran.code, ran.err) == (0, "")
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[0] == ["KEY", "ROWS", "CARRIED", "RECORDS", "SIZE", "LIFE"]
    assert [(line[0], *line[1:4], *line[-2:]) for line in lines[1:-1]] == [
        ("r", "2", "0", "2", "ended", "r/1.0#0"),
        ("r-a1", "5", "2", "3", "open", "r/2.1#0"),
        ("s", "1", "0", "1", "open", "s/1.0#0"),
    ]
    assert ran.out.splitlines()[-1].startswith("3 ledgers, 8 rows, 6 records, ")
    document = ledger("list", folder, "--json").document
    assert (document["command"], document["exit_code"], document["folder"]) == ("list", 0, str(folder))
    assert [(each["key"], each["newest"], each["frozen"]) for each in document["ledgers"]] == [
        ("r", True, []),
        ("r-a1", True, ["v1"]),
        ("s", True, []),
    ]
    assert document["totals"]["ledgers"] == 3
    assert "key_width" not in document


def test_an_older_life_of_an_attempt_has_no_key(folder: Path, ledger: Run) -> None:
    """A key names the newest life; the older one is listed all the same."""
    anyio.run(quick(folder).begin, life(rollout="s", epoch=2, n=1))
    listed = ledger("list", folder, "--json").document["ledgers"]
    assert [(each["life"], each["newest"]) for each in listed[2:]] == [("s/1.0#0", False), ("s/2.0#1", True)]
    assert [line.split()[0] for line in ledger("list", folder).out.splitlines()[-3:-1]] == ["-", "s"]


def test_show_is_the_manifest_of_a_key(folder: Path, ledger: Run) -> None:
    """The life, what it continues and carries, its freezes and its end."""
    ran = ledger("show", folder, "r-a1")
    assert (ran.code, ran.err) == (0, "")
    for text in ("r/2.1#0", "5, 2 of them carried from r/1.0#0", "v1 at 4 rows", "yes"):
        assert text in ran.out
    document = ledger("show", folder, "r", "--json").document
    assert (document["life"], document["rows"], document["damage"]) == ("r/1.0#0", 2, "")
    assert document["end"]["reason"]
    assert document["end"]["reason"] in ledger("show", folder, "r").out


def test_rows_are_shown_whole_and_as_they_stood(folder: Path, ledger: Run) -> None:
    """For programs each field of each row; with a version those up to the freeze."""
    rows = ledger("show", folder, "r-a1", "--rows", "--json").document["rows"]
    assert [Row.from_json(row).index for row in rows] == list(range(5))
    frozen = ledger("show", folder, "r-a1", "--rows", "--version", "v1", "--json").document
    assert (frozen["version"], frozen["rows"]) == ("v1", rows[:4])
    lines = ledger("show", folder, "r-a1", "--rows").out.splitlines()
    assert lines[1].split()[:3] == ["INDEX", "CALL", "OUTCOME"]
    assert lines[2].split() == ["0", "agent.main:0.0", "completed", "stop", "1", "2", "0", "0", "r/1.0#0"]
    assert len(lines) == 2 + 5


def test_records_are_those_of_its_own_calls(folder: Path, ledger: Run) -> None:
    """Not of the calls of the life before; with a version those up to the freeze."""
    records = ledger("show", folder, "r-a1", "--records", "--json").document["records"]
    assert records == [{"call": f"agent.main:{k}.0", "record": record(k)} for k in (2, 3, 4)]
    frozen = ledger("show", folder, "r-a1", "--records", "--version", "v1", "--json").document["records"]
    assert frozen == records[:2]
    assert '"text": "answer 3"' in ledger("show", folder, "r-a1", "--records").out


def test_control_characters_are_shown_as_escapes(folder: Path, ledger: Run) -> None:
    """A record is what a model said; no terminal acts on it."""
    anyio.run(
        quick(folder).append, life(rollout="s"), entry(1, finish_reason="\x1b[31m"), {"text": "\x1b[31m\x9b\u202e"}
    )
    for option in ("--records", "--rows"):
        for flags in ((), ("--json",)):
            out = ledger("show", folder, "s", option, *flags).out
            assert out.replace("\n", "").isprintable()


def test_check_finds_nothing_wrong_with_what_was_written(folder: Path, ledger: Run) -> None:
    """Every ledger that a key names, or those that are named."""
    ran = ledger("check", folder)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("sound: 3 ledgers, 8 rows, 6 records, ")
    document = ledger("check", folder, "r", "s", "--json").document
    assert (document["findings"], document["totals"]["ledgers"], document["exit_code"]) == ([], 2, 0)


def _output(line: bytes) -> bytes:
    """The last row with another output, and a chain that was worked out anew: only the tokens tell."""
    value = json.loads(line)
    value["inline"]["output"] = "CQAAAAkAAAA="
    row = Row.from_json({name: each for name, each in value.items() if name != "kind"})
    before = json.loads(PREVIOUS[0])["chain"]
    return json.dumps({**value, "chain": row.chained(before)}).encode()


PREVIOUS: list[bytes] = []


def _change_output(data: bytes) -> bytes:
    *lines, last = data.splitlines()
    PREVIOUS[:] = [lines[-2]]  # Between them stands the freeze.
    return b"\n".join([*lines, _output(last), b""])


def _drop_last_but_end(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join([*lines[:-2], lines[-1]])


@pytest.mark.parametrize(
    ("key", "change", "code"),
    [
        ("r-a1", _change_output, "context_digest"),
        ("r-a1", lambda data: data.replace(b'"generated_count":2', b'"generated_count":3', 1), "damage"),
        ("r", _drop_last_but_end, "rows"),
        ("r", lambda data: data.replace(b'"format":1', b'"format":1 ', 1), "receipt"),
    ],
)
def test_check_finds_what_was_tampered_with(
    folder: Path, ledger: Run, key: str, change: Callable[[bytes], bytes], code: str
) -> None:
    """Other tokens under a chain that fits, a changed field, a missing row of an ended ledger, other bytes: exit 1."""
    path = Path(place(folder, life(1, 2) if key == "r-a1" else life()).ledger)
    before = path.read_bytes()
    rewrite(path, change)
    assert path.read_bytes() != before
    ran = ledger("check", folder)
    assert ran.code == 1
    assert f"({code})" in ran.out
    assert ran.out.splitlines()[-1].startswith("NOT SOUND: 3 ledgers")
    document = ledger("check", folder, key, "--json").document
    assert document["exit_code"] == 1
    assert code in {finding["code"] for finding in document["findings"]}
    assert {finding["key"] for finding in document["findings"]} == {key}
    assert ledger("check", folder, "s").code == 0


def test_damage_is_shown_wherever_the_ledger_is_read(folder: Path, ledger: Run) -> None:
    """List and show say so and exit with 1; rows and records that cannot be trusted are refused."""
    path = Path(place(folder, life(1, 2)).ledger)
    rewrite(path, lambda data: data.replace(b'"masked":0', b'"masked":1', 1))
    listed = ledger("list", folder)
    assert (listed.code, "DAMAGED" in listed.out, "damage: r/2.1#0: line 2" in listed.out) == (1, True, True)
    assert ledger("list", folder, "--json").document["ledgers"][1]["damage"]
    assert ledger("show", folder, "r-a1").code == 1
    for option in ("--rows", "--records"):
        ran = ledger("show", folder, "r-a1", option)
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1)
        assert "is damaged" in ran.err


def test_missing_records_are_found(folder: Path, ledger: Run) -> None:
    """The rows are sound, and what they name is gone."""
    os.unlink(place(folder, life(rollout="s")).records)
    ran = ledger("check", folder, "s")
    assert (ran.code, "(records)" in ran.out) == (1, True)
    assert ledger("show", folder, "s", "--records").code == 1
    assert ledger("show", folder, "s", "--rows").code == 0


def test_what_a_crash_has_torn_is_no_damage(folder: Path, ledger: Run) -> None:
    """A torn last line, and a ledger whose first line is not whole: nobody was told of them."""
    rewrite(Path(place(folder, life(1, 2)).ledger), lambda data: data + b'{"kind":"ro')
    Path(place(folder, life(rollout="s")).ledger).write_bytes(b'{"kind":"led')
    assert ledger("check", folder).code == 0
    listed = ledger("list", folder, "--json").document
    assert (listed["exit_code"], [each["rows"] for each in listed["ledgers"]]) == (0, [2, 5, 0])


@pytest.mark.parametrize("unreadable", ["ledger", "folder"])
def test_a_ledger_that_cannot_be_read_hides_no_other(folder: Path, ledger: Run, unreadable: str) -> None:
    """It is told, and the exit code is 4: that is neither damage nor absence."""
    at = place(folder, life(rollout="s"))
    os.unlink(at.ledger)
    os.unlink(at.records)
    if unreadable == "ledger":
        Path(at.ledger).mkdir()
    else:
        Path(at.folder).rmdir()
        Path(at.folder).write_text("a file")
    for command in ("list", "check"):
        ran = ledger(command, folder)
        assert (ran.code, "failed: s" in ran.out, "3 ledgers, 7 rows" in ran.out) == (4, True, True)
        assert ledger(command, folder, "--json").document["totals"]["unreadable"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("list", "{}/nowhere"), 3, "NoLedgerFolder"),
        (("show", "{}/nowhere", "r"), 3, "NoLedgerFolder"),
        (("check", "{}/nowhere"), 3, "NoLedgerFolder"),
        (("list", "s3://bucket/x"), 2, "InvalidInput"),
        (("show", "{}/ledger", "t"), 3, "NoLedger"),
        (("show", "{}/ledger", "r-a7"), 3, "NoLedger"),
        (("check", "{}/ledger", "r", "t"), 3, "NoLedger"),
        (("show", "{}/ledger", "../r"), 2, "InvalidInput"),
        (("show", "{}/ledger", "r", "--rows", "--version", "v9"), 3, "NoVersion"),
        (("show", "{}/ledger", "r", "--version", "v1"), 2, "InvalidInput"),
        (("show", "{}/ledger", "r", "--rows", "--records"), 2, "InvalidInput"),
    ],
)
def test_what_is_not_there_is_refused(
    folder: Path, ledger: Run, arguments: tuple[str, ...], code: int, error: str
) -> None:
    """One line and a code, the same for programs; nothing is made."""
    given = [argument.format(folder.parent) for argument in arguments]
    ran = ledger(*given)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (code, "", 1)
    document = ledger(*given, "--json").document
    assert (document["exit_code"], document["error"]) == (code, error)
    assert not (folder.parent / "nowhere").exists()


def test_an_empty_folder_has_nothing_and_stays_empty(tmp_path: Path, ledger: Run) -> None:
    """Exit code 3, and not even locks are made."""
    for command in ("list", "check"):
        ran = ledger(command, tmp_path)
        assert (ran.code, ran.out) == (3, f"no ledger in {tmp_path}\n")
        assert ledger(command, tmp_path, "--json").document["exit_code"] == 3
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_changed(folder: Path, ledger: Run) -> None:
    """Not by any of the commands, and files that are not the ledger's are nobody's business."""
    (folder / "notes.txt").write_text("mine")
    (folder / "ab").mkdir()
    (folder / "ab" / "r").mkdir()
    before = files(folder)
    for arguments in (["list"], ["check"]):
        assert ledger(*arguments, folder).code == 0
    for option in ([], ["--rows"], ["--records"]):
        assert ledger("show", folder, "r", *option).code == 0
    assert files(folder) == before


async def _many(root: Path, count: int) -> None:
    ledger = quick(root)
    for n in range(count):
        await ledger.begin(life(rollout=f"r{n:04}"))
        await ledger.append(life(rollout=f"r{n:04}"), entry(0, [7] * 10_000, [8]), record(0))


@pytest.mark.parametrize("look", [list_ledgers, lambda folder: check_ledgers(folder, ())])
def test_one_ledger_at_a_time_is_in_memory(tmp_path: Path, look: Callable[[str], object]) -> None:
    """Of a hundred ledgers, each of 50 kB, less than a third is held at any time."""
    anyio.run(_many, tmp_path, 100)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*.ledger.jsonl"))
    assert size > 5_000_000
    tracemalloc.start()
    try:
        assert getattr(look(str(tmp_path)), "exit") is Exit.FINE  # noqa: B009
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size / 3


class _Gone:
    """A stdout whose reader has gone away after so many writes."""

    def __init__(self) -> None:
        self.encoding = "utf-8"

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None: ...

    def fileno(self) -> int:
        return os.open(os.devnull, os.O_WRONLY)


def test_a_reader_that_goes_away_changes_no_exit_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage that was not printed any more is damage."""
    rewrite(Path(place(folder, life(1, 2)).ledger), lambda data: data.replace(b'"masked":0', b'"masked":1', 1))
    for look in (list_ledgers, partial(check_ledgers, keys=())):
        monkeypatch.setattr("sys.stdout", _Gone())
        code = tell(look(str(folder)), "list", as_json=False)
        monkeypatch.undo()
        assert code is Exit.DAMAGE


def test_an_attempt_that_made_no_model_call_is_told_with_the_key_of_its_rows(folder: Path, ledger: Run) -> None:
    """As after a restore at its end: exit code 3, and where to look."""
    ran = ledger("show", folder, "r-a2")
    assert ran.code == Exit.NOTHING
    assert "no ledger with the key r-a2: attempt 2, if there was one, made no model call;" in ran.err
    assert "are those of r-a1" in ran.err
    assert "model call" not in ledger("show", folder, "nobody-a2").err
