"""Writes the table of parsers into docs/fuzzing.md: `python -m tests.fuzz.page`."""

from collections.abc import Sequence

from bench.command_line import Command
from tests.support.control_page import _find

from .parsers import PARSERS
from .seeds import ROOT

PAGE = ROOT / "docs" / "fuzzing.md"
BLOCK = "parsers"
OWN = "tests/fuzz/test_parsers.py"


def table() -> str:
    """A row for each parser."""
    rows = []
    for parser in PARSERS.values():
        raises = ", ".join(f"`{error.__name__}`" for error in parser.errors) or "nothing"
        again = "yes" if parser.again else "it is not written"
        cells = [f"`{parser.name}`", parser.reads, f"`{parser.place}`", raises, again, f"`{parser.tested or OWN}`"]
        rows.append(f"| {' | '.join(cells)} |")
    head = "| parser | reads | in | may raise | means the same again | fed by |"
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])


def renewed(page: str) -> str:
    """The page with the table as it is now."""
    return page.replace(_find(page, BLOCK)[0], f"<!-- generated: {BLOCK} -->\n\n{table()}\n\n<!-- end -->")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command. It has no options, and `--help` writes nothing."""
    Command("tests.fuzz.page", __doc__).parse_args(arguments)
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
