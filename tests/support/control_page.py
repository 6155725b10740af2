"""Draws the generated blocks of docs/control.md from the tables; `python -m tests.support.control_page` rewrites them.

A block stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.command_line import Command
from participants import OPERATIONS, TRANSITIONS, Code, Event, Phase
from participants.errors import HINT, STATUS
from participants.wire import RESULTS, ControlCall, Finished, Results

PAGE = Path(__file__).parents[2] / "docs" / "control.md"


def rendered() -> Mapping[str, str]:
    """Every block by name."""
    return {"phases": _diagram(), "transitions": _transitions(), "operations": _operations(), "errors": _errors()}


def current(page: str, block: str) -> str:
    """What a page has for a block. Raises LookupError where it has no such block."""
    return _find(page, block)[1].strip()


def renewed(page: str) -> str:
    """The page with every block as the tables have it."""
    for block, text in rendered().items():
        page = page.replace(_find(page, block)[0], f"<!-- generated: {block} -->\n\n{text}\n\n<!-- end -->")
    return page


def _find(page: str, block: str) -> re.Match[str]:
    match = re.search(rf"<!-- generated: {block} -->(.*?)<!-- end -->", page, re.DOTALL)
    if match is None:
        raise LookupError(f"the page has no block {block}")
    return match


def _diagram() -> str:
    arrows: dict[tuple[Phase, Phase], list[str]] = {}
    for (phase, event), after in TRANSITIONS.items():
        if event is not Event.ABORT and phase is not after:
            arrows.setdefault((phase, after), []).append(event.value)
    lines = [f"    {one} --> {other}: {', '.join(events)}" for (one, other), events in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> idle", *lines, "```"])


def _transitions() -> str:
    rows = []
    for phase in Phase:
        moves = [f"{event} → {TRANSITIONS[phase, event]}" for event in Event if (phase, event) in TRANSITIONS]
        rows.append(f"| `{phase}` | {', '.join(moves)} |")
    return "\n".join(["| phase | event → next phase |", "|---|---|", *rows])


def _operations() -> str:
    envelope = set(ControlCall.model_fields)
    rows = []
    for name, (message, answer) in OPERATIONS.items():
        fields = ", ".join(f"`{field}`" for field in message.model_fields if field not in envelope)
        answers = ", ".join(f"`{field}`" for field in answer.model_fields)
        rows.append(f"| `POST {name}` | {(message.__doc__ or '').splitlines()[0]} | {fields} | {answers} |")
    stream = ", ".join(f"`{field}`" for field in Finished.model_fields)
    rows.append(f"| `POST {RESULTS}` | {(Results.__doc__ or '').splitlines()[0]} | `after` | lines of {stream} |")
    return "\n".join(["| route | what it does | fields | answer |", "|---|---|---|---|", *rows])


def _errors() -> str:
    rows = [f"| `{code}` | {STATUS[code]} | {HINT[code]} |" for code in Code]
    return "\n".join(["| code | status | what to do |", "|---|---|---|", *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    """The command. It has no options, and `--help` writes nothing."""
    Command("tests.support.control_page", __doc__).parse_args(arguments)
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
