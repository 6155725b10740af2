"""Every name that telemetry has: one table, which docs/telemetry.md shows and tests hold the code to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Shape = Literal["span", "counter", "histogram", "gauge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One thing that is measured."""

    name: str
    """Dotted, and stable: it changes with a major version only."""
    shape: Shape
    unit: str = "1"
    """As UCUM writes it: `s`, `By`, and `1` or `{things}` for counts."""
    labels: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    """Each label with all values that it can have; None for `participant`, whose values are the run's few roles."""
    means: str
    """One sentence."""

    @property
    def prometheus(self) -> str:
        """The name that Prometheus has for it."""
        name = self.name.replace(".", "_")
        if self.unit == "s":
            name += "_seconds"
        elif self.unit == "By":
            name += "_bytes"
        return f"{name}_total" if self.shape == "counter" else name


TABLE: tuple[Instrument, ...] = ()
BY_NAME: Mapping[str, Instrument] = {one.name: one for one in TABLE}
