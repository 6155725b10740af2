"""The capture ledger: what each life's model calls were, exact across crashes."""

from .keys import CaptureKey
from .ledger import Ledger
from .lines import Receipt
from .reading import Manifest
from .rows import COMPLETED, GENESIS, Entry, Inline, Row

__all__ = ["COMPLETED", "GENESIS", "CaptureKey", "Entry", "Inline", "Ledger", "Manifest", "Receipt", "Row"]
