"""The table of docs/mutants.md."""

from collections.abc import Sequence

from .check import Verdict
from .copied import ROOT

PAGE = ROOT / "docs" / "mutants.md"
BEGIN, END = "<!-- generated: mutants -->", "<!-- end -->"


def table(verdicts: Sequence[Verdict]) -> str:
    """A row a bug."""
    rows = [f"| {v.mutant.name} | `{v.mutant.file}` | {v.mutant.breaks} | {_caught(v)} |" for v in verdicts]
    return "\n".join(["| bug | in | breaks | caught by |", "|---|---|---|---|", *rows])


def _caught(verdict: Verdict) -> str:
    test = verdict.test.test if verdict.test else ""
    return verdict.by.replace(test, f"`{test.removeprefix('tests/')}`", 1) if test else verdict.by


def renew(verdicts: Sequence[Verdict]) -> None:
    """Put the table into the page."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(verdicts)}\n\n{END}{tail}", encoding="utf-8")


def listed() -> list[str]:
    """The names that the page has."""
    generated = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in generated.splitlines()[3:] if line.startswith("| ")]
