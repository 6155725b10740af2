"""Telemetry as a hook: the code says what it does, and recorders that are installed take it somewhere else."""

from .hook import (
    HEADER,
    NO_SPAN,
    NoSpan,
    OpenSpan,
    active,
    add,
    continuing,
    drain,
    gauge,
    install,
    observe,
    span,
    traceparent,
    uninstall,
)
from .records import Attribute, Readings, Recorder, Span

__all__ = [
    "HEADER",
    "NO_SPAN",
    "Attribute",
    "NoSpan",
    "OpenSpan",
    "Readings",
    "Recorder",
    "Span",
    "active",
    "add",
    "continuing",
    "drain",
    "gauge",
    "install",
    "observe",
    "span",
    "traceparent",
    "uninstall",
]
