"""An independent check of a chain of rows: it works out every digest again from the token ids, and trusts no field.

It takes the rows as `Ledger.export`, the HTTP route or the files have them, and shares no code with what makes them:
the formula is in `participants.ledger.rows`, and anybody could write this a second time.
"""

import base64
import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]
Ids = tuple[int, ...]
Resolver = Callable[[Json], tuple[Sequence[int], Sequence[int]] | None]
"""From a row with staged keys to the ids of its prompt and output; None where the token store has them no more."""

_LIFE_PARTS = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    index: int
    """Of the row, by its place in the list; the number of rows where it is about the end."""
    code: str
    """Stable: `malformed`, `index`, `life`, `parent`, `both`, `tokens`, `count`, `segments`, `masked`, `prompt_digest`,
    `context_digest`, `chain`, `rows`, `last`."""
    message: str


def check(
    rows: Iterable[Json],
    *,
    lives: Sequence[str] | None = None,
    count: int | None = None,
    last: str | None = None,
    staged: Resolver | None = None,
) -> list[Finding]:
    """Everything that is wrong with a whole chain of rows, from the first row of its first life.

    `lives` are the lives of the lineage, oldest first; without them only what the rows say of each other is checked.
    `count` and `last` are what a manifest or a receipt says: without them, rows missing at the end cannot be told.
    `staged` gives the ids behind staged keys; without it those rows are checked as far as one can without the ids.
    """
    checking = _Checking(None if lives is None else list(lives), staged)
    total = 0
    for total, row in enumerate(rows, 1):
        try:
            checking.row(total - 1, row)
        except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
            checking.find(total - 1, "malformed", f"it cannot be read: {error!r:.200}")
            checking.context = None
    if count is not None and total != count:
        checking.find(total, "rows", f"there are {total} rows, and there should be {count}")
    if last is not None and checking.chain != last:
        checking.find(total, "last", "the last row is not the one that the manifest names")
    return checking.findings


@dataclass(slots=True)
class _Checking:
    lives: list[str] | None
    staged: Resolver | None
    findings: list[Finding] = field(default_factory=list)
    chain: str = "0" * 64
    parent: str = ""
    context: Ids | None = ()
    """Prompt and output of the parent; None where nobody knows them."""
    seen: list[str] = field(default_factory=list)
    """The lives so far."""

    def find(self, index: int, code: str, message: str) -> None:
        self.findings.append(Finding(index, code, f"row {index}: {message}"))

    def row(self, index: int, row: Json) -> None:
        if row["index"] != index:
            self.find(index, "index", f"it says that it is row {row['index']}")
        self._life(index, row["life"])
        if row["parent"] != self.parent:
            self.find(index, "parent", f"its parent is {row['parent']!r}, and should be {self.parent!r}")
        self._segments(index, row)
        ids = self._ids(index, row)
        if ids is not None:
            self._tokens(index, row, *ids)
        if _chain(self.chain, row) != row["chain"]:
            self.find(index, "chain", "its chain does not follow from the row before and its own fields")
        self.chain = row["chain"]
        if row["outcome"] == "completed":
            self.parent = row["call"]
            self.context = None if ids is None else ids[0] + ids[1]

    def _life(self, index: int, life: str) -> None:
        if self.lives is not None and life not in self.lives:
            self.find(index, "life", f"{life} is not in the lineage")
        if not self.seen:
            self.seen.append(life)
            return
        if life == self.seen[-1]:
            return
        before, now = _parts(self.seen[-1]), _parts(life)
        if life in self.seen:
            self.find(index, "life", f"{life} comes back after {self.seen[-1]}")
        elif before[0] != now[0]:
            self.find(index, "life", f"{life} is of another rollout than {self.seen[-1]}")
        elif before[1][1] >= now[1][1] or (before[1][0], before[1][2]) >= (now[1][0], now[1][2]):
            self.find(index, "life", f"{life} cannot continue {self.seen[-1]}")
        self.seen.append(life)

    def _segments(self, index: int, row: Json) -> None:
        end = 0
        for start, count, _ in row["segments"]:
            if start != end or count <= 0:
                self.find(index, "segments", f"a segment of {count} tokens begins at {start}, and should at {end}")
            end = start + count
        if row["segments"] and end != row["generated_count"]:
            self.find(index, "segments", f"the segments end at {end} of {row['generated_count']} tokens")
        for name in ("masked", "continued"):
            if not 0 <= row[name] <= row["generated_count"]:
                self.find(index, "masked", f"{row[name]} of {row['generated_count']} tokens are {name}")

    def _ids(self, index: int, row: Json) -> tuple[Ids, Ids] | None:
        """Prompt and output, wherever they are."""
        inline = row["inline"]
        if inline is not None and row["staged"]:
            self.find(index, "both", "it has inline tokens and staged keys")
        if inline is not None:
            return self._inline(index, inline)
        if row["staged"]:
            found = self.staged(row) if self.staged else None
            if self.staged and found is None:
                self.find(index, "tokens", f"nothing is staged under {list(row['staged'])}")
            return found and (tuple(found[0]), tuple(found[1]))
        if row["prompt_digest"] or row["context_digest"]:
            self.find(index, "tokens", "it has digests, and tokens nowhere")
        return None

    def _inline(self, index: int, inline: Json) -> tuple[Ids, Ids] | None:
        prompt, output = _decoded(inline["prompt"]), _decoded(inline["output"])
        if not inline["extends"]:
            return prompt, output
        if not self.parent:
            self.find(index, "tokens", "it extends a prompt, and no completed row stands before it")
            return None
        if self.context is None:  # The parent's own tokens are missing: that is found there, or they are staged.
            return None
        return self.context + prompt, output

    def _tokens(self, index: int, row: Json, prompt: Ids, output: Ids) -> None:
        for name, ids in (("prompt_count", prompt), ("generated_count", output)):
            if row[name] != len(ids):
                self.find(index, "count", f"{name} is {row[name]}, and there are {len(ids)} tokens")
        if row["prompt_digest"] != _sha256(prompt):
            self.find(index, "prompt_digest", "its prompt has another digest")
        if row["context_digest"] != _sha256(prompt + output):
            self.find(index, "context_digest", "its prompt and output have another digest")


def _parts(life: str) -> tuple[str, tuple[int, int, int]]:
    """The rollout, and (epoch, attempt, n)."""
    rollout, _, rest = life.rpartition("/")
    numbers = rest.replace("#", ".").split(".")
    if len(numbers) != _LIFE_PARTS:
        raise ValueError(f"{life!r} is no life")
    return rollout, (int(numbers[0]), int(numbers[1]), int(numbers[2]))


def _decoded(text: str) -> Ids:
    data = base64.b64decode(text, validate=True)
    return struct.unpack(f"<{len(data) // 4}I", data)


def _sha256(ids: Ids) -> str:
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


def _chain(previous: str, row: Json) -> str:
    left_out = ("prompt_digest", "context_digest", "chain")
    facts = {name: value for name, value in row.items() if name not in left_out}
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    joined = f"{previous}\n{row['prompt_digest']}\n{row['context_digest']}\n{digest}"
    return hashlib.sha256(joined.encode()).hexdigest()
