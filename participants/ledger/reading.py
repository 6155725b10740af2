"""What worker threads read of ledgers, without a lock: a file is only appended to, and its last lines may be torn."""

from dataclasses import asdict, dataclass
from typing import Any

from store import Life

from ..errors import Code, ParticipantError
from .files import Disk, Layout, translated
from .keys import CaptureKey
from .lines import Found, Receipt, good_records, scan


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a ledger holds."""

    key: str
    life: str
    source: str
    """The life that it continues; empty for none."""
    origins: tuple[str, ...]
    """The lives whose rows it carries, oldest first."""
    rows: int
    """Carried ones counted."""
    carried: int
    records: int
    last: str
    """Chain of the last row; 64 zeros without one."""
    size: int
    """Bytes of the file as far as it is good."""
    frozen: tuple[Receipt, ...]
    end: Receipt | None
    """Of the retirement, where it has ended."""
    damage: str
    """Why its rows cannot be trusted, where that is so."""

    @classmethod
    def of(cls, life: Life, found: Found) -> "Manifest":
        """Of what is in the file of a life."""
        return cls(
            str(CaptureKey.of(life)), str(life), found.source, tuple(found.origins), found.tail.count, found.carried,
            len(found.own_records), found.tail.chain, found.good, tuple(found.frozen.values()), found.end, found.damage,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


class Reader:
    """Reads files below one root."""

    def __init__(self, layout: Layout, disk: Disk) -> None:
        """Nothing is read yet."""
        self._layout = layout
        self._disk = disk

    def rollouts(self) -> list[str]:
        """The rollouts that may have a ledger, in the order of their names."""
        with translated("the ledgers"):
            return self._layout.rollouts()

    def lives(self, key: CaptureKey) -> list[Life]:
        """The lives with a ledger that a key may name, oldest first."""
        return [life for life in self.lives_of(key.rollout_id) if life.attempt == key.attempt]

    def instead(self, key: CaptureKey) -> str:
        """Where the rows of a key without a ledger are, in words; empty where the rollout has no earlier attempt.

        An attempt begins its ledger with its first model call, so one that was restored at its end has none.
        """
        earlier = [life for life in self.lives_of(key.rollout_id) if life.attempt < key.attempt]
        if not earlier:
            return ""
        found = CaptureKey.of(max(earlier, key=lambda life: life.attempt))
        made_none = f"attempt {key.attempt}, if there was one, made no model call"
        return f"{made_none}; the rows that it was restored with are those of {found}"

    def lives_of(self, rollout_id: str) -> list[Life]:
        """The lives of a rollout that have a ledger, oldest first."""
        with translated(rollout_id):
            return self._layout.lives(rollout_id)

    def manifest(self, life: Life) -> Manifest:
        """Of one life."""
        return Manifest.of(life, self.whole(life)[1])

    def row_lines(self, life: Life, version: str = "") -> list[bytes]:
        """The rows of one life as lines without their ends."""
        found = self.whole(life)[1]
        if found.damage:
            raise ParticipantError(Code.CORRUPT_CHECKPOINT, f"the ledger of {life} is damaged: {found.damage}")
        if not version:
            return found.rows
        if version not in found.frozen:
            raise ParticipantError(Code.INVALID_REQUEST, f"the ledger of {life} has no version {version!r:.80}")
        return found.rows[: found.frozen[version].rows]

    def record_lines(self, life: Life) -> list[bytes]:
        """The complete records of one life as lines without their ends, each of them whole."""
        place = self._layout.place(life)
        digests = self.whole(life)[1].own_records  # First: a record is there before its row is.
        with translated(life):
            lines = good_records(self._disk.read(place.records) or b"", digests)
        if len(lines) < len(digests):
            raise ParticipantError(
                Code.CORRUPT_CHECKPOINT, f"{len(digests) - len(lines)} complete records of {life} are missing"
            )
        return lines

    def whole(self, life: Life) -> tuple[bytes, Found]:
        """The file of a life, and what is in it. Raises `invalid_request` where there is none."""
        with translated(life):
            data = self._disk.read(self._layout.place(life).ledger)
        if data is None:
            raise ParticipantError(Code.INVALID_REQUEST, f"the ledger of {life} was deleted")
        found = scan(data)
        if found.life not in (life, None) and not found.damage:  # A torn first line is no damage: nothing has begun.
            found.damage = f"the file is of {found.life}"
        return data, found
