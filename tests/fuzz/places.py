"""A folder for parsers that read files: one a process, in memory where there is such a place, and gone at its end."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

_MEMORY = "/dev/shm"


@cache
def scratch() -> Path:
    """It is empty to begin with."""
    made = tempfile.mkdtemp(prefix="midflight-fuzz-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)
