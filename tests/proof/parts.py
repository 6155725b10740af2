"""The parts of the proof, in the order in which they are run."""

from tests.simulation.scenarios import SMALL

from . import enumerations
from .part import SEEDED, Part
from .seeds import EXPECTED, seeds, simulated

PARTS = (
    Part(
        name="crash states",
        share=0.15,
        tasks=enumerations.crash_states,
        counted="crash states",
        sentence=enumerations.crashes_told,
        expected=[f"all of {name}" for name in enumerations.WORK],
    ),
    Part(
        name="schedules",
        share=0.15,
        tasks=enumerations.schedules,
        counted="schedules",
        sentence=enumerations.schedules_told,
        expected=[f"every schedule of {scene}" for scene in SMALL],
    ),
    Part(
        name="kills",
        share=0.1,
        tasks=enumerations.kills,
        counted="kills",
        sentence=enumerations.kills_told,
        expected=[f"killed after: {word}" for word in ("pid", "claimed", "published", "pruned")],
    ),
    Part(name=SEEDED, share=1.0, tasks=seeds, counted="seeds", sentence=simulated, expected=EXPECTED),
)
"""The simulation is the last one, and has what the others leave of the time."""
