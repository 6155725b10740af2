"""Cutting a generation and continuing it: what was generated so far, what to ask for, and the joined reply. Pure."""

from .features import features_of
from .joining import Joined, combined, for_client, is_inside_character, join, joined, watch
from .plan import Anew, Check, Continue, Reason, asked_as_stream, plan
from .policy import Policy, Verdict, always_continue, older_than
from .prefix import Prefix, Segment
from .reading import Reading, finished, read
from .stopping import StopWatch

__all__ = [
    "Anew",
    "Check",
    "Continue",
    "Joined",
    "Policy",
    "Prefix",
    "Reading",
    "Reason",
    "Segment",
    "StopWatch",
    "Verdict",
    "always_continue",
    "asked_as_stream",
    "combined",
    "features_of",
    "finished",
    "for_client",
    "is_inside_character",
    "join",
    "joined",
    "older_than",
    "plan",
    "read",
    "watch",
]
