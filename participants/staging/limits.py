"""Every limit of staging, with its number and unit, in one place."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingLimits:
    """What a worker stages and how much of it at once."""

    max_prefix_tokens: int = 1_048_576
    """Longest prefix, in tokens of four bytes."""
    pack_bytes: int = 8 * MIB
    """Prefixes that are staged together share files of about this size; one long prefix may make one larger."""
    packs_in_flight: int = 4
    """Packs of one request that are encoded and written at once."""
    max_items: int = 8_192
    """Items of one stage request, and keys of one pin request."""
    max_body_bytes: int = 16 * MIB
    """Of one request to a staging route."""
    ended_kept: int = 4_096
    """Buffers of calls that have ended which can still be staged: the caller may not have read all of them yet."""
    ended_tokens: int = 8 * MIB
    """Tokens in these buffers, together."""
    remembered_cuts: int = 4
    """Cuts of one buffer whose keys are remembered, so that the same cut gets the same key."""
    sweep_after_s: float = 24 * 3600.0
    """Age, by the store's own clock, at which tokens that nothing has pinned may be swept."""


DEFAULT_STAGING_LIMITS = StagingLimits()
HEADER_BYTES = 4_096
"""Longest header of an entry: the two names in it are bounded."""
MAX_CALL_CHARS = 1_024
"""Longest call id, as text."""
