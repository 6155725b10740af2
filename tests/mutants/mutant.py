"""One planted bug: what is changed in which file, and which tests or simulation seeds ought to catch it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Edit = tuple[str, str]
"""The exact text as it stands, once, and the text in its place."""


class StalePatch(Exception):
    """A patch does not apply to the tree, or what it makes does not compile."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """Simulations that ought to find a bug."""

    scenario: str = ""
    """The name of one in `tests.proof.planted`, tried with seed after seed; empty for what each seed draws."""
    count: int = 8
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug that an engineer might make."""

    name: str
    file: str
    """Relative to the root."""
    edits: tuple[Edit, ...]
    breaks: str
    """The rule that it breaks, after the number of its invariant in docs/proof.md where it is one of these."""
    tests: tuple[str, ...] = ()
    """Ids of tests, whole functions."""
    seeds: Seeds | None = None

    def applied(self, text: str) -> str:
        """The file with the bug. Raises StalePatch unless each old text stands there just once."""
        for old, new in self.edits:
            if (found := text.count(old)) != 1:
                raise StalePatch(f"{self.name}: {self.file} has this text {found} times, not once:\n{old}")
            text = text.replace(old, new)
        try:
            compile(text, self.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise StalePatch(f"{self.name}: {self.file} does not compile any more: {error}") from error
        return text


def bug(
    name: str,
    file: str,
    old: str,
    new: str,
    breaks: str,
    *tests: str,
    more: Sequence[Edit] = (),
    seeds: Seeds | None = None,
) -> Mutant:
    """A bug of one edit, and of `more` where one is not enough; test ids are written without their `tests/`."""
    ids = tuple(f"tests/{test}" for test in tests)
    return Mutant(name=name, file=file, edits=((old, new), *more), breaks=breaks, tests=ids, seeds=seeds)


def problems(mutants: Sequence[Mutant], root: Path) -> Iterator[str]:
    """What has rotted: patches that do not apply or compile, tests that are not there, names that come twice."""
    names: set[str] = set()
    for mutant in mutants:
        if mutant.name in names:
            yield f"{mutant.name}: the name comes twice"
        names.add(mutant.name)
        if not (mutant.tests or mutant.seeds):
            yield f"{mutant.name}: nothing is named that ought to catch it"
        try:
            mutant.applied((root / mutant.file).read_text(encoding="utf-8"))
        except (OSError, StalePatch) as error:
            yield str(error)
        for test in mutant.tests:
            path, _, function = test.partition("::")
            if not (root / path).is_file() or f"def {function}(" not in (root / path).read_text(encoding="utf-8"):
                yield f"{mutant.name}: there is no test {test}"
