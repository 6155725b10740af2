"""Resources servers that ship."""

from .blackjack import BlackjackServer
from .calculator import CalculatorServer, make_tasks
from .counter import CounterServer
from .weather import WeatherServer

__all__ = ["BlackjackServer", "CalculatorServer", "CounterServer", "WeatherServer", "make_tasks"]
