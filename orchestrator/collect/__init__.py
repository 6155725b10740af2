"""The collection run: the controller that ships."""

from participants.serving import ConfigError

from .checkpoints import Checkpoints
from .collector import Collector, Emit, NothingWorks
from .config import Config, load_config
from .embedded import EmbeddedWorld, open_world
from .ending import Ending
from .ledger import RunLedger
from .progress import is_terminal, json_events, plain_events, print_plainly
from .rows import Rollout, load_rollouts, plan_rollouts
from .run import ENDS_RUN, collect
from .segments import AnotherWriter, Line, Segments, open_segments
from .servers import ServersGone
from .summary import EXIT_FENCED, EXIT_NOTHING_WORKS, EXIT_SERVERS_GONE, Options, Summary
from .tracebacks import tracebacks_shown
from .world import World

__all__ = [
    "ENDS_RUN",
    "EXIT_FENCED",
    "EXIT_NOTHING_WORKS",
    "EXIT_SERVERS_GONE",
    "AnotherWriter",
    "Checkpoints",
    "Collector",
    "Config",
    "ConfigError",
    "EmbeddedWorld",
    "Emit",
    "Ending",
    "Line",
    "NothingWorks",
    "Options",
    "Rollout",
    "RunLedger",
    "Segments",
    "ServersGone",
    "Summary",
    "World",
    "collect",
    "is_terminal",
    "json_events",
    "load_config",
    "load_rollouts",
    "open_segments",
    "open_world",
    "plain_events",
    "plan_rollouts",
    "print_plainly",
    "tracebacks_shown",
]
