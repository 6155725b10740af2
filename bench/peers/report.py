"""Figures of a run of `bench.peers` as JSON, as tables and as a picture."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .killed import Load, Redone
from .protocol import Saves
from .standing import Size, Stood

SAVED = {
    "restorable": "restorable",
    "tokens": "exact tokens",
    "prefix": "generation under way",
    "effects": "tools take effect",
    "processes": "several processes",
    "whole": "all as of one moment, or none",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One peer."""

    name: str
    title: str
    saves: Saves
    by_checkpoint: bool
    versions: Mapping[str, str]
    missing: str = ""
    """Why it has no figures."""
    stood: Stood | None = None
    redone: Mapping[str, Redone] = field(default_factory=dict)
    """Of each load."""
    load: float = 0.0
    """Of the machine, over the last five minutes of its measuring: other work makes the clock run on."""


def summary(rows: Sequence[Row], size: Size, loads: Mapping[str, Load], of_what: Mapping[str, Any]) -> dict[str, Any]:
    """All of a run, as its last line shows it."""
    killed = {name: asdict(load) | {"lives_s": [round(s, 2) for s in load.lives()]} for name, load in loads.items()}
    ran = {"standing": asdict(size), "killed": killed}
    return {**of_what, **ran, "peers": {row.name: _peer(row, size) for row in rows}}


def _peer(row: Row, size: Size) -> dict[str, Any]:
    about: dict[str, Any] = {"title": row.title, "versions": dict(row.versions), "saves": asdict(row.saves)}
    if row.missing:
        return {**about, "missing": row.missing}
    if row.stood is not None:
        stood, turns = row.stood, size.episodes * size.turns
        restorable = stood.settling if row.by_checkpoint else stood.durable
        about |= {
            "loop_per_turn": stood.bare.per(turns),
            "durable_per_turn": stood.durable.per(turns),
            "of_it_checkpoint": stood.settling.per(turns),
            "restorable_s": round(restorable.wall_s, 3),
            "restorable_cpu_s": round(restorable.cpu_s, 3),
            "restore_s": round(stood.restore.wall_s, 3),
            "restore_cpu_s": round(stood.restore.cpu_s, 3),
            "bytes": stood.bytes,
            "bytes_per_turn": round(stood.bytes / turns),
            "calls_again": stood.calls_again,
            "equal": stood.equal,
        }
    return about | {"load_average": row.load, "redone": {name: asdict(redone) for name, redone in row.redone.items()}}


def tables(found: Mapping[str, Any]) -> str:
    """Three tables in Markdown: cost, work redone, and what is saved."""
    peers = found["peers"].values()
    whole = [peer for peer in peers if "missing" not in peer]
    parts = [_cost([peer for peer in whole if "bytes" in peer])]
    parts += [f"Killed, {name} turns:\n\n" + _redone(name, whole) for name in found["killed"]]
    parts.append(
        _table(["", *SAVED.values()], [[peer["title"], *(peer["saves"][key] for key in SAVED)] for peer in peers])
    )
    missing = [f"not measured: {peer['title']}: {peer['missing']}" for peer in peers if "missing" in peer]
    return "\n\n".join([part for part in parts if part] + missing)


def _cost(peers: Iterable[Mapping[str, Any]]) -> str:
    head = [
        "", "cpu a turn", "clock a turn", "the loop itself, cpu a turn", "bytes a turn", "all restorable after",
        "restored in", "its cpu", "turns made again", "every message equal", "load",
    ]  # fmt: skip
    return _table(
        head,
        [
            [
                peer["title"],
                _ms(peer["durable_per_turn"]["cpu_us"]) if peer["bytes"] else "0",
                _ms(peer["durable_per_turn"]["wall_us"]) if peer["bytes"] else "0",
                _ms(peer["loop_per_turn"]["cpu_us"]),
                f"{peer['bytes_per_turn']:,}",
                f"{peer['restorable_s']:.2f} s" if peer["bytes"] else "never",
                f"{peer['restore_s']:.2f} s",
                f"{peer['restore_cpu_s']:.2f} s",
                f"{peer['calls_again']:,}",
                "yes" if peer["equal"] else "NO",
                f"{peer['load_average']:g}",
            ]
            for peer in peers
        ],
    )


def _ms(us: float) -> str:
    return f"{us / 1e3:.3f} ms"


def _redone(load: str, peers: Iterable[Mapping[str, Any]]) -> str:
    head = ["", "kills", "turns lost", "turns begun again", "tokens generated again", "of those needed", "whole run"]
    return _table(head, [[peer["title"], *_again(peer["redone"][load])] for peer in peers])


def _again(redone: Mapping[str, Any]) -> list[str]:
    counts = [f"{redone[key]:,}" for key in ("kills", "turns_lost", "turns_again", "tokens_again")]
    return [*counts, f"{redone['tokens_again'] / redone['tokens']:.1%}", f"{redone['whole_s']:.1f} s"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of the picture, on a scale of its own; all are better when they are less."""

    title: str
    read: Callable[[Mapping[str, Any]], float]
    of_rows_only: str = ""
    """What stands for a peer that keeps nothing of what is in flight, where the figure would mislead."""


def panels(found: Mapping[str, Any]) -> list[Panel]:
    """Those that a run has figures for."""
    parts = []
    if found["standing"]["episodes"]:
        parts = [
            Panel("processor time a turn, ms", lambda peer: peer["durable_per_turn"]["cpu_us"] / 1e3, "0"),
            Panel("bytes a turn", lambda peer: peer["bytes_per_turn"], "0"),
            Panel("until all are restorable, s", lambda peer: peer["restorable_s"], "never"),
            Panel("until all are restored, s", lambda peer: peer["restore_s"], "nothing is"),
        ]
    return parts + [Panel(f"tokens again, {name} turns", partial(_tokens_again, name)) for name in found["killed"]]


def _tokens_again(load: str, peer: Mapping[str, Any]) -> float:
    return float(peer["redone"][load]["tokens_again"])


def draw(found: Mapping[str, Any], path: Path) -> None:
    """The picture. Needs matplotlib, of the extra dev. Who was not measured has no bar, and its name says so."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "peers", "font.size": 9})
    from matplotlib import pyplot

    peers, parts = list(found["peers"].values()), panels(found)
    names = [peer["title"] + (" (not measured)" if "missing" in peer else "") for peer in peers]
    colours = ["#5b9bd5" if name == "midflight" else "#bbbbbb" for name in found["peers"]]
    figure, axes = pyplot.subplots(
        1, len(parts), figsize=(2.2 + 2.3 * len(parts), 0.7 + 0.42 * len(peers)), sharey=True, squeeze=False
    )
    for axis, panel in zip(axes[0], parts, strict=True):
        bars = [_bar(panel, peer) for peer in peers]
        drawn = axis.barh(range(len(peers)), [length for length, _ in bars], color=colours)
        axis.bar_label(drawn, [label for _, label in bars], padding=2)
        axis.set_title(panel.title, fontsize=9)
        axis.set_yticks(range(len(peers)), names)
        axis.set_xlim(0, max(1e-9, *(length for length, _ in bars)) * 1.45)
        axis.xaxis.set_visible(False)
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    axes[0][0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _bar(panel: Panel, peer: Mapping[str, Any]) -> tuple[float, str]:
    """Its length, and what stands beside it."""
    if "missing" in peer:
        return 0.0, "-"
    if panel.of_rows_only and peer["bytes"] == 0:
        return 0.0, panel.of_rows_only
    value = panel.read(peer)
    return value, f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def load_figures(path: Path) -> dict[str, Any]:
    """What `--figures` wrote."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
