"""Spans over processes as a picture: a row of lanes for each process, and time from left to right, as SVG."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from .otlp_sink import SeenSpan

LEFT, WIDTH, RIGHT = 150, 1050, 80
"""Pixels for the names of processes, for the time, and behind it."""
BAR, LANE, GAP, TITLE, AXIS = 15, 17, 10, 44, 22
LETTER = 6.1
"""About the width of one, at the size of the labels."""
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
COLOURS = {
    "prepare": "#f2b54a",
    "commit": "#5b9bd5",
    "renew": "#b8a9d9",
    "resume": "#7cc47f",
    "publish": "#e07b7b",
    "stage": "#5b9bd5",
    "activate": "#7cc47f",
    "restore": "#9fc5e8",
    "adopt": "#b8a9d9",
    "retire": "#e07b7b",
    "checkpoint": "#d9d9d9",
    "collect": "#ececec",
}
OTHER = "#cfcfcf"


@dataclass(frozen=True, slots=True)
class Bar:
    """A span with its place."""

    span: SeenSpan
    lane: int
    """Among those of its process, from the top."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One trace and what is said above it."""

    title: str
    spans: Sequence[SeenSpan]


def lanes(spans: Iterable[SeenSpan]) -> list[Bar]:
    """Those of one process: each below the span that it is in, and no two over each other."""
    placed: dict[str, Bar] = {}
    ends: list[int] = []
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        outer = placed.get(span.parent_id or "")
        lane = outer.lane + 1 if outer else 0
        while lane < len(ends) and ends[lane] > span.start_ns:
            lane += 1
        ends += [0] * (lane + 1 - len(ends))
        ends[lane] = span.end_ns
        placed[span.span_id] = Bar(span, lane)
    return list(placed.values())


def short(name: str) -> str:
    """What is left of a name where it is clear whose it is."""
    rest = name.removeprefix("midflight.participant.").removeprefix("midflight.")
    return rest if rest.startswith("collect.") else rest.rpartition(".")[2]


def colour(name: str) -> str:
    """By the operation that a span is, or is a part of."""
    parts = name.removeprefix("midflight.participant.").removeprefix("midflight.").split(".")
    return next((COLOURS[part] for part in parts if part in COLOURS), OTHER)


def draw(panels: Sequence[Panel], order: Sequence[str]) -> str:
    """All panels below each other; processes in this order, others behind them."""
    parts, y = [], 0
    for panel in panels:
        found, height = _panel(panel, order, y)
        parts += found
        y += height
    width = LEFT + WIDTH + RIGHT
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}"'
    style = 'font-family="Helvetica, Arial, sans-serif" font-size="11" fill="#222"'
    return "\n".join([f"{head} {style}>", f'<rect width="{width}" height="{y}" fill="#fff"/>', *parts, "</svg>", ""])


def _panel(panel: Panel, order: Sequence[str], top: int) -> tuple[list[str], int]:
    by_process: dict[str, list[SeenSpan]] = {process: [] for process in order}
    for span in panel.spans:
        by_process.setdefault(span.process, []).append(span)
    begin = min(span.start_ns for span in panel.spans)
    length_ns = max(span.end_ns for span in panel.spans) - begin
    bars = {process: lanes(spans) for process, spans in by_process.items() if spans}
    rows = {process: max(bar.lane for bar in found) + 1 for process, found in bars.items()}
    height = TITLE + sum(count * LANE + GAP for count in rows.values()) + AXIS
    parts = [f'<text x="10" y="{top + 22}" font-size="15" font-weight="bold">{escape(panel.title)}</text>']
    parts += _axis(length_ns, top + TITLE - 6, top + height - AXIS)
    y = top + TITLE
    for process, found in bars.items():
        parts.append(f'<text x="10" y="{y + 12}" font-size="12">{escape(process)}</text>')
        for bar, following in _with_next(found):
            parts += _bar(bar, following, begin, length_ns, y)
        y += rows[process] * LANE + GAP
        parts.append(f'<path d="M10 {y - GAP // 2}H{LEFT + WIDTH}" stroke="#e4e4e4"/>')
    return parts, height


def _axis(length_ns: int, top: int, bottom: int) -> list[str]:
    length_ms = length_ns / 1e6
    step = next((tick for tick in TICKS if length_ms / tick <= 14), TICKS[-1])
    parts = []
    for number in range(int(length_ms // step) + 1):
        x = round(LEFT + number * step / length_ms * WIDTH, 1)
        parts.append(f'<path d="M{x} {top}V{bottom}" stroke="#ededed"/>')
        parts.append(f'<text x="{x}" y="{bottom + 14}" text-anchor="middle" fill="#777">{number * step} ms</text>')
    return parts


def _with_next(bars: Sequence[Bar]) -> Iterable[tuple[Bar, int | None]]:
    """Each, and when the next one of its lane begins."""
    starts: dict[int, list[int]] = {}
    for bar in bars:
        starts.setdefault(bar.lane, []).append(bar.span.start_ns)
    for bar in bars:
        later = [start for start in starts[bar.lane] if start > bar.span.start_ns]
        yield bar, min(later, default=None)


def _bar(bar: Bar, following: int | None, begin: int, length_ns: int, top: int) -> list[str]:
    span = bar.span

    def at(ns: int) -> float:
        return round(LEFT + (ns - begin) / length_ns * WIDTH, 1)

    x, y, width = at(span.start_ns), top + bar.lane * LANE, max(1.0, round(at(span.end_ns) - at(span.start_ns), 1))
    took_ms = (span.end_ns - span.start_ns) / 1e6
    told = "".join(f"\n{key} = {value}" for key, value in span.attributes.items())
    edge = "#c00" if span.error else "#fff"
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{BAR}" rx="2" fill="{colour(span.name)}" stroke="{edge}"'
    parts = [f'<g><title>{escape(f"{span.name}, {took_ms:.2f} ms{told}")}</title>{shape} stroke-width=".5"/>']
    room = (at(following) if following is not None else LEFT + WIDTH + RIGHT) - x
    for label in (_label(span, took_ms), _label(span)):
        needs = len(label) * LETTER + 6
        if needs <= width or needs + width <= room:
            text_x = round(x + (3 if needs <= width else width + 3), 1)
            parts.append(f'<text x="{text_x}" y="{y + 11.5}">{escape(label)}</text>')
            break
    return ["".join([*parts, "</g>"])]


def _label(span: SeenSpan, took_ms: float | None = None) -> str:
    what = str(span.attributes.get("kind", short(span.name)))
    return what if took_ms is None else f"{what} {took_ms:.0f} ms" if took_ms >= 1 else f"{what} {took_ms:.1f} ms"
