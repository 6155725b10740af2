"""Resources servers that ship."""

from .blackjack import BlackjackServer
from .calculator import CalculatorServer, make_tasks
from .counter import CounterServer
from .shell import ShellServer
from .weather import WeatherServer
from .workplace import WorkplaceServer

__all__ = [
    "BlackjackServer",
    "CalculatorServer",
    "CounterServer",
    "ShellServer",
    "WeatherServer",
    "WorkplaceServer",
    "make_tasks",
]
