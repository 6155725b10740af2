"""Inference backends: what each kind can do, and the probe that sees whether it does."""

from .capabilities import NOTHING, Capabilities, Feature
from .kinds import DECLARED, declared
from .lazy import LazyCapabilities
from .probe import Asks, Probed, probe

__all__ = ["DECLARED", "NOTHING", "Asks", "Capabilities", "Feature", "LazyCapabilities", "Probed", "declared", "probe"]
