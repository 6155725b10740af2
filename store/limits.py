"""Every limit of the store, with its number and unit, in one place."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the store accepts and how it spends memory and time. All sizes are bytes, all times seconds."""

    frame_bytes: int = 1 * MIB
    """Uncompressed bytes after which a frame of a part is closed; one record may make it longer."""
    part_bytes: int = 8 * MIB
    """Compressed bytes after which a part is closed; one frame may make it longer."""
    max_part_bytes: int = 160 * MIB
    """Largest part that is read or written: `part_bytes`, one frame of the largest record, and some room."""
    max_record_bytes: int = 128 * MIB
    """Largest single record, encoded. A larger one is refused at commit and at restore."""
    max_rollout_id_chars: int = 200
    """Longest rollout id."""
    inline_payload_bytes: int = 64 * KIB
    """A bytes payload larger than this goes to a blob of its own."""
    max_blob_bytes: int = 1 * GIB
    """Largest single bytes payload."""
    inline_state_bytes: int = 256 * KIB
    """Encoded state (of a controller or participant) larger than this goes to a blob."""
    max_state_bytes: int = 256 * MIB
    """Largest encoded state."""
    max_manifest_bytes: int = 256 * MIB
    """Largest manifest of either sort that is read or written."""
    max_index_bytes: int = 256 * MIB
    """Largest index, uncompressed."""
    max_entry_bytes: int = 4 * MIB
    """Largest chain entry, format.json or liveness counter."""
    read_bytes: int = 1 * MIB
    """Neighbouring frames are read by one request up to so many bytes."""
    frames_in_flight: int = 4
    """Frames that a commit or a load holds in memory at once, per call."""
    requests_in_flight: int = 16
    """Store requests that one call keeps open at once."""
    retry_for_s: float = 60.0
    """How long a transient store error is retried where the caller's own deadline is later."""
    connect_timeout_s: float = 5.0
    """How long one request waits for a connection to an object store; then it counts as not sent."""
    read_timeout_s: float = 30.0
    """How long one request waits for the next bytes from an object store; then its outcome is unknown."""
    liveness_beat_s: float = 5.0
    """How often a controller raises its counter under alive/."""
    sweep_after_s: float = 24 * 3600.0
    """Age, by the store's own clock, at which unpublished leftovers may be swept."""


DEFAULT_LIMITS = Limits()
