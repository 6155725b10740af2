"""Where objects are kept: one narrow interface, and the backends for memory, local folders and object storage."""

from .base import Backend, ObjectInfo, Traits
from .counting import CountingBackend
from .files import FileFacts, FileOp, FileOps, Handle
from .local import LocalBackend
from .memory import Call, Fault, MemoryBackend, MemorySpace, Verb, forget_space
from .opening import OpenedBackend, make_backend, open_backend
from .probe import ProbeReport, probe
from .retry import Retrying, create_once

__all__ = [
    "Backend",
    "Call",
    "CountingBackend",
    "Fault",
    "FileFacts",
    "FileOp",
    "FileOps",
    "Handle",
    "LocalBackend",
    "MemoryBackend",
    "MemorySpace",
    "ObjectInfo",
    "OpenedBackend",
    "ProbeReport",
    "Retrying",
    "Traits",
    "Verb",
    "create_once",
    "forget_space",
    "make_backend",
    "open_backend",
    "probe",
]
