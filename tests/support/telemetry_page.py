"""Draws the tables of docs/telemetry.md; `python -m tests.support.telemetry_page` rewrites them.

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.command_line import Command
from participants.telemetry.names import METRICS, SPANS, Instrument

PAGE = Path(__file__).parents[2] / "docs" / "telemetry.md"


def rendered() -> Mapping[str, str]:
    """Every block by name."""
    labels = sorted({(label, values) for one in METRICS for label, values in one.labels.items() if values}, key=_key)
    return {
        "spans": _table(
            "| span | what it is | attributes |", [f"| `{s.name}` | {s.means} | {_code(s.attributes)} |" for s in SPANS]
        ),
        "metrics": _table(
            "| metric | Prometheus | kind, unit | labels | what it is |", [_metric(one) for one in METRICS]
        ),
        "labels": _table(
            "| label | of | values |",
            [f"| `{label}` | {_owners(label, values)} | {_code(sorted(values))} |" for label, values in labels],
        ),
    }


def renewed(page: str) -> str:
    """The page with every block as the table of names has it. Raises LookupError where it has no such block."""
    for block, text in rendered().items():
        found = re.search(rf"<!-- generated: {block} -->(.*?)<!-- end -->", page, re.DOTALL)
        if found is None:
            raise LookupError(f"the page has no block {block}")
        page = page.replace(found[0], f"<!-- generated: {block} -->\n\n{text}\n\n<!-- end -->")
    return page


def _table(head: str, rows: list[str]) -> str:
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *rows])


def _metric(one: Instrument) -> str:
    unit = "" if one.unit == "1" else f", `{one.unit}`"
    return f"| `{one.name}` | `{one.prometheus}` | {one.shape}{unit} | {_code(one.labels)} | {one.means} |"


def _code(words: object) -> str:
    assert hasattr(words, "__iter__")
    return ", ".join(f"`{word}`" for word in words)


def _key(found: tuple[str, frozenset[str] | None]) -> tuple[str, list[str]]:
    return found[0], sorted(found[1] or ())


def _owners(label: str, values: frozenset[str] | None) -> str:
    return _code(one.name for one in METRICS if one.labels.get(label) == values)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command. It has no options, and `--help` writes nothing."""
    Command("tests.support.telemetry_page", __doc__).parse_args(arguments)
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
