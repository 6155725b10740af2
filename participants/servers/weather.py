"""A tool that tells the weather, always the same: the smallest server without a state.

The reward is 1.0 if the response calls `get_weather` at all; a row needs no label.
"""

from typing import Any

from ..cases import Case, Conformance, ToolCall
from ..output_text import function_calls
from ..resources import ResourcesServer
from ..sessions import ResourcesSession
from ..tools import tool

DESCRIPTION = "It is cold, with a clear sky and a light wind."


class WeatherServer(ResourcesServer):
    """Tells the weather."""

    checkpoint_mode = "stateless"
    checkpoint_verify = "replay"

    @tool
    async def get_weather(self, session: ResourcesSession, city: str) -> dict[str, Any]:
        """The weather in a city."""
        return {"city": city, "weather_description": DESCRIPTION}

    async def verify(self, session: ResourcesSession, row: dict[str, Any]) -> dict[str, Any]:
        """1.0 if any output item is a call of `get_weather`."""
        return {"reward": float(any(call.get("name") == "get_weather" for call in function_calls(row["response"])))}

    @classmethod
    def conformance(cls) -> Conformance:
        """Some ask for the weather, in one town or in several, and some make it up."""
        towns = [f"Town {number}" for number in range(60)]
        asked = [towns[number : number + number % 4] for number in range(60)]
        calls = [[ToolCall(name="get_weather", arguments={"city": town}) for town in each] for each in asked]
        return Conformance(cases=[Case(row={}, calls=each, said="It is cold.") for each in calls])
