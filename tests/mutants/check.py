"""The check itself: first the copy as it is, then each bug in it; what caught which."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .copied import copied, planted
from .mutant import Mutant
from .running import Broken, Found, run_seeds, run_tests, warm_up, where


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one bug."""

    mutant: Mutant
    test: Found | None
    seed: Found | None

    @property
    def caught(self) -> bool:
        """Whether a test or a seed found it."""
        return any(found is not None and found.caught for found in (self.test, self.seed))

    @property
    def by(self) -> str:
        """What caught it, or that nothing did."""
        words = []
        if self.test is not None and self.test.caught:
            words.append(self.test.test)
        if self.seed is not None and self.seed.caught:
            after = f"{self.seed.seeds} seed{'' if self.seed.seeds == 1 else 's'}"
            words.append(f"the simulation, after {after}, by invariant {self.seed.invariant}")
        return ", and ".join(words) or "NOT CAUGHT"

    @property
    def seconds(self) -> float:
        """How long it took."""
        return sum(found.seconds for found in (self.test, self.seed) if found is not None)

    @property
    def line(self) -> str:
        """For people who wait."""
        return f"{self.seconds:6.1f} s  {self.mutant.name}: {self.by}"

    @property
    def document(self) -> dict[str, Any]:
        """For programs."""
        mutant, seed = self.mutant, self.seed
        return {
            "name": mutant.name,
            "file": mutant.file,
            "breaks": mutant.breaks,
            "caught": self.caught,
            "test": self.test.test if self.test else "",
            "seed": seed.seed if seed else None,
            "seeds": seed.seeds if seed else 0,
            "invariant": seed.invariant if seed and seed.caught else None,
            "seconds": round(self.seconds, 2),
        }


def check(mutants: Sequence[Mutant]) -> Iterator[Verdict]:
    """Plant each and run what ought to catch it. Raises Broken where that says nothing, StalePatch for a patch."""
    warm_up()
    with copied() as copy:
        for name, path in where(copy).items():
            if not path.startswith(f"{copy}/"):
                raise Broken(f"{name} would come from {path}, and not from the copy")
        _refuse_unsound(mutants, copy)
        for mutant in mutants:
            with planted(mutant, copy):
                test = run_tests(copy, mutant.tests) if mutant.tests else None
                seed = run_seeds(copy, mutant.seeds) if mutant.seeds else None
            yield Verdict(mutant, test, seed)


def _refuse_unsound(mutants: Sequence[Mutant], copy: Any) -> None:
    """Without a bug everything passes, or nothing that fails later says anything."""
    tests = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
    if tests and (found := run_tests(copy, tests)).caught:
        raise Broken(f"{found.test} fails without any bug")
    for seeds in sorted({mutant.seeds for mutant in mutants if mutant.seeds}, key=str):
        if (shown := run_seeds(copy, seeds)).caught:
            raise Broken(f"seed {shown.seed} of {seeds} shows something without any bug")
