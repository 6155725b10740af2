"""A reader of checkpoints on a local disk, written from docs/format.md alone: it imports nothing of midflight's.

It follows the digests from the chain to each record, for the tests to compare with what the store itself reads.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

SEAL = re.compile(rb',"sha256":"([0-9a-f]{64})"\}\n')
SEAL_BYTES = 78
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
PART = re.compile(r"[0-9]{5}-[0-9a-f]{16}\.jsonl\.zst")
CHECKPOINT = re.compile(r"[1-9][0-9]{0,17}\.[1-9][0-9]{0,17}")
FEATURES: set[str] = set()


class DamageError(Exception):
    """What the page calls damage, or a version that it does not describe."""


def require(holds: object, message: str) -> None:
    """Damage unless it holds."""
    if not holds:
        raise DamageError(message)


def digest(data: bytes) -> str:
    """As the page writes a sha256."""
    return hashlib.sha256(data).hexdigest()


def read_object(root: Path, key: str, size: int | None = None) -> bytes:
    """An object, which no link may stand in for."""
    path = root
    for name in key.split("/"):
        path = path / name
        require(not path.is_symlink(), f"{key} is reached through a link")
    require(path.is_file(), f"{key} is missing")
    data = path.read_bytes()
    require(size in (None, len(data)), f"{key} has {len(data)} bytes and not {size}")
    return data


def unseal(key: str, data: bytes, form: str, sealed_as: str | None = None) -> dict[str, Any]:
    """Check the digest of a sealed document, then parse it."""
    tail = SEAL.fullmatch(data[-SEAL_BYTES:])
    require(tail, f"{key} does not end in a digest")
    found = digest(data[:-SEAL_BYTES])
    require(tail and tail[1].decode() == found, f"{key} does not match its digest")
    require(sealed_as in (None, found), f"{key} is not the one that is named")
    document = parse(key, data)
    require(document["format"] == form, f"{key} is no {form}")
    require(document["version"][0] == 1, f"{key} has version {document['version']}")
    require(set(document["features"]) <= FEATURES, f"{key} needs the features {document['features']}")
    return document


def parse(key: str, data: bytes) -> dict[str, Any]:
    """Strict JSON."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        require(len({name for name, _ in pairs}) == len(pairs), f"{key} has a key twice")
        return dict(pairs)

    def whole(text: str) -> int:
        require(-(2**63) <= int(text) < 2**64, f"{key} has an integer of more than 64 bits")
        return int(text)

    def constant(text: str) -> None:
        raise DamageError(f"{key} has {text}")

    parsed = json.loads(data.decode(), object_pairs_hook=unique, parse_int=whole, parse_constant=constant)
    require(isinstance(parsed, dict), f"{key} is no object")
    document: dict[str, Any] = parsed
    return document


