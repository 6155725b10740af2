"""A history as the checker reads it: the chain, checkpoints with their records, durable rows, lives and what they did.

Nothing of the code under test is used here: objects are read as the bytes that were written, lives as text.
"""

import io
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import orjson
import zstandard

from .history import Event, History


class Life(NamedTuple):
    """As it is written: `<rollout_id>/<epoch>.<attempt>#<n>`."""

    rollout: str
    epoch: int
    attempt: int
    n: int

    @property
    def position(self) -> tuple[int, int]:
        """In the order of dispatches."""
        return self.epoch, self.n


def life_of(text: str) -> Life:
    """Parse a life."""
    rollout, _, rest = text.partition("/")
    epoch, _, rest = rest.partition(".")
    attempt, _, n = rest.partition("#")
    return Life(rollout, int(epoch), int(attempt), int(n))


def call_of(text: str) -> tuple[str, int, int]:
    """Caller, boundary and k of a call id."""
    caller, _, rest = text.partition("@")[0].rpartition(":")
    boundary, _, k = rest.partition(".")
    return caller, int(boundary), int(k)


def owner(rollout: str, workers: int) -> int:
    """The worker that a rollout belongs to."""
    return zlib.crc32(rollout.encode()) % workers


@dataclass
class Line:
    """A durable row, or failure."""

    n: int
    """Of the event that made it durable."""
    epoch: int
    rollout: str
    life: Life
    failed: bool
    final: bool
    row: Mapping[str, Any]
    ends: int
    """Bytes of its segment up to its chunk's end."""


@dataclass
class Published:
    """A checkpoint that exists."""

    id: str
    n: int
    """Of the event with its chain entry."""
    manifest: Mapping[str, Any]
    problem: str = ""
    """Why its objects are not what the chain pins."""
    needs: dict[str, str] = field(default_factory=dict)
    """Each key that it cannot do without, to the digest of what stood there."""
    records: dict[str, dict[str, tuple[Life, Any]]] = field(default_factory=dict)
    """By role and rollout, life and payload."""

    @property
    def epoch(self) -> int:
        return int(self.id.partition(".")[0])


