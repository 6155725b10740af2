"""The capture ledger: what each life's model calls were, exact across crashes."""

from .checker import Finding, check
from .http import LEDGER_PREFIX, ledger_app
from .keys import CaptureKey
from .ledger import Ledger
from .lines import Receipt
from .reading import Manifest
from .rows import COMPLETED, GENESIS, Entry, Inline, Row

__all__ = [
    "COMPLETED",
    "GENESIS",
    "LEDGER_PREFIX",
    "CaptureKey",
    "Entry",
    "Finding",
    "Inline",
    "Ledger",
    "Manifest",
    "Receipt",
    "Row",
    "check",
    "ledger_app",
]
