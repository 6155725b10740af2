"""The picture of a killed training run beside one that was left alone. Needs matplotlib, of the extra dev.

python -m examples.training.curve [FOLDER] [--picture docs/training-run.svg]

FOLDER is that of examples.training.kills. Above: the reward of each step. Below: the step that the trainer was at, by
the clock; where a kill has undone something, it falls.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from .kills import events_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALONE, KILLED, CHANCE = "#9ec5e8", "#1f3b57", "#999999"
RED = "#c0392b"


def draw(folder: Path, picture: Path) -> None:
    """Draw both runs of a folder."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.hashsalt": "midflight", "svg.fonttype": "none", "font.size": 9})
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 6.4), layout="constrained")
    _rewards(above, folder)
    _progress(below, folder)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None, dpi=150)


def _rewards(axes: "Axes", folder: Path) -> None:
    looks: dict[str, dict[str, Any]] = {
        "whole": {"color": ALONE, "linewidth": 6, "label": "left alone"},
        "killed": {"color": KILLED, "linewidth": 1, "marker": ".", "label": "killed"},
    }
    for name, look in looks.items():
        rewards = [each["reward"] for each in orjson.loads((folder / name / "history.json").read_bytes())["history"]]
        axes.plot(range(1, len(rewards) + 1), rewards, **look)
    axes.axhline(0.2, color=CHANCE, linestyle=":", label="words by chance")
    axes.set(xlabel="step", ylabel="mean reward of the step's rollouts", ylim=(0, 1))
    axes.legend(frameon=False, loc="upper left")


def _progress(axes: "Axes", folder: Path) -> None:
    for name, color, width in (("whole", ALONE, 3), ("killed", KILLED, 1.2)):
        events = list(events_of(folder / name))
        begun = events[0]["at"]
        known = [event for event in events if event["event"] != "killed"]
        minutes = [(event["at"] - begun) / 60 for event in known]
        axes.step(minutes, [event["step"] for event in known], where="post", color=color, linewidth=width)
        for event in events:
            if event["event"] == "killed":
                at = (event["at"] - begun) / 60
                axes.axvline(at, color=RED, linewidth=0.6)
                axes.annotate(
                    event["victim"], (at, 0), xycoords=("data", "axes fraction"), xytext=(2, 3),
                    textcoords="offset points", rotation=90, va="bottom", color=RED, fontsize=7,
                )  # fmt: skip
    axes.set(xlabel="minutes", ylabel="step that the trainer is at", ylim=(0, None), xlim=(0, None))


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.training.curve")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/training-kills"))
    parser.add_argument("--picture", type=Path, default=Path("docs/training-run.svg"))
    asked = parser.parse_args()
    draw(asked.folder, asked.picture)
    print(f"drawn: {asked.picture}")


if __name__ == "__main__":
    main()
