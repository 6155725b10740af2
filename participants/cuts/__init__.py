"""Cutting a generation and continuing it: what was generated so far, what to ask for, and the joined reply. Pure."""

from .features import features_of
from .joining import Joined, check_marks, combined, for_client, is_inside_character, join, joined, watch
from .plan import Anew, Check, Continue, Reason, asked_as_stream, plan
from .policy import Policy, Verdict, always_continue, older_than
from .prefix import Prefix, Segment
from .reading import Reading, finished, read
from .stopping import StopWatch
from .toolformats import CannotTell

__all__ = [
    "Anew",
    "CannotTell",
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
    "check_marks",
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
