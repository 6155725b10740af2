"""Participants: identity and wire, gate, control plane, the four kinds and what an author subclasses."""

from .agent import Activation, Agent, Final, Next, Session, StepContext
from .book import Book, Closed
from .control_http import CONTROL_PREFIX, control_app
from .data import CallId, Peer, Reply, Request
from .environment import STEPS, EnvironmentServer, Episode, Result
from .errors import Code, ParticipantError
from .fences import Admitted, Fences, Floor
from .gate import Gate, Step
from .holder import Held, Holder
from .model import ModelServer
from .owner import Export, Owner
from .phases import TRANSITIONS, Event, Phase, advance
from .plane import ControlPlane
from .replies import Kept, Replies
from .simple_agent import SimpleAgent
from .tally import Sum
from .upstream import OpenAIEndpoint, Upstream
from .wire import (
    OPERATIONS,
    Abort,
    Activate,
    Adopt,
    Adopted,
    Blocker,
    Capabilities,
    Commit,
    Committed,
    Done,
    Message,
    Modes,
    PairTally,
    Prepare,
    Prepared,
    Renew,
    Renewed,
    Resume,
    Retire,
    Retired,
    Stage,
    Status,
)

__all__ = [
    "CONTROL_PREFIX",
    "OPERATIONS",
    "STEPS",
    "TRANSITIONS",
    "Abort",
    "Activate",
    "Activation",
    "Admitted",
    "Adopt",
    "Adopted",
    "Agent",
    "Blocker",
    "Book",
    "CallId",
    "Capabilities",
    "Closed",
    "Code",
    "Commit",
    "Committed",
    "ControlPlane",
    "Done",
    "EnvironmentServer",
    "Episode",
    "Event",
    "Export",
    "Fences",
    "Final",
    "Floor",
    "Gate",
    "Held",
    "Holder",
    "Kept",
    "Message",
    "ModelServer",
    "Modes",
    "Next",
    "OpenAIEndpoint",
    "Owner",
    "PairTally",
    "ParticipantError",
    "Peer",
    "Phase",
    "Prepare",
    "Prepared",
    "Renew",
    "Renewed",
    "Replies",
    "Reply",
    "Request",
    "Result",
    "Resume",
    "Retire",
    "Retired",
    "Session",
    "SimpleAgent",
    "Stage",
    "Status",
    "Step",
    "StepContext",
    "Sum",
    "Upstream",
    "advance",
    "control_app",
]
