"""Model-written programs, run contained: docs/sandbox.md says what that promises."""

from .compiling import COMPILE_LIMITS, DEFAULT_FLAGS, compile_cpp
from .order import PATH, python_paths
from .program import WORK, Containment, Ended, Program, Ran, SandboxLimits
from .sandbox import Sandbox
from .writing import write_files

__all__ = [
    "COMPILE_LIMITS",
    "DEFAULT_FLAGS",
    "PATH",
    "WORK",
    "Containment",
    "Ended",
    "Program",
    "Ran",
    "Sandbox",
    "SandboxLimits",
    "compile_cpp",
    "python_paths",
    "write_files",
]
