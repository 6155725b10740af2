"""For inference workers: stage the prefixes of generations in a token store of their own, pin them, continue them.

A worker makes a `TokenStore` and a `Stager`, opens a buffer where a call begins to generate, appends where tokens come,
closes it at the end, mounts `staging_routes`, and calls `Stager.begin` before it continues a cut. What a proxy calls of
it is in `client`.
"""

from .begin import Cut, Room, begin_call, check_cut
from .helper import ActiveBuffer, Frozen, Refused, Staged, Stager, Wanted, identity_of
from .limits import DEFAULT_STAGING_LIMITS, StagingLimits
from .packs import Entry, Identity, Key, PromptRef, digest_of_ids
from .refusals import Reason, StagingRefused
from .routes import cut_of, staging_routes
from .store import Swept, TokenStore
from .wire import STAGING_PREFIX, StagedPrefix

__all__ = [
    "DEFAULT_STAGING_LIMITS",
    "STAGING_PREFIX",
    "ActiveBuffer",
    "Cut",
    "Entry",
    "Frozen",
    "Identity",
    "Key",
    "PromptRef",
    "Reason",
    "Refused",
    "Room",
    "Staged",
    "StagedPrefix",
    "Stager",
    "StagingLimits",
    "StagingRefused",
    "Swept",
    "TokenStore",
    "Wanted",
    "begin_call",
    "check_cut",
    "cut_of",
    "digest_of_ids",
    "identity_of",
    "staging_routes",
]