class View:
    """One history, read."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.events = history.events

    @cached_property
    def chain(self) -> list[tuple[Event, Mapping[str, Any]]]:
        """Each entry with the event that created it."""
        return [(e, orjson.loads(self._bytes(e))) for e in self._objects("store", "chain/")]

    def _objects(self, space: str, prefix: str) -> Iterator[Event]:
        return (e for e in self.history.of("object") if e["space"] == space and e["key"].startswith(prefix))

    def _bytes(self, event: Event) -> bytes:
        return self.history.objects.get(event["digest"], b"")

    def actions(self, kind: str) -> Iterator[tuple[Event, Mapping[str, Any], int]]:
        """Entries of one kind: event, action, epoch."""
        return ((e, doc["action"], doc["epoch"]) for e, doc in self.chain if doc["action"]["kind"] == kind)

    @cached_property
    def planned(self) -> dict[str, int]:
        """Checkpoints that a plan names, and the event of the first one."""
        found: dict[str, int] = {}
        for event, action, _ in self.actions("deletion"):
            for checkpoint in action["checkpoints"]:
                found.setdefault(checkpoint, event.n)
        return found

    @cached_property
    def published(self) -> dict[str, Published]:
        """By id."""
        found = {}
        for event, action, _ in self.actions("publication"):
            found[action["ref"]["checkpoint"]] = self._published(event, action["ref"])
        return found

    def _published(self, event: Event, ref: Mapping[str, Any]) -> Published:
        standing: dict[str, Event] = {}
        prefix = f"checkpoints/{ref['checkpoint']}/"
        for e in self._objects("store", ""):
            if e.n > event.n:
                break
            if e["key"].startswith(prefix) or e["key"].startswith("blobs/"):
                if e["verb"] == "delete":
                    standing.pop(e["key"], None)
                else:
                    standing[e["key"]] = e
        top = standing.get(f"{prefix}manifest.json")
        if top is None or orjson.loads(self._bytes(top))["sha256"] != ref["digest"]:
            return Published(ref["checkpoint"], event.n, {}, "its manifest is not the one that the chain pins")
        made = Published(ref["checkpoint"], event.n, orjson.loads(self._bytes(top)))
        made.needs[top["key"]] = top["digest"]
        blobs = list(_refs(made.manifest.get("state")))
        for share in made.manifest["participants"]:
            blobs += self._read_share(made, standing, prefix, share)
        for key in blobs:
            if key not in standing:
                made.problem = f"{key} is not there"
            else:
                made.needs[key] = standing[key]["digest"]
        return made

    def _read_share(
        self, made: Published, standing: Mapping[str, Event], prefix: str, share: Mapping[str, Any]
    ) -> list[str]:
        role, folder = (
            f"{share['kind']}.{share['name']}",
            f"{prefix}{share['kind']}.{share['name']}/{share['process']}/",
        )
        own = standing.get(f"{folder}manifest.json")
        manifest = orjson.loads(self._bytes(own)) if own is not None else {}
        if own is None or manifest["sha256"] != share["digest"]:
            made.problem = f"the manifest of {folder} is not the one that is pinned"
            return []
        index = f"index-{manifest['index']['sha256'][:16]}.jsonl.zst"
        made.needs[own["key"]] = own["digest"]
        names = [*(part["name"] for part in manifest["parts"]), *([index] if manifest["parts"] else [])]
        blobs = list(_refs(manifest.get("state")))
        for name in names:
            event = standing.get(folder + name)
            if event is None:
                made.problem = f"{folder}{name} is not there"
                continue
            made.needs[event["key"]] = event["digest"]
            for line in self._lines(event):
                if name == index:
                    blobs += [_blob_key(sha256, written_by) for sha256, written_by, _ in line["blobs"]]
                else:
                    life = life_of(line["life"])
                    made.records.setdefault(role, {})[life.rollout] = life, line["payload"]
        return blobs

    def _lines(self, event: Event) -> list[Any]:
        try:
            reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(self._bytes(event)), read_across_frames=True)
            return [orjson.loads(line) for line in reader.read().splitlines()]
        except (zstandard.ZstdError, ValueError):
            return []  # It is torn, and the checkpoint that names it is damaged: its digest tells.

    # Rows

    @cached_property
    def sealed(self) -> dict[int, int]:
        """The length that the last seal gives each segment."""
        return {int(s["name"]): s["length"] for _, action, _ in self.actions("seal") for s in action["segments"]}

    @cached_property
    def lines(self) -> list[Line]:
        """Rows and failures that count, in the order in which they became durable."""
        found, lengths = [], defaultdict[int, int](int)
        for event in self._objects("output", ""):
            parts = event["key"].split("/")
            if event["verb"] != "create" or len(parts) != 3 or not parts[1].isdigit():
                continue
            epoch, data = int(parts[1]), self._bytes(event)
            lengths[epoch] += len(data)
            if epoch in self.sealed and lengths[epoch] > self.sealed[epoch]:
                continue
            for text in data.splitlines():
                line = orjson.loads(text)
                if "header" not in line:
                    about = (line["rollout_id"], life_of(line["life"]), line["failed"], line["final"], line["row"])
                    found.append(Line(event.n, epoch, *about, lengths[epoch]))
        return found

    @cached_property
    def delivered(self) -> dict[str, Line]:
        """The line that decides each rollout."""
        found: dict[str, Line] = {}
        for line in self.lines:
            if line.final:
                found.setdefault(line.rollout, line)
        return found

    # Lives

    @cached_property
    def dispatched(self) -> list[tuple[Event, Life]]:
        """Lives that an environment has taken."""
        return [
            (event, life_of(text))
            for event in self.history.of("control")
            if event["operation"] == "submit" and event["code"] == "ok"
            for text in event["lives"]
            if text not in event["refused"]
        ]

    @cached_property
    def effects(self) -> list[tuple[Event, Life]]:
        """What was done, and by which life."""
        return [(event, life_of(event["life"])) for event in self.history.of("did")]

    @cached_property
    def origins(self) -> dict[tuple[str, int, int], tuple[str, Life]]:
        """(rollout, epoch, attempt) of lives that continue a record: the checkpoint, and the life in it."""
        found = {}
        for event in self.history.of("settled"):
            epoch = int(event["round"].partition(".")[0])
            for text in event["lives"]:
                life = life_of(text)
                found[life.rollout, epoch, life.attempt + 1] = event["checkpoint"], life
        return found

    def origin(self, life: Life) -> tuple[str, Life] | None:
        """What a life continues."""
        return self.origins.get((life.rollout, life.epoch, life.attempt))

    def hung_s(self, process: str) -> float:
        """For how long a process stood still in all."""
        kind, target = ("hang_controller", "") if process.startswith("controller") else ("hang", process)
        mine = (e for e in self.history.of("fault") if e["kind"] == kind and e["target"] == target)
        return float(sum(e["for_s"] for e in mine))


def _refs(document: Any) -> Iterator[str]:
    """Keys of the blobs that a state document names."""
    if isinstance(document, dict):
        if "sha256" in document and "written_by" in document:
            yield _blob_key(document["sha256"], document["written_by"])
        else:
            for value in document.values():
                yield from _refs(value)
    elif isinstance(document, list):
        for value in document:
            yield from _refs(value)


def _blob_key(sha256: str, written_by: str) -> str:
    return f"blobs/{sha256[:2]}/{sha256}.{written_by}"