def next_state(state: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """The chain summed up after an entry."""
    action = entry["action"]
    after = dict(state)
    match action["kind"]:
        case "claim":
            after.update(epoch=entry["epoch"], base=action["base"], head=action["base"])
        case "publication":
            after["head"] = action["ref"]
        case "deletion":
            after["plans"] = [*state["plans"], {"n": entry["n"], "checkpoints": action["checkpoints"]}]
        case "deletion_end":
            after["plans"] = [plan for plan in state["plans"] if plan["n"] != action["plan"]]
    return after


class PageReader:
    """An open root."""

    def __init__(self, root: Path) -> None:
        """Reads format.json and the chain."""
        self.root = root
        self.run_id = unseal("format.json", read_object(root, "format.json"), "midflight.store")["run_id"]
        self.state: dict[str, Any] = {"epoch": 0, "base": None, "head": None, "plans": []}
        self.existing: dict[str, dict[str, Any]] = {}
        """Ref by checkpoint id."""
        n = 1
        while (root / "chain" / f"{n:012}.json").exists():
            self._take(n)
            n += 1
        later = [path.name for path in (root / "chain").glob("[0-9]*.json") if int(path.stem) > n]
        require(not later, f"entry {n} is missing, and {later} exist")

    def _take(self, n: int) -> None:
        key = f"chain/{n:012}.json"
        entry = unseal(key, read_object(self.root, key), "midflight.chain")
        require(entry["n"] == n and entry["run_id"] == self.run_id, f"{key} is another entry")
        self.state = next_state(self.state, entry)
        require(entry["state"] == self.state, f"{key} has a state that does not follow")
        action = entry["action"]
        if action["kind"] in {"publication", "import"}:
            self.existing[action["ref"]["checkpoint"]] = action["ref"]
        for checkpoint in action["checkpoints"] if action["kind"] == "deletion" else ():
            self.existing.pop(checkpoint, None)

    def checkpoint(self, checkpoint: str = "") -> "PageCheckpoint":
        """One that exists; the head where none is named."""
        ref = self.existing[checkpoint] if checkpoint else self.state["head"]
        return PageCheckpoint(self.root, ref)


class PageCheckpoint:
    """An open checkpoint: manifests and indexes are read and checked."""

    def __init__(self, root: Path, ref: dict[str, Any]) -> None:
        """Follows the digests from the ref down."""
        self.root = root
        self.ref = ref
        require(CHECKPOINT.fullmatch(ref["checkpoint"]), "no checkpoint id")
        self.prefix = f"checkpoints/{ref['checkpoint']}"
        key = f"{self.prefix}/manifest.json"
        self.manifest = unseal(key, read_object(root, key), "midflight.checkpoint", ref["digest"])
        for name in ("run_id", "checkpoint"):
            require(self.manifest[name] == ref[name], f"{key} has another {name}")
        self.shares = [self._share(named) for named in self.manifest["participants"]]
        self._check_lives()

    def _share(self, named: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        folder = self._folder(named)
        key = f"{folder}/manifest.json"
        data = read_object(self.root, key, named["size"])
        manifest = unseal(key, data, "midflight.participant", named["digest"])
        for name in ("kind", "name", "process", "records"):
            require(manifest[name] == named[name], f"{key} has another {name}")
        for name in ("run_id", "checkpoint"):
            require(manifest[name] == self.ref[name], f"{key} has another {name}")
        require(manifest["codec"] == "zstd", "unknown codec")
        return manifest, self._index(folder, manifest)

    def _folder(self, named: dict[str, Any]) -> str:
        names = [named["kind"], named["name"], named["process"]]
        require(all(NAME.fullmatch(name) for name in names), f"{names} are no names")
        return f"{self.prefix}/{names[0]}.{names[1]}/{names[2]}"

    def _index(self, folder: str, manifest: dict[str, Any]) -> list[dict[str, Any]]:
        pinned = manifest["index"]
        key = f"{folder}/index-{pinned['sha256'][:16]}.jsonl.zst"
        data = read_object(self.root, key, pinned["size"])
        require(digest(data) == pinned["sha256"], f"{key} does not match its digest")
        frames = [parse(key, line) for line in decompress(key, data, pinned["raw_size"]).splitlines()]
        for position, part in enumerate(manifest["parts"]):
            own = [frame for frame in frames if frame["part"] == position]
            at = 0
            for frame in own:
                require(frame["offset"] == at, f"{key} has a gap")
                at += frame["size"]
            sums = (at, sum(f["raw_size"] for f in own), sum(len(f["lives"]) for f in own))
            require(sums == (part["size"], part["raw_size"], part["records"]), f"{key} does not fill {part['name']}")
        return frames

    def _check_lives(self) -> None:
        sets = [*self.manifest["scope"], *self.manifest["restarts"], *(d["life"] for d in self.manifest["dropped"])]
        rollouts = [life.partition("/")[0] for life in sets]
        require(len(set(rollouts)) == len(rollouts), "a rollout stands twice")
        held: set[tuple[str, str, str]] = set()
        for manifest, frames in self.shares:
            for life in (life for frame in frames for life in frame["lives"]):
                key = (manifest["kind"], manifest["name"], life)
                require(life in self.manifest["scope"] and key not in held, f"{life} is not held so")
                held.add(key)
        require({life for _, _, life in held} == set(self.manifest["scope"]), "a life of the scope has no record")

    def records(self) -> Iterator[tuple[str, str, Any]]:
        """Participant process, life and payload of every record."""
        for manifest, frames in self.shares:
            folder = self._folder(manifest)
            owner = folder.removeprefix(f"{self.prefix}/")
            for position, part in enumerate(manifest["parts"]):
                require(PART.fullmatch(part["name"]), "no name of a part")
                key = f"{folder}/{part['name']}"
                data = read_object(self.root, key, part["size"])
                require(digest(data) == part["sha256"], f"{key} does not match its digest")
                for frame in frames:
                    if frame["part"] == position:
                        yield from ((owner, life, value) for life, value in self._frame(key, data, frame))

    def _frame(self, key: str, data: bytes, frame: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        stored = data[frame["offset"] : frame["offset"] + frame["size"]]
        require(digest(stored) == frame["sha256"], f"{key} has a damaged frame")
        lines = decompress(key, stored, frame["raw_size"]).split(b"\n")
        require(lines.pop() == b"" and len(lines) == len(frame["lives"]), f"{key} has other lines")
        for life, line in zip(frame["lives"], lines, strict=True):
            record = parse(life, line)
            escaped = record.get("escaped", False)
            require(list(record) == (["life", "escaped", "payload"] if escaped else ["life", "payload"]), "other keys")
            require(record["life"] == life, f"{life} is not on its line")
            yield life, self._unescape(record["payload"]) if escaped else record["payload"]

    def state(self) -> Any:
        """The controller's own state."""
        return self.read_state(self.manifest["state"])

    def read_state(self, state: dict[str, Any] | None) -> Any:
        """A state document as a value."""
        if state is None:
            return None
        value = json.loads(self._blob(state["blob"])) if state["blob"] else state["inline"]
        return self._unescape(value) if state["escaped"] else value

    def _unescape(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._unescape(item) for item in value]
        if not isinstance(value, dict):
            return value
        if list(value) == ["$bytes"]:
            return base64.b64decode(value["$bytes"], validate=True)
        if list(value) == ["$blob"]:
            return self._blob(value["$blob"])
        require(all(key[:1] != "$" or key[:2] == "$$" for key in value), "a key begins with a single $")
        return {key[1:] if key[:2] == "$$" else key: self._unescape(item) for key, item in value.items()}

    def _blob(self, named: dict[str, Any]) -> bytes:
        sha256, writer = named["sha256"], named["written_by"]
        require(re.fullmatch(r"[0-9a-f]{64}", sha256) and CHECKPOINT.fullmatch(writer), "no name of a blob")
        data = read_object(self.root, f"blobs/{sha256[:2]}/{sha256}.{writer}", named["size"])
        require(digest(data) == sha256, f"blob {sha256} does not match its name")
        return data


def decompress(key: str, data: bytes, raw_size: int) -> bytes:
    """One frame, which must announce what it holds."""
    require(zstandard.get_frame_parameters(data).content_size == raw_size, f"{key} announces another size")
    raw: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=raw_size)
    return raw
