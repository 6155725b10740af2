"""Resources servers that ship."""

from .calculator import CalculatorServer, make_tasks
from .counter import CounterServer
from .weather import WeatherServer

__all__ = ["CalculatorServer", "CounterServer", "WeatherServer", "make_tasks"]
