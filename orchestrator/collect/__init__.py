"""The collection run: the controller that ships."""

from .collector import Collector, Emit
from .config import Config, ConfigError, load_config
from .ledger import RunLedger
from .output import Line, Output, open_output
from .progress import is_terminal, json_events, plain_events
from .rows import Rollout, load_rollouts, plan_rollouts
from .run import Options, Summary, collect
from .world import World, open_world

__all__ = [
    "Collector",
    "Config",
    "ConfigError",
    "Emit",
    "Line",
    "Options",
    "Output",
    "Rollout",
    "RunLedger",
    "Summary",
    "World",
    "collect",
    "is_terminal",
    "json_events",
    "load_config",
    "load_rollouts",
    "open_output",
    "open_world",
    "plain_events",
    "plan_rollouts",
]
