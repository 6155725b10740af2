"""A deterministic, OpenAI-compatible inference backend for tests, demos and benches."""

from .control import Pace
from .refusals import RequestRefused
from .server import DEFAULT_MODEL, REAL_MODEL, Backend, Settings
from .serving import serve_forever, serving

__all__ = ["DEFAULT_MODEL", "REAL_MODEL", "Backend", "Pace", "RequestRefused", "Settings", "serve_forever", "serving"]
