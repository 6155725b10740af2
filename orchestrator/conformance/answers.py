"""What a call was answered, in a form that two runs can be compared by and people can read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

MAX_SHOWN = 400


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, or the typed failure of a call."""

    status: int
    body: Any
    """The reply's, or the message of a failure."""
    code: str = ""
    """Of a failure; empty for a reply, also for one that refuses."""

    @property
    def failed(self) -> bool:
        """Whether the call failed, rather than being answered."""
        return bool(self.code)

    @property
    def refused(self) -> bool:
        """Whether a tool said no."""
        return not self.failed and self.status >= 400

    def __str__(self) -> str:
        if self.failed:
            return f"the failure {self.code}: {self.body!s:.300}"
        return f"{self.status} {shown(self.body)}" if self.status != 200 else shown(self.body)

    def same(self, other: "Answer", names: Mapping[str, str] | None = None) -> bool:
        """Whether two runs were answered the same; `names` of this one's rollouts to those of the other one.

        Of a failure the code counts, because messages may hold addresses and times.
        """
        if self.failed or other.failed:
            return self.code == other.code
        return self.status == other.status and _renamed(self.body, names) == other.body


def _renamed(body: Any, names: Mapping[str, str] | None) -> Any:
    if not names:
        return body
    text = orjson.dumps(body).decode()
    for old, new in names.items():
        text = text.replace(old, new)
    return orjson.loads(text)


def shown(value: Any) -> str:
    """A value on one line, cut where it is long."""
    text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=repr).decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"


def difference(one: Any, other: Any) -> tuple[str, Any, Any]:
    """Where two values that differ do so, such as `['a'][0]`, and what stands there in each."""
    at = ""
    while True:
        keys: Iterable[Any] = ()
        if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
            keys = one
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            keys = range(len(one))
        differing = [key for key in keys if one[key] != other[key]]
        if len(differing) != 1:
            return at, one, other
        [key] = differing
        at, one, other = f"{at}[{key!r}]", one[key], other[key]
