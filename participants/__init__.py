"""Participants: identity and wire, gate, control plane, the four kinds and what an author subclasses."""

from .agent import Activation, Agent, Final, Next, Session, StepContext
from .book import Book, Closed
from .cases import Case, Conformance, ToolCall
from .control_http import CONTROL_PREFIX, control_app
from .data import CallId, Peer, Reply, Request
from .data_http import data_app
from .environment import EnvironmentServer, Result
from .episode import EPISODE_STEPS, RUN_STEPS, Episode, EpisodeRunner
from .errors import Code, ParticipantError
from .fences import Admitted, Fences, Floor
from .gate import Gate, Step
from .gymnasium import GymnasiumServer, Turn
from .gymnasium_agent import GymnasiumAgent
from .holder import Held, Holder
from .model import ModelServer
from .owner import Export, Owner
from .peer import HttpPeer, LocalPeer
from .phases import TRANSITIONS, Event, Phase, advance
from .plane import ControlPlane
from .replies import Kept, Replies
from .resources import ResourcesServer
from .routing import worker_of
from .sessions import ResourcesSession, Sessions
from .simple_agent import SimpleAgent
from .tally import Sum
from .tools import Tool, ToolError, tool
from .upstream import Chunks, OpenAIEndpoint, Upstream
from .wire import (
    OPERATIONS,
    Abort,
    Activate,
    Adopt,
    Adopted,
    Beat,
    Began,
    Blocker,
    Capabilities,
    Commit,
    Committed,
    Dispatched,
    Done,
    Finished,
    Message,
    Modes,
    PairTally,
    Prepare,
    Prepared,
    Refused,
    Release,
    Renew,
    Renewed,
    Results,
    Resume,
    Retire,
    Retired,
    Stage,
    Status,
    Submit,
    Submitted,
    Work,
    Worked,
)

__all__ = [
    "CONTROL_PREFIX",
    "EPISODE_STEPS",
    "OPERATIONS",
    "RUN_STEPS",
    "TRANSITIONS",
    "Abort",
    "Activate",
    "Activation",
    "Admitted",
    "Adopt",
    "Adopted",
    "Agent",
    "Beat",
    "Began",
    "Blocker",
    "Book",
    "CallId",
    "Capabilities",
    "Case",
    "Chunks",
    "Closed",
    "Code",
    "Commit",
    "Committed",
    "Conformance",
    "ControlPlane",
    "Dispatched",
    "Done",
    "EnvironmentServer",
    "Episode",
    "EpisodeRunner",
    "Event",
    "Export",
    "Fences",
    "Final",
    "Finished",
    "Floor",
    "Gate",
    "GymnasiumAgent",
    "GymnasiumServer",
    "Held",
    "Holder",
    "HttpPeer",
    "Kept",
    "LocalPeer",
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
    "Refused",
    "Release",
    "Renew",
    "Renewed",
    "Replies",
    "Reply",
    "Request",
    "ResourcesServer",
    "ResourcesSession",
    "Result",
    "Results",
    "Resume",
    "Retire",
    "Retired",
    "Session",
    "Sessions",
    "SimpleAgent",
    "Stage",
    "Status",
    "Step",
    "StepContext",
    "Submit",
    "Submitted",
    "Sum",
    "Tool",
    "ToolCall",
    "ToolError",
    "Turn",
    "Upstream",
    "Work",
    "Worked",
    "advance",
    "control_app",
    "data_app",
    "tool",
    "worker_of",
]
