"""Inference backends: what each kind can do, and the probe that sees whether it does."""

from .capabilities import NOTHING, Capabilities, Feature

__all__ = ["NOTHING", "Capabilities", "Feature"]
