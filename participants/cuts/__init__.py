"""Cutting a generation and continuing it: what was generated so far, what to ask for, and the joined reply. Pure."""

from .prefix import Prefix, Segment

__all__ = ["Prefix", "Segment"]
